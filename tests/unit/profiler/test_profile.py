"""Profiles: their lifecycle, transitions between actions, and events, beyond what the promises show."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from monitel import profiler
from monitel.profiler import ProfilerAction, ProfilerActivity, profile, ranges, record_function, schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from monitel.testing import ManualClock

pytestmark = pytest.mark.usefixtures("clean_profiler")
NONE, WARMUP, RECORD, SAVE, STOPPED = ProfilerAction
INITIALS = {"N": NONE, "W": WARMUP, "R": RECORD, "S": SAVE}


def names(prof: Any) -> list[str]:
    """Return the names of the events."""
    return [event.trace_name for event in prof.events()]


def by_letters(letters: str) -> Callable[[int], ProfilerAction]:
    """Return a schedule with these actions, and NONE afterwards."""
    return lambda step: INITIALS[letters[step]] if step < len(letters) else NONE


class Traced:
    """Runs a schedule, and logs the calls of observer and callback with the ranges of each trace."""

    def __init__(self, letters: str, steps: int, *, failing: tuple[int, ...] = ()) -> None:
        self.log: list[str] = []
        self.raised: list[int] = []
        self.messages: list[str] = []

        def ready(prof: Any) -> None:
            labels = "".join(name for name in names(prof) if "#" not in name)
            self.log.append(f"ready {prof.step_num} {labels}")
            if prof.step_num in failing:
                raise OSError

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.prof = profile(schedule=by_letters(letters), on_trace_ready=ready, execution_trace_observer=self)
            for call in [self.prof.start, *[self.prof.step] * steps, self.prof.stop]:
                try:
                    call()
                except OSError:
                    self.raised.append(self.prof.step_num)
                with record_function(str(self.prof.step_num)):
                    pass
        self.messages = [str(each.message) for each in caught if "clears events" not in str(each.message)]

    def start(self) -> None:
        """Log the start of a recording."""
        self.log.append("start")

    def stop(self) -> None:
        """Log the stop of a recording."""
        self.log.append("stop")

    def cleanup(self) -> None:
        """Do nothing."""


#: Two successive actions (``-`` is the end): the calls in between, the warning.
TRANSITIONS = {
    "NN": ([], None),
    "NW": ([], None),
    "NR": (["start"], None),
    "NS": (["start"], None),
    "WN": (["start", "stop"], "Incorrect schedule: WARMUP followed by NONE"),
    "WW": ([], None),
    "WR": (["start"], None),
    "WS": (["start"], None),
    "RN": (["stop"], "Incorrect schedule: RECORD followed by NONE"),
    "RW": (["stop"], "Incorrect schedule: RECORD followed by WARMUP"),
    "RR": ([], None),
    "RS": ([], None),
    "SN": (["stop", "ready"], None),
    "SW": (["stop", "ready"], None),
    "SR": (["stop", "ready", "start"], None),
    "SS": (["stop", "ready", "start"], None),
    "N-": ([], None),
    "W-": (["start", "stop"], None),
    "R-": (["stop", "ready"], None),
    "S-": (["stop", "ready"], None),
}


def test_each_pair_of_actions_makes_its_calls_and_warnings() -> None:
    """As in torch, except where torch crashes."""
    for pair, (done, warning) in TRANSITIONS.items():
        before, after = pair[0], pair[1]
        first = ["start"] if before in "RS" else []
        last: list[str] = [] if after == "-" else TRANSITIONS[f"{after}-"][0]
        traced = Traced(pair.strip("-"), 0 if after == "-" else 1)
        assert first + done + last == [each.split()[0] for each in traced.log], pair
        assert ([warning] if warning else []) == traced.messages, pair


def test_callback_raises_at_the_end() -> None:
    """An exception from on_trace_ready propagates with the block's as context; the profile can be used again."""

    def ready(_prof: Any) -> None:
        raise OSError("disk full")

    prof = profile(on_trace_ready=ready)
    with pytest.raises(OSError, match="disk full") as caught, prof, record_function("a"):
        raise KeyError
    assert isinstance(caught.value.__context__, KeyError)
    assert ["a"] == names(prof)
    prof.on_trace_ready = None
    with pytest.warns(UserWarning, match="clears events at the end of each cycle"), prof, record_function("b"):
        pass
    assert ["b"] == names(prof)


def test_callback_runs_between_steps() -> None:
    """on_trace_ready runs between two steps: step_num is the new one, and no range of a step is open."""
    seen = []

    def ready(prof: Any) -> None:
        seen.append((prof.step_num, prof.current_action, ranges.current_range(), prof.events()[-1].finished))

    with profile(schedule=schedule(wait=0, warmup=1, active=1, repeat=1), on_trace_ready=ready) as prof:
        for _ in range(4):
            prof.step()
    assert [(2, NONE, None, True)] == seen


