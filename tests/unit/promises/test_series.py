"""Series: one metric name with one set of attributes, and the limit of their number, as the reference describes it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.checks import Warned
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, delivered_by
from tests.support.producers import record_window, run_together
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, HISTOGRAM, SUM, VALUE
from monitel.testing import ManualClock

OVERFLOW = "otel.metric.overflow"


def test_attributes_keep_their_types(receiver: Receiver, start: Start) -> None:
    """``True``, 1, 1.5 and "1" are four series of one metric; equal attributes are one, even if they are NaN."""
    every: list[dict[str, Any]] = [{"a": True}, {"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": "1", "b": 2}, {}]
    with delivered_by(start()):
        for attributes in [*every, {"a": float("nan")}] * 2:
            record_window("x", [COUNT], 1, attributes=attributes)
    totals = {repr(point.attributes): point.value for point in receiver.points("x.count")}
    assert dict.fromkeys([*map(repr, every), "{'a': nan}"], 2) == totals


def totals(receiver: Receiver, metric: str) -> dict[Any, float]:
    """Return the last value of each series by its layer."""
    points = sorted(receiver.points(metric), key=lambda point: point.time_ns)
    return {point.attributes.get("layer", OVERFLOW): point.value for point in points}


def test_threads_that_add_a_series_together_share_it(receiver: Receiver, start: Start) -> None:
    """The last sets within the limit do not overflow."""
    with delivered_by(start(series_limit=40)):

        def record() -> None:
            for layer in range(40):
                record_window("x", [COUNT], 1, attributes={"layer": layer})

        run_together(*[record] * 4)
    assert dict.fromkeys(range(40), 4) == totals(receiver, "x.count")


EVERY = [COUNT, SUM, HISTOGRAM, VALUE]
#: A function that records an amount, and its metrics, of which those that add up are True.
SOURCES: dict[str, tuple[Callable[[int, int], object], dict[str, bool]]] = {
    "window": (
        lambda layer, amount: record_window("x", EVERY, amount, attributes={"layer": layer}),
        {"x.sum": True, "x.histogram": True, "x.value": False},
    ),
    "number": (lambda layer, amount: monitel.log({"x": amount}, layer=layer), {"x": False}),
    "counter": (lambda layer, amount: monitel.counter("x", attributes={"layer": layer}).add(amount), {"x": True}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_attribute_sets_beyond_the_limit_are_one_series(
    receiver: Receiver, start: Start, clock: ManualClock, warned: Warned, source: str
) -> None:
    """The first sets are kept, the others add up in one series, and one warning is logged; each item is delivered."""
    pipeline, (record, metrics) = start(series_limit=2, distributions="histogram"), SOURCES[source]
    for _ in range(2):
        for layer in range(4):
            clock.advance(1)
            record(layer, 10**layer)
    assert pipeline.force_flush(DEADLINE)
    for metric, adds_up in metrics.items():
        expected = {0: 2, 1: 20, OVERFLOW: 2200} if adds_up else {0: 1, 1: 10, OVERFLOW: 1000}
        assert expected == totals(receiver, metric)
    assert 1 == len(warned(OVERFLOW)) == len(warned("'x'", "has more than 2 sets of attributes"))
    assert source == "counter" or 8 == pipeline.account()["metrics"].delivered
