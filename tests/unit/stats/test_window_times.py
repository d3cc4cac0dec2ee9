"""Windows: when they open and close, their samples, and their times."""

from __future__ import annotations

import gc
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    MakeStat = Callable[..., Any]

EPOCH_NS = 1_767_225_600_000_000_000  # start of ManualClock; monotonic time 0 is a boundary


def times(events: Iterable[Any]) -> list[tuple[float, float]]:
    """Return start and end of each window, in seconds since the clock started."""
    return [((event.window.start_ns - EPOCH_NS) / 1e9, (event.window.end_ns - EPOCH_NS) / 1e9) for event in events]


def counts(events: Iterable[Any]) -> list[int]:
    """Return the number of samples of each window."""
    return [event.window.count for event in events]


def test_windows_end_at_multiples_of_their_size(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """Boundaries are multiples of window_size, the first window is shorter, and a window ends where the next begins."""
    clock.advance(70)
    stat = make_stat()
    for seconds in (5, 44.999, 0.001, 61):  # 75, 119.999, 120: a sample at the boundary is in the next window
        clock.advance(seconds)
        stat.add(seconds)
    assert [(70, 120), (120, 180)] == times(events)
    assert [2, 1] == counts(events)
    assert 1 == stat.count


def test_a_gap_is_one_event(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """Without samples no window is closed; empty windows log nothing, and times are those of the old interval."""
    stat = make_stat()
    stat.add(1)
    clock.advance(15 * 60 + 1)
    assert ([], 1, 0.0) == (events, stat.count, sum(stat.get().values()))
    stat.add(2)
    stat.flush()
    assert [(0, 60), (900, 901)] == times(events)


def test_max_samples_closes_the_window(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """The last sample closes the window at its time; further samples of the interval are discarded and counted."""
    stat = make_stat("x", None, 60.0, 2)
    clock.advance(10)
    for sample in (1, 2, 3, 4):
        stat.add(sample)
    assert (0, 2, [(0, 10)]) == (stat.count, stat.discarded, times(events))
    clock.advance(60)
    stat.add(5)
    assert (1, 3.0) == (stat.count, stat.get()[monitel.SUM]), "get() still is the last closed window"
    stat.add(6)
    stat.add(7)
    assert [(0, 10), (60, 70)] == times(events)
    assert [(2, 0), (2, 2)] == [(event.window.count, event.window.discarded) for event in events]
    clock.advance(60)
    stat.add(8)
    stat.flush()
    assert ((1, 1), 3) == ((events[-1].window.count, events[-1].window.discarded), stat.discarded)


def test_max_samples_of_one(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """With max_samples=1 each interval gives one event with one sample."""
    stat = make_stat("x", None, 60.0, 1)
    for _ in range(3):
        stat.add(1)
        stat.add(2)
        clock.advance(60)
    assert ([1, 1, 1], [1.0] * 3, 3) == (counts(events), [event.window.sum for event in events], stat.discarded)


def test_flush_does_not_end_the_interval(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """After flush() the same interval continues; max_samples applies to the interval, and restarts at the boundary."""
    stat = make_stat("x", None, 60.0, 3)
    stat.add(1)
    clock.advance(10)
    stat.flush()
    clock.advance(10)
    for sample in (2, 3, 4):  # three samples with the flushed one: max_samples is reached
        stat.add(sample)
    clock.advance(45)
    for sample in (5, 6, 7):
        stat.add(sample)
    assert [(0, 10), (10, 20), (60, 65)] == times(events)
    assert ([1, 2, 3], 1) == (counts(events), stat.discarded)


def test_flush_after_the_boundary(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """A window whose interval has ended ends at the boundary, even if a flush closes it later."""
    stat = make_stat()
    stat.add(1)
    clock.advance(100)
    stat.flush()
    stat.add(2)
    stat.flush()
    assert [(0, 60), (60, 100)] == times(events)


def test_expired_windows_are_closed_on_time(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """close_expired_windows() closes expired windows at their boundary, and no others."""
    short, idle, long = make_stat("short", window_size=20.0), make_stat("idle"), make_stat("long")
    short.add(1)
    long.add(1)
    clock.advance(19.999)
    assert 0 == monitel.close_expired_windows()
    clock.advance(0.001)
    assert (1, 0, 1) == (monitel.close_expired_windows(), short.count, long.count)
    clock.advance(15)
    short.add(2)  # boundaries do not depend on the first sample
    clock.advance(5)
    assert (1, 0) == (monitel.close_expired_windows(), idle.count)
    assert [("short", 0, 20), ("short", 20, 40)] == [
        (event.window.name, *at) for event, at in zip(events, times(events), strict=True)
    ]


def test_expiry_pauses(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pause() is called after each 0.5 ms of the thread's work, which includes handlers; oldest Stat first."""
    work = [0]

    def handler(_event: Any) -> None:
        work[0] += 10_000

    monkeypatch.setattr(monitel.registry, "_work_ns", lambda: work[0])
    monitel.register_event_handler(handler)
    stats = [make_stat(f"x{number}") for number in range(120)]
    for stat in reversed(stats):
        stat.add(1)
    clock.advance(60)
    pauses: list[int] = []

    assert 120 == monitel.close_expired_windows(lambda: pauses.append(len(events)))
    assert [stat.name for stat in stats] == [event.window.name for event in events]
    assert [50, 100] == pauses


def test_expiry_restarts_max_samples(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """After expiry the next interval takes max_samples again."""
    stat = make_stat("x", None, 60.0, 2)
    stat.add(1)
    clock.advance(61)
    monitel.close_expired_windows()
    for sample in (2, 3, 4):
        stat.add(sample)
    assert ([1, 2], 1) == (counts(events), stat.discarded)


def test_flush_of_everything(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """monitel.flush() closes the open window of every live Stat, oldest first."""
    stats = [make_stat(name) for name in "cab"]
    for stat in stats[::-1]:
        stat.add(1)
    del stats[1], stat
    assert ["a"] == [event.window.name for event in events]
    monitel.flush()
    monitel.flush()
    assert ["a", "c", "b"] == [event.window.name for event in events]


def test_destructor_logs_the_open_window(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """A Stat that is released, or collected in a reference cycle, logs its open window if it has samples."""
    stat = make_stat("scope")
    stat.add(1)
    clock.advance(10)
    del stat
    stat = make_stat("full", None, 60.0, 1)
    stat.add(1)
    stat.add(2)
    events.pop()
    del stat
    assert [(0, 10)] == times(events)
    cycle = [make_stat("cycle")]
    cycle[0].add(1)
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert ["scope", "cycle"] == [event.window.name for event in events]


def test_wall_clock_set_forward(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """The wall time of a boundary is computed when the window closes: wall now - (monotonic now - boundary)."""
    stat = make_stat()
    stat.add(1)
    clock.set_wall_clock(1000)
    clock.advance(70)
    stat.add(2)
    assert [(1000, 1060)] == times(events)


def test_wall_clock_set_back(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """The times of one Stat only rise, even if the wall clock is set back."""
    clock.advance(60)
    stat = make_stat()
    for _ in range(3):
        stat.add(1)
        clock.advance(10)
        stat.flush()
        clock.set_wall_clock(-1000)
    clock.set_wall_clock(3000)
    stat.add(1)
    clock.advance(10)
    stat.flush()
    windows = [event.window for event in events]
    assert [(60, 70), (70, 70), (70, 70), (70, 100)] == [(round(a), round(b)) for a, b in times(events)]
    assert [True] * 4 == [window.start_ns < window.end_ns for window in windows]
    assert [True] * 3 == [a.end_ns <= b.start_ns for a, b in pairwise(windows)]


def test_wall_clock_set_back_after_construction(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """No window starts before the wall time at which its Stat was created."""
    stat = make_stat()
    clock.set_wall_clock(-500)
    stat.add(1)
    clock.advance(60)
    stat.add(1)
    ((start, end),) = times(events)
    assert start == 0
    assert 0 < end < 1


def test_clock_that_goes_back(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """If the monotonic clock goes back, no window is closed: the sample counts in the open window."""
    clock.advance(100)
    stat = make_stat()
    stat.add(1)
    clock._elapsed_ns = 10 * 10**9
    stat.add(2)
    assert ([], 2) == (events, stat.count)


def test_one_clock_reading_per_add(make_stat: MakeStat, monitel: ModuleType) -> None:
    """add() reads the clock once (torch: up to 4 times), even if it closes a window."""

    class Ticking(monitel.testing.ManualClock):  # type: ignore[misc, name-defined]
        readings = 0

        def monotonic_ns(self) -> int:
            self.readings += 1
            return super().monotonic_ns()  # type: ignore[no-any-return]

    with Ticking() as clock:
        stat = make_stat()
        before = clock.readings
        for number in range(1, 11):
            stat.add(number)
            assert number == clock.readings - before


def test_time_passes_within_an_add(make_stat: MakeStat, monitel: ModuleType) -> None:
    """If a boundary passes between two readings of the clock, no extra event with one sample is logged."""

    class Running(monitel.testing.ManualClock):  # type: ignore[misc, name-defined]
        def monotonic_ns(self) -> int:
            self.advance(0.7)
            return super().monotonic_ns()  # type: ignore[no-any-return]

    with Running(), monitel.testing.capture_events() as events:
        stat = make_stat("x", None, 10.0, 5)
        for number in range(500):
            stat.add(number)
    assert 500 == sum(counts(events)) + stat.count + stat.discarded
    assert {5} == set(counts(events))


def test_steps_of_a_window(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """A window has the step of its first and of its last sample; None if no step was set."""
    stat = make_stat()
    stat.add(1)
    monitel.set_step(3)
    stat.flush()
    stat.add(1)
    monitel.set_step(4)
    stat.add(1)
    monitel.set_step(2**63 - 1)
    stat.flush()
    stat.add(1)
    clock.advance(60)
    monitel.set_step(0)
    stat.add(1)
    expected = [(None, None), (3, 4), (2**63 - 1, 2**63 - 1)]
    assert expected == [(event.window.first_step, event.window.last_step) for event in events]
    assert 0 == monitel.get_step()


@pytest.mark.parametrize(
    ("step", "error"), [(-1, ValueError), (2**63, ValueError), (1.0, TypeError), (None, TypeError)]
)
def test_wrong_steps(monitel: ModuleType, step: Any, error: type[Exception]) -> None:
    """A step is an int from 0 to 2**63 - 1."""
    with pytest.raises(error, match=r"set_step\(\) takes"):
        monitel.set_step(step)
    assert monitel.get_step() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the coarse clock is Linux's")
def test_the_coarse_clock_is_for_long_windows(make_stat: MakeStat, twin: str) -> None:
    """The coarse clock is only read in C, and if its resolution is at most a tenth of the window."""
    resolution_ms = round(time.clock_getres(6) * 1000)  # CLOCK_MONOTONIC_COARSE, which time does not name
    sizes = [10 * resolution_ms - 1, 10 * resolution_ms, 60_000]
    expected = [False, twin == "c", twin == "c"]
    assert expected == [make_stat(window_size=size / 1000)._coarse for size in sizes]


@pytest.mark.parametrize("window_ms", [36, 120], ids=["fine", "coarse"])
def test_windows_of_the_systems_clocks(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], window_ms: int
) -> None:
    """Without a test's clock, add() and expiry use the same monotonic clock of the system."""
    window_ns = window_ms * 10**6
    made_ns = time.time_ns()
    stat = make_stat(window_size=window_ms / 1000)
    deadline = time.monotonic() + 30
    while len(events) < 4:
        assert time.monotonic() < deadline
        stat.add(1.0)
        monitel.close_expired_windows()
    now_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    windows = [event.window for event in events]
    assert [True] * 4 == [made_ns <= each.start_ns < each.end_ns <= now_ns for each in windows]
    cells = [(each.end_ns - now_ns + monotonic_ns) / window_ns for each in windows]
    assert [] == [cell for cell in cells if abs(cell - round(cell)) > 0.25]
    assert len(cells) == len({round(cell) for cell in cells})
