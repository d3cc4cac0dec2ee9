"""Pending samples: they count immediately, and their windows are logged when all values are known."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]

FIELDS = ["start_ns", "end_ns", "count", "min", "max", "last", "discarded", "first_step", "last_step"]


class Device:
    """A device that provides values on request."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, float | None]] = []
        self.fetched = 0

    def add(self, stat: Any, value: float | None) -> None:
        """Add a pending sample with this value on the device."""
        stat._add_pending(lambda sample: self.waiting.append((sample, value)), self.fetch)

    def give(self, number: int = 1_000_000) -> None:
        """Resolve some of the values, the oldest first."""
        given, self.waiting = self.waiting[:number], self.waiting[number:]
        for stat in {sample.resolve(value) for sample, value in given}:
            stat._log_resolved()

    def fetch(self) -> None:
        """Count the calls by a flush, and resolve nothing."""
        self.fetched += 1


@pytest.fixture
def device() -> Device:
    """Return a device that keeps its values."""
    return Device()


def windows(events: list[Any]) -> list[Any]:
    """Return the windows that were logged."""
    return [event.window for event in events if event.window is not None]


def test_a_window_waits_for_its_values(make_stat: MakeStat, clock: Any, events: list[Any], device: Device) -> None:
    """A window closes on time, and is logged with the time of its end when the last value has arrived."""
    stat = make_stat()
    for value in (3.0, 1.0, 2.0):
        device.add(stat, value)
    assert 3 == stat.count
    clock.advance(61)
    stat.add(7.0)
    assert 1 == stat.count
    device.give(2)
    assert [] == events
    clock.advance(1)
    device.give()
    (window,) = windows(events)
    start, end = clock.time_ns() - 62_000_000_000, clock.time_ns() - 2_000_000_000
    assert (start, end, 3, 6.0, 1.0, 3.0, 2.0) == tuple(
        getattr(window, name) for name in ("start_ns", "end_ns", "count", "sum", "min", "max", "last")
    )
    assert stat.quantile(1.0) == 3.0 == stat.get()[next(a for a in stat.get() if a.name == "MAX")]


def test_windows_come_in_order(make_stat: MakeStat, clock: Any, events: list[Any], device: Device) -> None:
    """A complete window waits for earlier ones."""
    stat = make_stat()
    device.add(stat, 1.0)
    clock.advance(60)
    stat.add(2.0)
    clock.advance(60)
    stat.add(3.0)
    stat.flush()
    assert [] == events
    device.give()
    assert [1.0, 2.0, 3.0] == [window.sum for window in windows(events)]
    stat.add(4.0)
    stat.flush()
    assert [1.0, 2.0, 3.0, 4.0] == [window.sum for window in windows(events)]


def test_steps_are_those_of_the_samples(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], device: Device
) -> None:
    """A window has the steps at which its samples were added, not those at which the values arrived."""
    stat = make_stat()
    for step in (5, 6):
        monitel.set_step(step)
        device.add(stat, 1.0)
    monitel.set_step(9)
    device.give()
    stat.flush()
    assert [(5, 6)] == [(window.first_step, window.last_step) for window in windows(events)]


@pytest.mark.parametrize("order", ["lf", "fl", "lfl", "flf"])
def test_pending_and_known_samples_in_one_window(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], device: Device, order: str
) -> None:
    """``last`` and the steps follow the order of adding, not the order in which values arrive."""
    pending, reference = make_stat(), make_stat()
    for step, kind in enumerate(order):
        monitel.set_step(step)
        value = (5.0, -1.0, 3.0)[step]
        if kind == "l":
            device.add(pending, value)
        else:
            pending.add(value)
        reference.add(value)
    pending.flush()
    device.give()
    reference.flush()
    ours, theirs = windows(events)
    names = [*FIELDS[2:], "sum"]
    assert [getattr(theirs, name) for name in names] == [getattr(ours, name) for name in names]


def test_max_samples_includes_pending_samples(
    make_stat: MakeStat, clock: Any, events: list[Any], device: Device
) -> None:
    """A pending sample can fill the window; further samples are discarded and not sent to the device."""
    stat = make_stat("x", None, 60.0, 3)
    device.add(stat, 1.0)
    stat.add(2.0)
    device.add(stat, 3.0)
    assert 0 == stat.count
    device.add(stat, 4.0)
    stat.add(5.0)
    assert (2, 2) == (len(device.waiting), stat.discarded)
    device.give()
    clock.advance(60)
    device.add(stat, 6.0)
    device.give()
    stat.flush()
    assert [(3, 6.0, 0), (1, 6.0, 2)] == [(each.count, each.sum, each.discarded) for each in windows(events)]


def test_flush_waits_for_values(make_stat: MakeStat, events: list[Any], device: Device) -> None:
    """A flush waits for missing values; a window whose values arrive later is logged then."""
    stat = make_stat()
    device.add(stat, 1.0)
    stat.flush()
    assert (1, []) == (device.fetched, events)
    device.give()
    assert [1.0] == [window.sum for window in windows(events)]
    stat.flush()
    assert 1 == device.fetched
    device.fetch = device.give  # type: ignore[method-assign]
    device.add(stat, 2.0)
    stat.flush()
    assert [1.0, 2.0] == [window.sum for window in windows(events)]


def test_idle_windows_expire(make_stat: MakeStat, monitel: ModuleType, clock: Any, device: Device) -> None:
    """A window with pending samples only expires, too."""
    stat = make_stat()
    device.add(stat, 1.0)
    assert 0 == monitel.close_expired_windows()
    clock.advance(60)
    assert 1 == monitel.close_expired_windows()
    assert 0 == stat.count


