"""Profiles: transitions between actions, and the lifecycle."""

from __future__ import annotations

import itertools
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from monitel import profiler
from monitel.profiler import ProfilerAction, ProfilerActivity, profile, ranges, record_function, schedule

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize("pair", TRANSITIONS)
def test_transition(pair: str) -> None:
    """Each of the 20 transitions makes the expected calls and warnings, as in torch unless torch crashes."""
    before, after = pair[0], pair[1]
    first = ["start"] if before in "RS" else []
    done, warning = TRANSITIONS[pair]
    last: list[str] = []
    if after != "-":
        last = TRANSITIONS[f"{after}-"][0]
    traced = Traced(pair.strip("-"), 0 if after == "-" else 1)
    assert first + done + last == [each.split()[0] for each in traced.log]
    assert ([warning] if warning else []) == traced.messages


@pytest.mark.parametrize("letters", ["".join(each) for each in itertools.product("NWRS", repeat=4)])
def test_any_schedule_survives(letters: str) -> None:
    """All 256 orders of four actions work (torch crashes with some), and each trace has all of its steps."""
    traced = Traced(letters, 4)
    expected, recording = [], ""
    for step, letter in enumerate(f"{letters}N"):
        recording += str(step) if letter in "RS" else ""
        if letter == "S":
            expected.append(f"ready {step + 1} {recording}")
        recording = recording if letter == "R" else ""
    assert expected == [each for each in traced.log if each.startswith("ready")]
    assert traced.log.count("start") == traced.log.count("stop")
    assert [] == traced.raised


@pytest.mark.parametrize("letters", ["SSSS", "SWSWS", "SRSRS", "SNSNS"])
def test_callback_raises(letters: str) -> None:
    """An exception from on_trace_ready is raised from step(), once, and the next cycle is complete."""
    traced = Traced(letters, len(letters), failing=(1,))
    assert [1] == traced.raised
    alone = Traced(letters, len(letters))
    assert alone.log == traced.log
    assert names(alone.prof) == names(traced.prof)


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


def test_exception_in_the_block() -> None:
    """An exception in the block propagates, and on_trace_ready is called."""
    ready: list[Any] = []
    with pytest.raises(KeyError), profile(on_trace_ready=ready.append) as prof, record_function("a"):
        raise KeyError
    assert [prof] == ready
    assert ["a"] == names(prof)


def test_steps_are_ranges_with_a_schedule() -> None:
    """Steps are ``ProfilerStep#k`` in the trace and ``ProfilerStep*`` in averages, only with a schedule."""
    with profile(schedule=schedule(wait=1, warmup=1, active=3, repeat=1)) as prof:
        for _ in range(7):
            with record_function("a"):
                pass
            prof.step()
    assert ["ProfilerStep#2", "a", "ProfilerStep#3", "a", "ProfilerStep#4", "a"] == names(prof)
    assert ["ProfilerStep*", "a"] == [average.key for average in prof.key_averages()]
    steps = prof.events()[::2]
    assert steps == [event.cpu_parent for event in prof.events()[1::2]]
    with profile() as prof:
        prof.step()
    assert [] == names(prof)
    assert 1 == prof.step_num


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


def test_results_before_the_start() -> None:
    """Results before the start are errors with torch's messages."""
    prof = profile(with_stack=False)
    calls: list[tuple[Callable[[], Any], str]] = [
        (prof.events, "accessing events"),
        (prof.key_averages, "getting key averages"),
        (prof.stop, "stopping trace"),
        (lambda: prof.export_chrome_trace("x"), "exporting chrome trace"),
        (lambda: prof.export_stacks("x"), "exporting stacks"),
    ]
    for call, what in calls:
        with pytest.raises(AssertionError, match=f"^Profiler must be initialized before {what}$"):
            call()
    assert prof.get_trace_id() is None
    prof.step()
    assert 1 == prof.step_num
    prof.toggle_collection_dynamic(enable=False, activities=[ProfilerActivity.CPU])
    with pytest.raises(AssertionError, match=r"^Profiler must be initialized before starting trace$"):
        profiler._KinetoProfile().start_trace()


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


def test_nested_profiles() -> None:
    """Each nested profile has all ranges that begin while it is running; in torch the inner one takes all."""
    with profile() as outer:
        with record_function("a"), profile() as inner, record_function("b"):
            pass
        with record_function("c"):
            pass
    assert (["a", "b", "c"], ["b"]) == (names(outer), names(inner))
    assert inner.events()[0].cpu_parent is None
    assert outer.events()[0] is outer.events()[1].cpu_parent


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


def test_running_range_at_the_start() -> None:
    """A range that began before the start is not recorded, as in torch."""
    with record_function("a"), profile() as prof, record_function("b"):
        pass
    assert ["b"] == names(prof)
