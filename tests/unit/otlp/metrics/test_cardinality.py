"""Limit of attribute sets for each name: further sets share one overflow series, and totals stay exact."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.producers import run_together

import monitel_otlp
from monitel import COUNT, HISTOGRAM, SUM, Stat
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

OVERFLOW = "otel.metric.overflow"


def record(name: str, sets: range, *, value: float = 1.0) -> None:
    """Close one window for each attribute set of a name."""
    for number in sets:
        stat = Stat(name, [COUNT, SUM], 60.0, attributes={"layer": number})
        stat.add(value)
        stat.flush()


def totals(receiver: Receiver, metric: str) -> dict[Any, float]:
    """Return the last value of each series by its attribute ``layer``, or by ``OVERFLOW``."""
    return {
        OVERFLOW if OVERFLOW in point.attributes else point.attributes["layer"]: point.value
        for point in sorted(receiver.points(metric), key=lambda point: point.time_ns)
    }


def test_default_limit_is_2000(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """All sets after the 2,000th share one series, and one warning is logged."""
    pipeline = start()
    record("wide", range(2000))
    assert [] == warnings_with(caplog, OVERFLOW)
    record("wide", range(2000, 2010))
    assert pipeline.force_flush(DEADLINE)
    expected: dict[Any, float] = {**dict.fromkeys(range(2000), 1), OVERFLOW: 10}
    assert expected == totals(receiver, "wide.count")
    assert 1 == len(warnings_with(caplog, OVERFLOW))
    assert "'wide'" in warnings_with(caplog, OVERFLOW)[0]
    assert "2000" in warnings_with(caplog, OVERFLOW)[0]
    account = pipeline.account()["metrics"]
    assert (2010, 2010) == (account.recorded, account.delivered)


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_totals_over_all_series_are_exact(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    """Counts and sums add up, sets within the limit keep their series, and other names are not affected."""
    pipeline = start(series_limit=limit)
    choose = random.Random(limit)
    added: Counter[int] = Counter()
    for _ in range(300):
        layer, value = choose.randrange(12), choose.randrange(100)
        record("wide", range(layer, layer + 1), value=value)
        added[layer] += value
    record("narrow", range(1))
    assert pipeline.force_flush(DEADLINE)
    first = list(added)[:limit]
    rest = sum(value for layer, value in added.items() if layer not in first)
    expected: dict[Any, float] = {**{layer: added[layer] for layer in first}, OVERFLOW: rest}
    assert expected == totals(receiver, "wide.sum")
    assert 300 == sum(totals(receiver, "wide.count").values())
    assert {0: 1} == totals(receiver, "narrow.count")
    assert 1 == len(warnings_with(caplog, OVERFLOW))
    assert 301 == pipeline.account()["metrics"].delivered


def test_overflow_is_logged_once_for_each_name(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The limit applies to each name separately."""
    start(series_limit=3)
    for _ in range(2):
        for name in ("one", "two"):
            record(name, range(6))
    assert ["'one'", "'two'"] == [message.split()[0] for message in warnings_with(caplog, OVERFLOW)]


def test_application_may_use_the_overflow_attribute(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A Stat with the attributes of the overflow series shares it, and the warning is still logged."""
    pipeline = start(series_limit=2)
    stat = Stat("wide", [COUNT], 60.0, attributes={OVERFLOW: True})
    stat.add(1)
    stat.flush()
    record("wide", range(4))
    assert pipeline.force_flush(DEADLINE)
    assert {0: 1, OVERFLOW: 4} == totals(receiver, "wide.count")
    assert 1 == len(warnings_with(caplog, OVERFLOW))


def test_threads_that_reach_the_limit_together_share_series(receiver: Receiver, start: Start) -> None:
    """If two threads add the same set concurrently, its windows are in one series."""
    pipeline = start(series_limit=40)
    run_together(*(partial(record, "wide", range(40)) for _ in range(4)))
    assert pipeline.force_flush(DEADLINE)
    assert dict.fromkeys(range(40), 4) == totals(receiver, "wide.count")


def test_set_added_by_another_thread_does_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last set within the limit does not overflow if another thread adds it between look-up and lock."""
    queue = WindowQueue(10, 1 << 30, series_limit=1)
    make = queue.table._new

    def make_twice(*arguments: Any) -> Any:
        monkeypatch.undo()
        return make(*arguments), make(*arguments)

    first = Stat("wide", [COUNT], 60.0, attributes={"layer": 0}).definition
    monkeypatch.setattr(queue.table, "_new", make_twice)
    pair: Any = queue.table.of_stat(first)
    one, other = pair
    assert one is other


def test_points_of_the_overflow_series_have_the_rank(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes that identify the process are kept."""
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    pipeline = start(series_limit=1, rank_attribute=True)
    record("wide", range(3))
    assert pipeline.force_flush(DEADLINE)
    points = receiver.points("wide.count")
    assert {3} == {point.attributes["training.rank"] for point in points}
    assert {0: 1, OVERFLOW: 2} == totals(receiver, "wide.count")


def test_distributions_of_further_sets_are_merged(receiver: Receiver, start: Start) -> None:
    """The overflow series has the histogram of all its windows, even if their Stats have different aggregations."""
    pipeline = start(series_limit=1, distributions="histogram")
    for layer in range(5):
        stat = Stat("wide", [HISTOGRAM] if layer % 2 else [COUNT, HISTOGRAM], 60.0, attributes={"layer": layer})
        stat.add(layer + 1)
        stat.flush()
    assert pipeline.force_flush(DEADLINE)
    overflow = [point for point in receiver.points("wide.histogram") if OVERFLOW in point.attributes]
    assert (4, 2 + 3 + 4 + 5) == (overflow[-1].proto.count, overflow[-1].value)
    assert 5 == pipeline.account()["metrics"].delivered


@pytest.mark.parametrize(
    ("limit", "error"),
    [(True, TypeError), ("x", TypeError), (2.0, TypeError), (None, TypeError), (0, ValueError), (-1, ValueError)],
)
def test_limit_is_checked(limit: Any, error: type[Exception]) -> None:
    """The message has the argument and the given value."""
    with pytest.raises(error, match=r"series_limit must be .*(got .*)"):
        monitel_otlp.configure(series_limit=limit)


@pytest.mark.parametrize(
    "attributes",
    [
        lambda: True,
        lambda: 1.5,
        lambda: -(2**63),
        lambda: "ü",
        lambda: "",
        lambda: float("nan"),
        lambda: float("-inf"),
    ],
    ids=["bool", "float", "int", "text", "empty", "nan", "infinity"],
)
def test_attribute_of_any_type_keeps_its_series(
    receiver: Receiver, start: Start, attributes: Callable[[], Any]
) -> None:
    """Stats with equal attributes share a series, even if the value is NaN, which is not equal to itself."""
    pipeline = start(series_limit=2)
    for _ in range(4):
        stat = Stat("odd", [COUNT], 60.0, attributes={"a": attributes()})
        stat.add(1)
        stat.flush()
    assert pipeline.force_flush(DEADLINE)
    assert 4 == receiver.values("odd.count")[-1]
    assert not [point for point in receiver.points("odd.count") if OVERFLOW in point.attributes]