def test_lost_values(make_stat: MakeStat, events: list[Any], device: Device) -> None:
    """A window has the samples whose values arrived; a window that lost all values is not logged."""
    stat = make_stat()
    for values in ((None, 2.0, 4.0, None), (None, None), (7.0,)):
        for value in values:
            device.add(stat, value)
        stat.flush()
    device.give()
    assert [(2, 6.0, 4.0), (1, 7.0, 7.0)] == [(each.count, each.sum, each.last) for each in windows(events)]


def test_failing_handler(make_stat: MakeStat, monitel: ModuleType, events: list[Any], device: Device) -> None:
    """All windows are logged; then the exception is raised."""

    def fail(event: Any) -> None:
        if event.window.sum == 1.0:
            raise LookupError

    stat = make_stat()
    for value in (1.0, 2.0):
        device.add(stat, value)
        stat.flush()
    with monitel.register_event_handler(fail), pytest.raises(LookupError):
        device.give()
    assert [1.0, 2.0] == [window.sum for window in windows(events)]


def test_sample_is_added_before_a_handler_fails(make_stat: MakeStat, monitel: ModuleType, clock: Any) -> None:
    """As with ``add``, the sample that closes the old window is in the new one."""
    device, stat = Device(), make_stat()
    stat.add(1.0)
    clock.advance(60)

    def fail(_event: object) -> None:
        raise LookupError

    with monitel.register_event_handler(fail), pytest.raises(LookupError):
        device.add(stat, 2.0)
    assert (1, 1) == (stat.count, len(device.waiting))


def test_pending_sample_keeps_its_stat_alive(make_stat: MakeStat, events: list[Any], device: Device) -> None:
    """The Stat is logged by its destructor after its values have arrived."""
    stat = make_stat()
    device.add(stat, 1.0)
    device.add(stat, 2.0)
    del stat
    device.give()
    assert [3.0] == [window.sum for window in windows(events)]


def test_resolved_samples_take_no_memory(make_stat: MakeStat, device: Device) -> None:
    """Values that have arrived are added up, even if the window never closes."""
    stat = make_stat("x", None, math.inf)
    for value in range(1000):
        device.add(stat, float(value))
        device.give()
    samples, _ = stat._reserve(None)
    assert 1000 == samples.count
    assert [] == [value for value in vars(samples).values() if isinstance(value, (list, dict, set))]


def test_stat_that_was_not_initialised(monitel: ModuleType) -> None:
    """The error is the same as that of ``add``."""
    stat = monitel.Stat.__new__(monitel.Stat)
    with pytest.raises(RuntimeError, match=r"Stat.__init__\(\) was not called"):
        stat._reserve(None)


operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["pending", "known"]), st.floats(-1e6, 1e6)),
        st.tuples(st.just("give"), st.integers(1, 4)),
        st.tuples(st.just("advance"), st.sampled_from([1.0, 20.0, 70.0])),
        st.tuples(st.just("step"), st.integers(0, 9)),
        st.tuples(st.just("flush"), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(operations, st.sampled_from([3, 2**63 - 1]))
def test_same_windows_as_with_known_values(
    both_twins: dict[str, ModuleType], done: list[Any], max_samples: int
) -> None:
    """Any operations give the same windows as if all values had been known immediately."""
    for monitel in both_twins.values():
        with monitel.testing.ManualClock() as clock, monitel.testing.capture_events() as events:
            compare(monitel, clock, events, done, max_samples)
        monitel._window.set_step(None)


def compare(monitel: ModuleType, clock: Any, events: list[Any], done: list[Any], max_samples: int) -> None:
    """Run all operations with two Stats: one gets pending samples, the other one known values."""
    device = Device()
    pending, known = (monitel.Stat(name, list(monitel.Aggregation), 60.0, max_samples) for name in ("pending", "known"))
    do: dict[str, Callable[[Any], object]] = {
        "pending": lambda value: [add(value) for add in (partial(device.add, pending), known.add)],
        "known": lambda value: (pending.add(value), known.add(value)),
        "give": device.give,
        "advance": clock.advance,
        "step": monitel.set_step,
        "flush": lambda _: (pending.flush(), known.flush()),
    }
    for kind, argument in [*done, ("flush", None), ("give", 1000)]:
        do[kind](argument)
        assert (known.count, known.discarded) == (pending.count, pending.discarded)
    ours, theirs = ([each for each in windows(events) if each.name == name] for name in ("pending", "known"))
    for mine, its in zip(ours, theirs, strict=True):
        assert [getattr(its, name) for name in FIELDS] == [getattr(mine, name) for name in FIELDS]
        size = max(1.0, abs(its.min), abs(its.max))
        assert mine.sum == pytest.approx(its.sum, rel=1e-12, abs=1e-12 * size * its.count)
        assert mine.stddev == pytest.approx(its.stddev, rel=1e-6, abs=1e-6 * size)
        assert list(its.histogram.buckets()) == list(mine.histogram.buckets())


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_pending_samples_alone_give_identical_numbers(both_twins: dict[str, ModuleType], values: list[float]) -> None:
    """Each number of the window is equal bit for bit, including NaN and infinities."""
    for monitel in both_twins.values():
        with monitel.testing.ManualClock(), monitel.testing.capture_events() as events:
            device = Device()
            stats = [monitel.Stat("x", list(monitel.Aggregation), 60.0) for _ in range(2)]
            for value in values:
                device.add(stats[0], value)
                stats[1].add(value)
            device.give()
            for stat in stats:
                stat.flush()
            pending, known = windows(events)
            assert repr(known) == repr(pending)
