"""Window.merge: two windows give the window of all their samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from types import ModuleType

finite = st.floats(-1e150, 1e150)
anything = finite | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])


def window_of(monitel: ModuleType, samples: list[float], aggregations: list[Any] | None = None, step: int = 0) -> Any:
    """Return the window of some samples, added at ``step`` and the steps after it."""
    with monitel.testing.ManualClock() as clock, monitel.testing.capture_events() as events:
        clock.advance(step)
        stat = monitel.Stat("x", list(monitel.Aggregation) if aggregations is None else aggregations, 1e6)
        for number, sample in enumerate(samples, step):
            monitel.set_step(number)
            stat.add(sample)
        clock.advance(len(samples))
        stat.flush()
        monitel._window.set_step(None)
    return events[0].window


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=20), st.lists(finite, min_size=1, max_size=20))
def test_merged_window_has_all_samples(
    both_twins: dict[str, ModuleType], first: list[float], second: list[float]
) -> None:
    """Sum, mean and standard deviation agree within rounding, all other numbers exactly."""
    for monitel in both_twins.values():
        one, other = window_of(monitel, first), window_of(monitel, second, step=len(first))
        found, expected = one.merge(other), window_of(monitel, first + second)
        exact = ["start_ns", "end_ns", "count", "min", "max", "last", "discarded", "first_step", "last_step"]
        assert [repr(getattr(expected, name)) for name in exact] == [repr(getattr(found, name)) for name in exact]
        assert list(expected.histogram.buckets()) == list(found.histogram.buckets())
        size = max(map(abs, first + second))
        assert expected.sum == pytest.approx(found.sum, rel=1e-12, abs=1e-12 * size * found.count)
        assert expected.mean == pytest.approx(found.mean, rel=1e-12, abs=1e-12 * size * found.count)
        assert expected.stddev == pytest.approx(found.stddev, rel=1e-6, abs=1e-6 * size)


@settings(deadline=None)
@given(st.lists(anything, min_size=1, max_size=8), st.lists(anything, min_size=1, max_size=8))
def test_nan_and_infinities_follow_the_rule_of_one_window(
    both_twins: dict[str, ModuleType], first: list[float], second: list[float]
) -> None:
    """A first NaN stays in min and max and a later one is ignored; sum and standard deviation are not finite."""
    for monitel in both_twins.values():
        one, other = window_of(monitel, first), window_of(monitel, second)
        found, expected = one.merge(other), window_of(monitel, first + second)
        extremes = one if math.isnan(second[0]) else expected  # the other window's extremes are NaN
        assert (repr(extremes.min), repr(extremes.max)) == (repr(found.min), repr(found.max))
        assert (expected.count, repr(expected.last)) == (found.count, repr(found.last))
        if not math.isfinite(expected.sum):
            assert repr(expected.sum) == repr(found.sum)
        assert math.isfinite(expected.stddev) == math.isfinite(found.stddev)
        assert expected.histogram.nonfinite == found.histogram.nonfinite


def test_samples_of_merged_windows_may_alternate(monitel: ModuleType) -> None:
    """With other_last=False the last sample and the last step are those of the first window."""
    one, other = window_of(monitel, [1.0, 4.0], step=5), window_of(monitel, [2.0], step=6)
    found = one.merge(other, other_last=False)
    assert (3, 7.0, 4.0, 5, 6) == (found.count, found.sum, found.last, found.first_step, found.last_step)


@pytest.mark.parametrize("name", ["STDDEV", "HISTOGRAM"])
def test_an_aggregation_of_one_window_only(monitel: ModuleType, name: str) -> None:
    """The merged window has a standard deviation or a histogram only if both windows have one."""
    without, collecting = (window_of(monitel, [1.0, 3.0], more) for more in ([], [monitel.Aggregation[name]]))
    field = name.lower()
    assert getattr(without.merge(collecting), field) is None
    assert getattr(collecting.merge(without), field) is None
    assert getattr(without.merge(without), field) is None
    assert collecting.definition is without.merge(collecting).definition


def test_standard_deviation_of_distant_windows(monitel: ModuleType) -> None:
    """The distance of the means counts, and squares that overflow give infinity."""
    one, other = window_of(monitel, [1.0, 1.0]), window_of(monitel, [3.0, 3.0])
    assert 1.0 == one.merge(other).stddev
    assert math.inf == window_of(monitel, [-1e300]).merge(window_of(monitel, [1e300])).stddev


def test_snapshot_has_the_fields_of_a_window(monitel: ModuleType) -> None:
    """Both twins pass a Snapshot, whose fields are those of Window in the same order."""
    stat = monitel.Stat("x", list(monitel.Aggregation), 60.0)
    samples = monitel.pending.PendingSamples(stat.definition, lambda: None)
    closed: list[tuple[Any, Any]] = []

    class Recording(monitel.Stat):  # type: ignore[misc, name-defined]  # of the twin under test
        def _log_closed(self, snapshot: Any, reserved: Any) -> None:
            closed.append((snapshot, reserved))

    recording = Recording("x", list(monitel.Aggregation), 60.0)
    recording.add(2.0)
    recording._reserve(samples)
    recording.flush()
    ((snapshot, reserved),) = closed
    assert (monitel.snapshot.Snapshot, monitel.snapshot.Reserved) == (type(snapshot), type(reserved))
    assert tuple(monitel.Window.__match_args__[1:]) == snapshot._fields
    assert (1, 2.0, 2.0, 2.0, 2.0, 0.0) == (*snapshot[2:7], snapshot.stddev)
    assert (samples, 1, False, True) == reserved
