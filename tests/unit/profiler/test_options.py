"""Arguments of a profile, and the names of torch.profiler that have little or no effect."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from monitel import profiler
from monitel.profiler import ProfilerActivity, profile, record_function

pytestmark = pytest.mark.usefixtures("clean_profiler")


def names(prof: Any) -> list[str]:
    """Return the names of the events."""
    return [event.trace_name for event in prof.events()]


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
def test_invalid_activities(activities: Any, error: type[Exception], message: str) -> None:
    """Invalid activities are refused as in torch, activities of devices with a hint to torch."""
    with pytest.raises(error, match=message):
        profile(activities=activities)


def test_activities() -> None:
    """The CPU can be requested by default, by name, in a mapping and from a generator."""
    cpu = ProfilerActivity.CPU
    for activities in (None, [cpu], iter([cpu]), [{cpu: ["CPU_OP"]}]):
        assert {ProfilerActivity.CPU} == profile(activities=activities).activities
    assert {ProfilerActivity.CPU} == profiler.supported_activities()
    assert profiler.kineto_available()
    assert (2, 20) == (int(ProfilerActivity.CUDA), int(profiler.DeviceType.PrivateUse1))


@pytest.mark.parametrize(("kinds", "expected"), [([], []), (["CPU_OP"], []), (["USER_ANNOTATION"], ["a"])])
def test_kinds_of_events(kinds: list[str], expected: list[str]) -> None:
    """A mapping selects kinds of events; ranges are recorded if USER_ANNOTATION is among them."""
    with profile(activities=[{ProfilerActivity.CPU: kinds}]) as prof, record_function("a"):
        pass
    assert expected == names(prof)


def test_toggle_collection() -> None:
    """Ranges that begin while collection is off are omitted."""
    with profile() as prof:
        for name, activity in [("a", None), ("b", ProfilerActivity.CPU), ("c", ProfilerActivity.CPU)]:
            if activity:
                prof.toggle_collection_dynamic(name == "c", [activity])
                prof.toggle_collection_dynamic(name == "c", {activity})
            prof.toggle_collection_dynamic(enable=False, activities=[ProfilerActivity.CUDA])
            with record_function(name):
                pass
    assert ["a", "c"] == names(prof)


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
    assert dict.fromkeys(options, "1") == profs[0]._cycles[0].metadata


def test_use_cuda() -> None:
    """use_cuda warns that it is deprecated, and has no effect."""
    with pytest.warns(FutureWarning, match="`use_cuda` is deprecated"):
        assert {ProfilerActivity.CPU} == profile(use_cuda=True).activities


def test_arguments_are_keyword_only() -> None:
    """Positional arguments are refused, as in torch."""
    anything: Any = profile
    with pytest.raises(TypeError):
        anything([ProfilerActivity.CPU])


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


def test_garbage_collections() -> None:
    """With record_python_gc_info each garbage collection is recorded as a range."""
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


def test_trace_only() -> None:
    """trace_only has no effect: events() returns the ranges."""
    with profile(experimental_config=profiler._ExperimentalConfig(trace_only=True)) as prof, record_function("a"):
        pass
    assert ["a"] == names(prof)


def test_step_tracker() -> None:
    """The step is the maximum of the counts, never decreases, and a jump is warned about."""
    tracker = profiler.KinetoStepTracker
    assert (1, 2, 3) == tuple(tracker.increment_step(each) for each in ("a", "b", "b"))
    assert 3 == tracker.current_step()
    assert (True, False) == (tracker.erase_step_count("b"), tracker.erase_step_count("b"))
    assert 3 == tracker.increment_step("a") == tracker.current_step()
    tracker._step_dict["a"] += 4
    with pytest.warns(UserWarning, match="Profiler step count has increased more than 1 - current_step = 3"):
        assert 7 == tracker.increment_step("a")
    profiler._optimizer_post_hook(None, (), {})
    assert 8 == tracker.current_step()


def test_itt() -> None:
    """Marks for ITT have no effect."""
    assert not profiler.itt.is_available()
    with profiler.itt.range("a {}", 1):
        profiler.itt.mark("b")
    assert -1 == profiler.itt.range_push("c") == profiler.itt.range_pop()


def test_memory_timeline() -> None:
    """export_memory_timeline is an error: allocations are not recorded."""
    with pytest.raises(ValueError, match=r"use torch\.profiler\.profile"):
        profile().export_memory_timeline("x.html")


def test_attribute_of_the_package() -> None:
    """``monitel.profiler`` needs no separate import, and other names are an AttributeError."""
    import monitel

    assert profiler is monitel.profiler
    nameless: Any = monitel
    with pytest.raises(AttributeError, match="module 'monitel' has no attribute 'nothing'"):
        _ = nameless.nothing