def test_schedule_returns_device_stopped() -> None:
    """DEVICE_STOPPED from a schedule is a ValueError of the constructor or of step(), which changes nothing."""
    with pytest.raises(ValueError, match="must not be returned by a user-provided schedule"):
        profile(schedule=lambda _: STOPPED)
    prof = profile(schedule=lambda step: STOPPED if step else NONE)
    prof.start()
    with pytest.raises(ValueError, match="must not be returned by a user-provided schedule"):
        prof.step()
    assert (0, NONE) == (prof.step_num, prof.current_action)


def test_schedule_returns_another_type() -> None:
    """A schedule that returns anything but an action raises TypeError; torch ignores it silently."""
    wrong: Any = lambda _: 2  # noqa: E731
    with pytest.raises(TypeError, match="a schedule must return a ProfilerAction, got int for step 0"):
        profile(schedule=wrong)


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


def test_overlapping_profiles() -> None:
    """Each overlapping profile has all ranges that begin while it is running."""
    first, second = profile(), profile()
    for call, name in [(first.start, "a"), (second.start, "b"), (first.stop, "c"), (second.stop, "d")]:
        call()
        with record_function(name):
            pass
    assert (["a", "b"], ["b", "c"]) == (names(first), names(second))


def test_running_range_at_the_stop(clock: ManualClock) -> None:
    """A range that still runs at the stop, in any thread, is recorded up to the stop, as not finished."""
    opened, go = threading.Event(), threading.Event()

    def work() -> None:
        with record_function("other"):
            opened.set()
            assert go.wait(30)

    prof = profile()
    prof.start()
    label = record_function("main").__enter__()
    thread = threading.Thread(target=work)
    thread.start()
    assert opened.wait(30)
    clock.advance(2)
    prof.stop()
    clock.advance(5)
    label.__exit__(None, None, None)
    go.set()
    thread.join(30)
    assert [("main", 2e6, False), ("other", 2e6, False)] == [
        (event.name, event.cpu_time_total, event.finished) for event in prof.events()
    ]


def test_events_while_running() -> None:
    """events() of a running profile returns the ranges so far; torch's list is empty."""
    with profile() as prof:
        with record_function("a"):
            pass
        with record_function("b"):
            assert [("a", True), ("b", False)] == [(event.name, event.finished) for event in prof.events()]
    assert [("a", True), ("b", True)] == [(event.name, event.finished) for event in prof.events()]
    assert prof.events() is prof.events()


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


def test_steps_are_ranges_only_with_a_schedule() -> None:
    """Without one they are counted."""
    with profile() as prof:
        prof.step()
    assert ([], 1) == (names(prof), prof.step_num)


@pytest.mark.parametrize(
    ("activities", "error", "message"),
    [
        ([], AssertionError, "No valid profiler activities found"),
        ([ProfilerActivity.CPU] * 2, ValueError, "Activity ProfilerActivity.CPU specified more than once"),
        (["CPU"], TypeError, "Expected ProfilerActivity or dict, got <class 'str'>"),
        (iter([ProfilerActivity.XPU]), RuntimeError, "ProfilerActivity.XPU"),
    ],
)
def test_invalid_activities(activities: Any, error: type[Exception], message: str) -> None:
    """They are refused as in torch."""
    with pytest.raises(error, match=message):
        profile(activities=activities)


@pytest.mark.parametrize(("kinds", "expected"), [([], []), (["CPU_OP"], []), (["USER_ANNOTATION"], ["a"])])
def test_kinds_of_events(kinds: list[str], expected: list[str]) -> None:
    """A mapping selects kinds of events; ranges are recorded if USER_ANNOTATION is among them."""
    with profile(activities=[{ProfilerActivity.CPU: kinds}]) as prof, record_function("a"):
        pass
    assert expected == names(prof)


def test_options_that_need_torch() -> None:
    """Each option that needs torch is warned about once, and noted in the trace."""
    options = ["record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"]
    given: dict[str, Any] = dict.fromkeys(options, True)
    with pytest.warns(UserWarning, match="without torch") as caught:
        profs = [profile(**given), profile(with_stack=True)]
    assert options == [str(each.message).split("=")[0] for each in caught]
    assert {__file__} == {each.filename for each in caught}
    with profs[0]:
        pass


def test_trace_ids() -> None:
    """Trace ids are 32 hexadecimal digits, or come from a callback, which must return a str."""
    with profile() as prof:
        first = prof.get_trace_id()
    assert first is not None
    assert (32, first.upper(), first) == (len(first), first, f"{int(first, 16):032X}")
    prof.set_custom_trace_id_callback(lambda: "mine")
    with pytest.warns(UserWarning, match="clears"), prof:
        assert "mine" == prof.get_trace_id()
    wrong: Any = lambda: 5  # noqa: E731
    with pytest.raises(TypeError, match="custom_trace_id_callback must return a str, got int"):
        profile(custom_trace_id_callback=wrong).start()


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
