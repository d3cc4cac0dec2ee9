"""profile: every transition, the lifecycle, and what can be had of a recording."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from monitel import profiler
from monitel.profiler import ProfilerAction, ProfilerActivity, profile, ranges, record_function, schedule
from monitel.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NONE, WARMUP, RECORD, SAVE, STOPPED = ProfilerAction
INITIALS = {"N": NONE, "W": WARMUP, "R": RECORD, "S": SAVE}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    profiler.cycles._warned.clear()
    yield
    assert () == ranges._listeners
    assert [] == [each for each in gc.callbacks if each.__module__.startswith("monitel")]
    profiler.KinetoStepTracker._step_dict.clear()
    profiler.KinetoStepTracker._current_step = 0


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Give a clock that moves only by advance()."""
    with ManualClock() as clock:
        yield clock


def by_letters(letters: str) -> Callable[[int], ProfilerAction]:
    """Make the schedule that has these actions, and none afterwards."""
    return lambda step: INITIALS[letters[step]] if step < len(letters) else NONE


def names(prof: Any) -> list[str]:
    """Name the events."""
    return [event.trace_name for event in prof.events()]


def stepped(prof: Any, steps: int) -> None:
    """Run a profile for some steps."""
    with prof:
        for _ in range(steps):
            prof.step()


class Traced:
    """Runs a schedule and notes, in order, what the profile does and which step's range each trace holds."""

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
        """Hear of a recording's start."""
        self.log.append("start")

    def stop(self) -> None:
        """Hear of its stop."""
        self.log.append("stop")

    def cleanup(self) -> None:
        """Hear of the end."""


#: Two actions in a row (``-`` is the end): what is done in between, the warning.
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
    """Each of the 20: what starts, stops and is ready, and what is warned of, as in torch where torch survives."""
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
    """All 256 orders of four actions: no crash (torch has some), and each trace has all steps of its recording."""
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
def test_a_failing_callback_loses_nothing(letters: str) -> None:
    """What on_trace_ready raises comes out of step(), once; the next cycle is whole, also where torch crashes."""
    traced = Traced(letters, len(letters), failing=(1,))
    assert [1] == traced.raised
    alone = Traced(letters, len(letters))
    assert alone.log == traced.log
    assert names(alone.prof) == names(traced.prof)


def test_a_failing_callback_at_the_end() -> None:
    """It propagates, and the profile can be used again; what the body raised is the context."""

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


def test_an_exception_in_the_body() -> None:
    """It propagates, and the trace is delivered."""
    ready: list[Any] = []
    with pytest.raises(KeyError), profile(on_trace_ready=ready.append) as prof, record_function("a"):
        raise KeyError
    assert [prof] == ready
    assert ["a"] == names(prof)


def test_steps_are_ranges_where_there_is_a_schedule() -> None:
    """``ProfilerStep#k`` in the trace, ``ProfilerStep*`` in averages; without a schedule there are none."""
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


def test_the_callback_sees_the_new_step() -> None:
    """on_trace_ready runs between two steps: step_num is the next one's, no step's range is open."""
    seen = []

    def ready(prof: Any) -> None:
        seen.append((prof.step_num, prof.current_action, ranges.current_range(), prof.events()[-1].finished))

    with profile(schedule=schedule(wait=0, warmup=1, active=1, repeat=1), on_trace_ready=ready) as prof:
        for _ in range(4):
            prof.step()
    assert [(2, NONE, None, True)] == seen


def test_a_schedule_of_device_stopped() -> None:
    """DEVICE_STOPPED is torch's own: a ValueError in the constructor or in step(), which changes nothing."""
    with pytest.raises(ValueError, match="must not be returned by a user-provided schedule"):
        profile(schedule=lambda _: STOPPED)
    prof = profile(schedule=lambda step: STOPPED if step else NONE)
    prof.start()
    with pytest.raises(ValueError, match="must not be returned by a user-provided schedule"):
        prof.step()
    assert (0, NONE) == (prof.step_num, prof.current_action)


def test_a_schedule_of_something_else() -> None:
    """What is no action is said at once; torch does nothing then, in silence."""
    wrong: Any = lambda _: 2  # noqa: E731
    with pytest.raises(TypeError, match="a schedule must return a ProfilerAction, got int for step 0"):
        profile(schedule=wrong)


def test_nothing_was_started() -> None:
    """Before the start there is nothing: torch's errors, word for word."""
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
    """Both warn and change nothing: no event and no trace is lost or delivered twice."""
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
    """Each has all ranges that begin while it records; in torch the inner one takes all."""
    with profile() as outer:
        with record_function("a"), profile() as inner, record_function("b"):
            pass
        with record_function("c"):
            pass
    assert (["a", "b", "c"], ["b"]) == (names(outer), names(inner))
    assert inner.events()[0].cpu_parent is None
    assert outer.events()[0] is outer.events()[1].cpu_parent


