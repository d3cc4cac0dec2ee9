"""Series: one metric name with one set of attributes, and the limit of their number, as the reference describes it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start
from tests.support.producers import close_windows, run_together
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, HISTOGRAM, SUM, VALUE, Stat
from monitel.testing import ManualClock

OVERFLOW = "otel.metric.overflow"


def test_attributes_keep_their_types(receiver: Receiver, start: Start) -> None:
    """``True``, 1, 1.5 and "1" are four series of one metric; equal attributes are one, even if they are NaN."""
    pipeline = start()
    every: list[dict[str, Any]] = [{"a": True}, {"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": "1", "b": 2}, {}]
    for attributes in [*every, {"a": float("nan")}] * 2:
        stat = Stat("x", [COUNT], 60.0, attributes=attributes)
        stat.add(1)
        stat.flush()
    assert pipeline.force_flush(DEADLINE)
    totals = {repr(point.attributes): point.value for point in receiver.points("x.count")}
    assert dict.fromkeys([*map(repr, every), "{'a': nan}"], 2) == totals


def record(sets: range) -> None:
    for layer in sets:
        stat = Stat("x", [COUNT], 60.0, attributes={"layer": layer})
        stat.add(1)
        stat.flush()


def totals(receiver: Receiver) -> dict[Any, float]:
    points = sorted(receiver.points("x.count"), key=lambda point: point.time_ns)
    return {point.attributes.get("layer", OVERFLOW): point.value for point in points}


def test_default_limit_is_2000_series(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """All sets after the 2,000th share one series, and one warning names the Stat and the limit."""
    pipeline = start()
    record(range(2000))
    assert [] == warnings_with(caplog, OVERFLOW)
    record(range(2000, 2010))
    assert pipeline.force_flush(DEADLINE)
    expected: dict[Any, float] = {**dict.fromkeys(range(2000), 1), OVERFLOW: 10}
    assert expected == totals(receiver)
    assert 1 == len(warnings_with(caplog, OVERFLOW, "'x'", "2000"))


def test_threads_that_add_a_series_together_share_it(receiver: Receiver, start: Start) -> None:
    """The last sets within the limit do not overflow."""
    pipeline = start(series_limit=40)
    run_together(*(partial(record, range(40)) for _ in range(4)))
    assert pipeline.force_flush(DEADLINE)
    assert dict.fromkeys(range(40), 4) == totals(receiver)


def _window(layer: int) -> None:
    stat = Stat("x", [VALUE], 60.0, attributes={"layer": layer})
    stat.add(10**layer)
    stat.flush()


SOURCES: dict[str, Callable[[int], object]] = {
    "x.value": _window,
    "x": lambda layer: monitel.log({"x": 10**layer}, layer=layer),
    "x.count": lambda layer: monitel.counter("x.count", attributes={"layer": layer}).add(10**layer),
}


@pytest.mark.parametrize("metric", SOURCES)
def test_attribute_sets_beyond_the_limit_are_one_series(
    receiver: Receiver, start: Start, clock: ManualClock, caplog: pytest.LogCaptureFixture, metric: str
) -> None:
    """Windows, numbers and counters keep the first sets; the others are one series, and one warning is logged."""
    pipeline = start(series_limit=2)
    for _ in range(2):
        for layer in range(4):
            clock.advance(1)
            SOURCES[metric](layer)
    assert pipeline.force_flush(DEADLINE)
    last = {repr(point.attributes): point.value for point in receiver.points(metric)}
    total = {"x.count": 2}.get(metric, 1)
    rest = 2 * (100 + 1000) if metric == "x.count" else 1000
    assert {"{'layer': 0}": total, "{'layer': 1}": 10 * total, repr({OVERFLOW: True}): rest} == last
    assert 1 == len(warnings_with(caplog, "has more than 2 sets of attributes"))


def test_totals_over_all_series_are_exact(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Counts, sums and histograms of windows beyond the limit add up in the shared series."""
    pipeline = start(series_limit=2, distributions="histogram")
    for number in range(30):
        stat = Stat("x", [COUNT, SUM, HISTOGRAM], 60.0, attributes={"layer": number % 5})
        close_windows(stat, clock, [float(number), 1.0])
    assert pipeline.force_flush(DEADLINE)
    for metric, total in (("x.count", 60), ("x.sum", 465.0), ("x.histogram", 465.0)):
        last = {repr(point.attributes): point.value for point in receiver.points(metric)}
        assert (3, total) == (len(last), sum(last.values()))
    assert 30 == pipeline.account()["metrics"].delivered
