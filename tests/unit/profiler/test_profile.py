"""Profiles: their lifecycle, transitions between actions, and events, beyond what the promises show."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from monitel import profiler
from monitel.profiler import ProfilerAction, profile, record_function, schedule
from monitel.testing import ManualClock

pytestmark = pytest.mark.usefixtures("clean_profiler")
NONE, WARMUP, RECORD, SAVE, _ = ProfilerAction


def names(prof: Any) -> list[str]:
    return [event.trace_name for event in prof.events()]


def test_start_twice_and_stop_twice() -> None:
    """A second start or stop warns and changes nothing: no event is lost, no trace delivered twice."""
    ready: list[Any] = []
    prof = profile(on_trace_ready=ready.append)
    prof.start()
    with record_function("a"):
        pass
    with pytest.warns(UserWarning, match="already running"):
        prof.start()
    with record_function("b"):
        pass
    prof.stop()
    with pytest.warns(UserWarning, match="not running"):
        prof.stop()
    assert ["a", "b"] == names(prof)
    assert [prof] == ready


def test_range_that_outlives_its_parent(clock: ManualClock) -> None:
    """A range that ends after its parent, as steps of an epoch can, is not its child."""
    with profile(schedule=schedule(wait=0, warmup=1, active=2, repeat=1)) as prof:
        prof.step()
        clock.advance(1)
        with record_function("epoch"):
            for _ in range(2):
                clock.advance(1)
                with record_function("batch"):
                    clock.advance(1)
                prof.step()
    found = [(event.trace_name, event.cpu_parent and event.cpu_parent.trace_name) for event in prof.events()]
    assert [
        ("ProfilerStep#1", None),
        ("epoch", None),
        ("batch", "epoch"),
        ("ProfilerStep#2", "epoch"),
        ("batch", "ProfilerStep#2"),
    ] == found
    total = prof.events()[-1].time_range.end - prof.events()[1].time_range.start
    assert total == sum(event.self_cpu_time_total for event in prof.events()[1:])


def test_self_times_of_interleaved_tasks(clock: ManualClock) -> None:
    """Self times exclude ranges of the same task, not those of other tasks in the same time."""

    async def job() -> None:
        with record_function("job"):
            clock.advance(1)
            await asyncio.sleep(0)
            clock.advance(1)

    async def main() -> None:
        with record_function("main"):
            await asyncio.gather(job(), job())

    with profile() as prof:
        asyncio.run(main())
    assert [("main", None, 4e6), ("job", None, 3e6), ("job", None, 3e6)] == [
        (event.name, event.cpu_parent, event.self_cpu_time_total) for event in prof.events()
    ]


def test_observers_are_independent(tmp_path: Path) -> None:
    """Two observers write two files (torch's second one writes none), one of them when it is garbage-collected."""
    first = profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "1.json"))
    second = profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "2.json.gz"))
    first.start()
    second.start()
    with record_function("a"):
        pass
    first.cleanup()
    del second
    gc.collect()
    assert ["1.json", "2.json.gz"] == sorted(path.name for path in tmp_path.iterdir())
    unregistered = profiler.ExecutionTraceObserver()
    unregistered.start()
    assert not unregistered.is_running()
    assert unregistered.get_output_file_path() is None