def test_overlapping_profiles() -> None:
    """So have profiles that are not nested."""
    first, second = profile(), profile()
    for call, name in [(first.start, "a"), (second.start, "b"), (first.stop, "c"), (second.stop, "d")]:
        call()
        with record_function(name):
            pass
    assert (["a", "b"], ["b", "c"]) == (names(first), names(second))


def test_open_at_the_stop(clock: ManualClock) -> None:
    """What still runs, in any thread, is recorded up to the stop, and says so; it may end at any time later."""
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


def test_open_at_the_start() -> None:
    """What began before is not recorded, as in torch."""
    with record_function("a"), profile() as prof, record_function("b"):
        pass
    assert ["b"] == names(prof)


def test_events_while_running() -> None:
    """events() gives what there is so far; a list of torch's is empty then."""
    with profile() as prof:
        with record_function("a"):
            pass
        with record_function("b"):
            assert [("a", True), ("b", False)] == [(event.name, event.finished) for event in prof.events()]
    assert [("a", True), ("b", True)] == [(event.name, event.finished) for event in prof.events()]
    assert prof.events() is prof.events()


def test_events(clock: ManualClock) -> None:
    """Times in microseconds since the start, parents, children, self times, and the labels of a user's annotation."""
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


def test_parents_contain_their_children(clock: ManualClock) -> None:
    """A range that outlives the one around it, as steps inside an epoch do, is not its child."""
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


def test_tasks_have_their_own_parents(clock: ManualClock) -> None:
    """Self times of a range leave out what its own task did in ranges, not what others did meanwhile."""

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
    """Averages by name, sorted and limited tables, the total; the numbers add up."""
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
    """acc_events keeps all cycles; without it the last is left, which is said once."""
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


def test_left_while_warming_up() -> None:
    """The last cycle's events and trace stay; torch has none then."""
    prof = profile(schedule=schedule(wait=0, warmup=1, active=1))
    stepped(prof, 1)
    last = prof.get_trace_id()
    with pytest.warns(UserWarning, match="clears events"):
        stepped(prof, 3)
    assert WARMUP is prof.current_action
    assert ["ProfilerStep#3"] == names(prof)
    assert prof.get_trace_id() != last


@pytest.mark.parametrize(
    ("activities", "error", "message"),
    [
        ([], AssertionError, "No valid profiler activities found"),
        ([ProfilerActivity.CPU] * 2, ValueError, "Activity ProfilerActivity.CPU specified more than once"),
        ([{ProfilerActivity.CPU: []}, ProfilerActivity.CPU], ValueError, "more than once"),
        (["CPU"], TypeError, "Expected ProfilerActivity or dict, got <class 'str'>"),
        ([ProfilerActivity.CPU, ProfilerActivity.CUDA], RuntimeError, "ProfilerActivity.CUDA: .*torch.profiler"),
        (iter([ProfilerActivity.XPU]), RuntimeError, "ProfilerActivity.XPU"),
    ],
)
def test_refused_activities(activities: Any, error: type[Exception], message: str) -> None:
    """What torch refuses; and what there is no source of without torch, with what to use."""
    with pytest.raises(error, match=message):
        profile(activities=activities)


def test_activities() -> None:
    """The CPU by name, by default, and from a generator (of which torch makes an empty set)."""
    cpu = ProfilerActivity.CPU
    for activities in (None, [cpu], iter([cpu]), [{cpu: ["CPU_OP"]}]):
        assert {ProfilerActivity.CPU} == profile(activities=activities).activities
    assert {ProfilerActivity.CPU} == profiler.supported_activities()
    assert profiler.kineto_available()
    assert (2, 20) == (int(ProfilerActivity.CUDA), int(profiler.DeviceType.PrivateUse1))


@pytest.mark.parametrize(("kinds", "expected"), [([], []), (["CPU_OP"], []), (["USER_ANNOTATION"], ["a"])])
def test_kinds_of_an_activity(kinds: list[str], expected: list[str]) -> None:
    """A dict names what to record of an activity: ranges are USER_ANNOTATION."""
    with profile(activities=[{ProfilerActivity.CPU: kinds}]) as prof, record_function("a"):
        pass
    assert expected == names(prof)


def test_toggle_collection() -> None:
    """Ranges that begin while it is off are left out."""
    with profile() as prof:
        for name, activity in [("a", None), ("b", ProfilerActivity.CPU), ("c", ProfilerActivity.CPU)]:
            if activity:
                prof.toggle_collection_dynamic(name == "c", [activity])
                prof.toggle_collection_dynamic(name == "c", {activity})
            prof.toggle_collection_dynamic(enable=False, activities=[ProfilerActivity.CUDA])
            with record_function(name):
                pass
    assert ["a", "c"] == names(prof)


