"""Events of a profile: times, parents, averages and tables."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from monitel.profiler import ProfilerAction, profile, record_function, schedule

if TYPE_CHECKING:
    from monitel.testing import ManualClock

pytestmark = pytest.mark.usefixtures("clean_profiler")


def names(prof: Any) -> list[str]:
    """Return the names of the events."""
    return [event.trace_name for event in prof.events()]


def stepped(prof: Any, steps: int) -> None:
    """Run a profile for some steps."""
    with prof:
        for _ in range(steps):
            prof.step()


def test_events_while_running() -> None:
    """events() of a running profile returns the ranges so far; torch's list is empty."""
    with profile() as prof:
        with record_function("a"):
            pass
        with record_function("b"):
            assert [("a", True), ("b", False)] == [(event.name, event.finished) for event in prof.events()]
    assert [("a", True), ("b", True)] == [(event.name, event.finished) for event in prof.events()]
    assert prof.events() is prof.events()


def test_events(clock: ManualClock) -> None:
    """Events have times in microseconds since the start, parents, children and torch's attributes."""
    clock.advance(100)
    with profile() as prof:
        clock.advance(1)
        with record_function("a", "x"):
            clock.advance(1)
            with record_function("b"):
                clock.advance(2)
            with record_function("c"):
                clock.advance(3)
            clock.advance(1)
    a, b, c = prof.events()
    assert [(1e6, 8e6), (2e6, 4e6), (4e6, 7e6)] == [tuple(event.time_range) for event in (a, b, c)]
    assert (None, a, a) == (a.cpu_parent, b.cpu_parent, c.cpu_parent)
    assert [b, c] == a.cpu_children
    assert (7e6, 2e6) == (a.cpu_time_total, a.self_cpu_time_total)
    assert (3e6, "3.000s", 3e6) == (c.cpu_time, c.cpu_time_str, c.time_range.elapsed_us())
    assert ("x", None, threading.get_native_id()) == (a.args, b.args, a.thread)
    assert (0, 7, True, "CPU") == (a.id, a.scope, a.is_user_annotation, a.device_type.name)
    assert "<FunctionEvent 'a' count=1 cpu_time=7.000s self_cpu_time=2.000s>" == repr(a)


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


def test_key_averages_and_table(clock: ManualClock) -> None:
    """Averages, the total, and sorted and limited tables have consistent numbers."""
    with profile() as prof:
        for seconds in (1, 3):
            with record_function("a"):
                clock.advance(seconds)
                with record_function("b" * 60):
                    clock.advance(1)
    averages = prof.key_averages()
    assert [("a", 2, 6e6, 4e6, 3e6), ("b" * 60, 2, 2e6, 2e6, 1e6)] == [
        (each.key, each.count, each.cpu_time_total, each.self_cpu_time_total, each.cpu_time) for each in averages
    ]
    total = averages.total_average()
    assert ("Total", 4, 6e6) == (total.key, total.count, total.self_cpu_time_total)
    assert 6e6 == averages.self_cpu_time_total == prof.events().self_cpu_time_total
    lines = averages.table(sort_by="cpu_time", row_limit=1, header="here").splitlines()
    assert "here" == lines[1]
    assert ["a", "66.67%", "4.000s", "100.00%", "6.000s", "3.000s", "2"] == lines[5].split()
    assert (8, "Self CPU time total: 6.000s") == (len(lines), lines[7])
    whole = averages.table(sort_by="count", row_limit=-1, time_unit="ms")
    assert "b" * 52 + "..." in whole
    assert "4000.000ms" in whole
    top = prof.events().table(top_level_events_only=True).splitlines()
    assert ["a", "a"] == [line.split()[0] for line in top[5:-2]]
    assert whole.splitlines()[0] == str(averages).splitlines()[0]
    assert averages.table(sort_by="self_cuda_time_total") == averages.table()
    with pytest.raises(AttributeError):
        averages.table(sort_by="beauty")
    with profile() as empty:
        pass
    assert "" == empty.key_averages().table()


def test_accumulated_events() -> None:
    """With acc_events the events of all cycles are kept; without it only the last, with one warning."""
    plan = schedule(wait=0, warmup=1, active=1)
    with profile(schedule=plan, acc_events=True) as prof:
        for _ in range(6):
            prof.step()
    assert [f"ProfilerStep#{step}" for step in (1, 3, 5)] == names(prof)
    assert [0, 1, 2] == [event.id for event in prof.events()]
    prof = profile(schedule=plan)
    with pytest.warns(UserWarning, match="clears events") as caught:
        stepped(prof, 6)
    assert 1 == len(caught)
    assert ["ProfilerStep#5"] == names(prof)


def test_leaving_while_warming_up() -> None:
    """Leaving a profile while it warms up keeps the last cycle; torch discards it."""
    prof = profile(schedule=schedule(wait=0, warmup=1, active=1))
    stepped(prof, 1)
    last = prof.get_trace_id()
    with pytest.warns(UserWarning, match="clears events"):
        stepped(prof, 3)
    assert ProfilerAction.WARMUP is prof.current_action
    assert ["ProfilerStep#3"] == names(prof)
    assert prof.get_trace_id() != last


def test_post_processing_timeout() -> None:
    """A negative timeout is an error at the start; with 0, events() returns nothing and warns."""
    prof = profile(post_processing_timeout_s=-1)
    with pytest.raises(ValueError, match="post_processing_timeout_s must be non-negative"):
        prof.start()
    with profile(post_processing_timeout_s=0) as prof, record_function("a"):
        pass
    with pytest.warns(UserWarning, match=r"events\(\) returns 0 of 1 ranges: timeout after 0 s"):
        assert [] == prof.events()
    with profile(post_processing_timeout_s=60) as prof, record_function("a"):
        pass
    assert ["a"] == names(prof)