def test_options_without_a_source() -> None:
    """Each option that needs torch is said once, and noted in the trace."""
    options = ["record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"]
    given: dict[str, Any] = dict.fromkeys(options, True)
    with pytest.warns(UserWarning, match="has no source without torch") as caught:
        profs = [profile(**given), profile(with_stack=True)]
    assert options == [str(each.message).split()[0] for each in caught]
    assert {__file__} == {each.filename for each in caught}
    with profs[0]:
        pass
    assert dict.fromkeys(options, "1") == profs[0]._cycles[0].metadata


def test_use_cuda() -> None:
    """Deprecated in torch, and without effect."""
    with pytest.warns(FutureWarning, match="`use_cuda` is deprecated"):
        assert {ProfilerActivity.CPU} == profile(use_cuda=True).activities


def test_keywords_only() -> None:
    """As in torch."""
    anything: Any = profile
    with pytest.raises(TypeError):
        anything([ProfilerActivity.CPU])


def test_post_processing_timeout() -> None:
    """Negative is an error at the start; with 0 events() has nothing, and says so; the trace is whole."""
    prof = profile(post_processing_timeout_s=-1)
    with pytest.raises(ValueError, match="post_processing_timeout_s must be non-negative"):
        prof.start()
    with profile(post_processing_timeout_s=0) as prof, record_function("a"):
        pass
    with pytest.warns(UserWarning, match=r"events\(\) has 0 of 1 ranges: it took 0 s"):
        assert [] == prof.events()
    with profile(post_processing_timeout_s=60) as prof, record_function("a"):
        pass
    assert ["a"] == names(prof)


def test_trace_ids() -> None:
    """32 upper-case hexadecimal digits, another each cycle; or what a callback gives, which must be a str."""
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


@pytest.mark.filterwarnings("ignore:with_stack has no source")
def test_trace_only() -> None:
    """events() raises, traces can be had; with_stack switches it off, as in torch."""
    config = profiler._ExperimentalConfig(trace_only=True)
    with profile(experimental_config=config) as prof:
        pass
    with pytest.raises(RuntimeError, match="not available when trace_only=True"):
        prof.events()
    with pytest.warns(UserWarning, match="trace_only=True is incompatible") as caught:
        prof = profile(experimental_config=config, with_stack=True)
    assert __file__ == caught[0].filename
    assert prof.experimental_config is not None
    assert (False, True) == (prof.experimental_config.trace_only, config.trace_only)


def test_garbage_collections() -> None:
    """On request, each pause is a range within what it interrupted."""
    config = profiler._ExperimentalConfig(record_python_gc_info=True)
    gc.disable()
    try:
        with profile(experimental_config=config) as prof, record_function("a"):
            gc.collect()
        with profile() as without, record_function("a"):
            gc.collect()
    finally:
        gc.enable()
    assert (["a", "Python GC"], ["a"]) == (names(prof), names(without))
    event = prof.events()[1]
    assert isinstance(event.args, dict)
    assert (2, prof.events()[0]) == (event.args["generation"], event.cpu_parent)
    assert event.cpu_time_total > 0


def test_step_tracker() -> None:
    """A profile counts as "ProfilerStep" only under KINETO_USE_DAEMON; steps never fall, a jump is warned of."""
    tracker = profiler.KinetoStepTracker
    assert (1, 2, 3) == tuple(tracker.increment_step(each) for each in ("a", "b", "b"))
    assert 3 == tracker.current_step()
    assert (True, False) == (tracker.erase_step_count("b"), tracker.erase_step_count("b"))
    assert 3 == tracker.increment_step("a") == tracker.current_step()
    tracker._step_dict["a"] += 4
    with pytest.warns(UserWarning, match="Profiler step count has increased more than 1 - current_step = 3"):
        assert 7 == tracker.increment_step("a")
    with profile() as prof:
        assert 7 == tracker._step_dict["ProfilerStep"]
        prof.step()
        assert 7 == tracker._step_dict["ProfilerStep"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KINETO_USE_DAEMON", "1")
            prof.step()
        assert 8 == tracker.current_step()
    assert "ProfilerStep" not in tracker._step_dict
    profiler._optimizer_post_hook(None, (), {})
    assert 9 == tracker.current_step()


@pytest.mark.parametrize(("variable", "hooks"), [("1", 1), ("", 0)])
def test_optimizer_hook(monkeypatch: pytest.MonkeyPatch, variable: str, hooks: int) -> None:
    """Under KINETO_USE_DAEMON the hook is given to torch's optimizers, where torch is loaded."""

    class Optimizer:
        """What there is of torch.optim.optimizer."""

        def __init__(self) -> None:
            self.hooks: list[Any] = []
            self.register_optimizer_step_post_hook = self.hooks.append

    optimizer = Optimizer()
    monkeypatch.setenv("KINETO_USE_DAEMON", variable)
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", optimizer)
    profiler.steps.install_optimizer_hook()
    assert [profiler._optimizer_post_hook] * hooks == optimizer.hooks


def test_itt() -> None:
    """Without ITT the marks do nothing."""
    assert not profiler.itt.is_available()
    with profiler.itt.range("a {}", 1):
        profiler.itt.mark("b")
    assert -1 == profiler.itt.range_push("c") == profiler.itt.range_pop()


def test_observer(tmp_path: Path) -> None:
    """It takes in what a profile records, per window, and writes a graph as a whole when the profile is left."""
    path = tmp_path / "graph.json"
    observer = profiler.ExecutionTraceObserver().register_callback(path)
    assert observer is observer.register_callback("elsewhere")
    assert (True, False, str(path)) == (observer.is_registered, observer.is_running(), observer.get_output_file_path())
    plan = schedule(wait=1, warmup=0 + 1, active=1)
    with profile(schedule=plan, execution_trace_observer=observer, acc_events=True) as prof:
        for _ in range(6):
            with record_function("a", 'x"'), record_function("b"):
                pass
            assert (prof.step_num % 3 == 2) == observer.is_running()
            prof.step()
        assert not path.exists()
    assert not observer.is_registered
    found = json.loads(path.read_text())
    nodes = {node["id"]: node for node in found["nodes"]}
    tree = [(node["name"], nodes[node["ctrl_deps"]]["name"]) for node in found["nodes"]]
    thread = "[pytorch|profiler|execution_trace|thread]"
    process = "[pytorch|profiler|execution_trace|process]"
    cycle = [[(f"ProfilerStep#{step}", thread), ("a", f"ProfilerStep#{step}"), ("b", "a")] for step in (2, 5)]
    assert [(process, process), (thread, process), *cycle[0], *cycle[1]] == tree
    assert ['x"'] == nodes[4]["inputs"]["values"]
    assert {"schema", "pid", "time", "start_ts", "finish_ts", "nodes"} == set(found)
    observer.unregister_callback()


def test_observers_are_independent(tmp_path: Path) -> None:
    """Two observers write two files, where torch's second one writes none; one that is lost writes its own."""
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


def test_observer_without_a_folder(tmp_path: Path) -> None:
    """It is said when the file is chosen, not after the training."""
    with pytest.raises(FileNotFoundError, match="No such folder to write to"):
        profiler.ExecutionTraceObserver().register_callback(tmp_path / "missing" / "graph.json")


def test_observer_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ENABLE_PYTORCH_EXECUTION_TRACE gives every profile one, with ..._EXTRAS a folder for resources beside it."""
    build = profiler.ExecutionTraceObserver.build_execution_trace_obs_from_env
    assert build() is None
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with profile() as prof:
        pass
    assert isinstance(prof.execution_trace_observer, profiler.ExecutionTraceObserver)
    assert prof.execution_trace_observer.get_resources_dir() is None
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE_EXTRAS", "1")
    observer = build()
    assert observer is not None
    path, resources = observer.get_output_file_path(), observer.get_resources_dir()
    assert path is not None
    assert path.removesuffix(".json") + "_resources" == resources
    observer.cleanup()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.warns(UserWarning, match="Execution trace will not be recorded"):
        assert build() is None


def test_resources_dir(tmp_path: Path) -> None:
    """Only where it is asked for, and made only then; what fails is warned of."""
    folder = profiler.ExecutionTraceObserver.get_resources_dir_for_et_path
    path = tmp_path / "graph.json"
    assert folder(path) is None
    assert str(tmp_path / "graph_resources") == folder(str(path), create_dir=True) == folder(path)
    with pytest.warns(UserWarning, match="Execution trace exception when creating"):
        assert folder(tmp_path / "missing" / "graph.json", create_dir=True) is None


def test_memory_timeline() -> None:
    """Deprecated in torch, and without a source here."""
    prof = profile()
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"record_shapes=True, .* required"):
        prof.export_memory_timeline("x.html")


def test_attribute_of_the_package() -> None:
    """``monitel.profiler`` is there without an import of its own, and no other new name is."""
    import monitel

    assert profiler is monitel.profiler
    nameless: Any = monitel
    with pytest.raises(AttributeError, match="module 'monitel' has no attribute 'nothing'"):
        _ = nameless.nothing
