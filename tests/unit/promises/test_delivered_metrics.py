"""Windows and logged numbers as metric points at a receiver, as the reference describes them."""

import math
import re
from itertools import accumulate

import pytest
from tests.support.checks import SetEnv, Warned
from tests.support.inbox import CUMULATIVE, DEADLINE, TEMPORALITY, Point
from tests.support.pipelines import Start, delivered_by
from tests.support.producers import close_windows, fill, record_window
from tests.support.receiver import Receiver
from tests.unit.promises.reference_tables import code, kind_of, table

import monitel
from monitel import COUNT, HISTOGRAM, MAX, SUM, VALUE, Aggregation, Histogram, Stat
from monitel.testing import ManualClock

DELTA = 1
START_NS = 1_767_225_600 * 10**9  # initial time of the fixture ``clock``
MINUTE_NS = 60 * 10**9
MILLISECOND_NS = 10**6


def of_stat(receiver: Receiver, name: str = "x") -> list[Point]:
    """Return the points of all metrics of a Stat, without the zeros at the start of cumulative sums."""
    names = {point.metric for point in receiver.all_points() if point.metric.startswith(f"{name}.")}
    return [point for metric in sorted(names) for point in receiver.points(metric)]


def histogram_of(point: Point) -> Histogram:
    proto = point.proto
    positive, negative = ((side.offset, tuple(side.bucket_counts)) for side in (proto.positive, proto.negative))
    found = Histogram(proto.scale, proto.zero_count, *positive, *negative, proto.sum, proto.min, proto.max, nonfinite=0)
    assert proto.count == found.count
    return found


@pytest.mark.parametrize("preference", ["cumulative", "delta", "lowmemory"])
def test_windows_become_the_documented_metrics(
    receiver: Receiver, start: Start, clock: ManualClock, setenv: SetEnv, preference: str
) -> None:
    """Each aggregation has the name, kind, unit and temporality of the reference, whatever the temporality is."""
    setenv({TEMPORALITY: preference})
    with delivered_by(start(distributions="both")):
        for name in ("falling", "rising"):
            stat = Stat(name, list(Aggregation), 60.0, unit="s", monotonic=name == "rising")
            close_windows(stat, clock, [1.0, 4.0], [2.0 if name == "rising" else -2.0])  # a histogram without a sum
    delta_table = table("metrics-and-events.md", "metric", "with `cumulative`, the default")
    (deltas,) = (row[0] for row in delta_table if "the samples of one window" in row[2])
    expected = {}
    for _, names, kinds, unit in table("metrics-and-events.md", "aggregation", "metric"):
        for suffix in re.findall(r"`(?:<stat>)?\.(\w+)`", names):
            kind, monotonic = ("exponential_histogram", None) if suffix == "histogram" else kind_of(kinds)
            for stat_name in ("falling", "rising"):
                rises = monotonic
                if monotonic is False and stat_name == "rising" and "monotonic with `monotonic=True`" in kinds:
                    rises = True
                is_delta = preference != "cumulative" and f"<stat>.{suffix}`" in deltas and rises is not False
                temporality = None if kind == "gauge" else DELTA if is_delta else CUMULATIVE
                expected[f"{stat_name}.{suffix}"] = kind, rises, temporality, code(unit) or ["s"]
    assert 24 == len(expected)
    assert expected == {
        point.metric: (point.kind, point.monotonic, point.temporality, [point.unit])
        for name in ("falling", "rising")
        for point in of_stat(receiver, name)
    }


def test_window_is_a_point_at_its_end(receiver: Receiver, start: Start, clock: ManualClock, temporality: int) -> None:
    """Two windows of one export, with a gap, are two points: exact values, the windows' times, and the Stat's texts."""
    with delivered_by(start()) as pipeline:
        stat = Stat(
            "x", list(Aggregation), 60.0, unit="s", description="a step", attributes={"split": "val"}, monotonic=True
        )
        close_windows(stat, clock, [1.0, 4.0], [], [2.0])
    values = {"mean": [2.5, 2.0], "value": [4.0, 2.0], "max": [4.0, 2.0], "min": [1.0, 2.0], "stddev": [1.5, 0.0]}
    values |= {"p50": [1.0, 2.0], "p90": [4.0, 2.0], "p95": [4.0, 2.0], "p99": [4.0, 2.0]}
    values |= {
        "count": [2, 3 if temporality == CUMULATIVE else 1],
        "sum": [5.0, 7.0 if temporality == CUMULATIVE else 2.0],
    }
    assert values == {suffix: receiver.values(f"x.{suffix}") for suffix in values}
    assert 2 * len(values) == len(of_stat(receiver))
    for point in of_stat(receiver):
        assert ("a step", {"split": "val"}, "monitel") == (point.description, point.attributes, point.scope)
        assert point.proto.HasField("as_int") == (point.metric == "x.count")
    for suffix in values:
        first, second = receiver.points(f"x.{suffix}")
        assert [START_NS + MINUTE_NS, START_NS + 3 * MINUTE_NS] == [first.time_ns, second.time_ns]
        starts = [0, 0]
        if suffix in {"count", "sum"}:
            starts = [START_NS, START_NS if temporality == CUMULATIVE else START_NS + 2 * MINUTE_NS]
        assert starts == [first.start_ns, second.start_ns]
        zeros = [(repr(each.value), each.time_ns, each.start_ns) for each in receiver.start_points(f"x.{suffix}")]
        is_total = suffix in {"count", "sum"} and temporality == CUMULATIVE
        assert [("0" if suffix == "count" else "0.0", START_NS, START_NS)] * is_total == zeros
    account = pipeline.account()["metrics"]
    assert (2, 2, 0) == (account.recorded, account.delivered, account.waiting)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("train/loss-1_a.b", "train/loss-1_a.b"),
        ("perte d'\u00e9nergie", "perte_d_energie"),
        ("\u640d\u5931/\u03bb", "u640du5931/lambda"),
        ("1st", "stat_1st"),
        ("x" * 300, "x" * 233),  # with the longest ending 255 characters
    ],
)
def test_name_that_is_not_allowed_is_changed(receiver: Receiver, start: Start, name: str, metric: str) -> None:
    """Letters beyond ASCII are spelled out, other characters become ``_``; the description has the name of the Stat."""
    with delivered_by(start()):
        record_window(name, [MAX], 1, description="mine")
    (point,) = receiver.points(f"{metric}.max")
    assert point.description == "mine" if name == metric else repr(name)[:255] in point.description


def test_second_pipeline_starts_later(receiver: Receiver, start: Start, clock: ManualClock, temporality: int) -> None:
    """Totals begin again at zero, and no period overlaps, even if a window began during the first pipeline."""
    busy, idle = (Stat("x", [COUNT, HISTOGRAM], 60.0) for _ in range(2))
    for stat in (busy, idle):
        pipeline = start(distributions="histogram")
        for _ in range(2):
            clock.advance(1.0)
            stat.add(2)
            monitel.flush()
        assert pipeline.force_flush(DEADLINE)
        pipeline.shutdown()
    assert ([1, 2, 1, 2] if temporality == CUMULATIVE else [1, 1, 1, 1]) == receiver.values("x.count")
    for metric in ("x.count", "x.histogram"):
        points = receiver.points(metric)
        assert points[1].time_ns <= min(points[2].start_ns, points[3].start_ns)


def test_windows_within_a_millisecond_are_one_point(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """The point has the samples of both windows in every aggregation: Prometheus would keep only one of two points."""
    with delivered_by(start(distributions="both")) as pipeline:
        stat = Stat("x", list(Aggregation), 60.0)
        every = [1.0, 4.0, 9.0, 100.0, 50.0]
        for samples in (every[:3], every[3:]):
            fill(stat, *samples)
            clock.advance(0.0004)
    merged = Histogram.of(every)
    expected = {"count": 5, "sum": 164.0, "mean": 32.8, "max": 100.0, "min": 1.0, "value": 50.0}
    expected |= {"stddev": math.sqrt(sum((each - 32.8) ** 2 for each in every) / 5), **merged.percentiles()}
    assert [*expected.values()] == pytest.approx([value for name in expected for value in receiver.values(f"x.{name}")])
    assert [merged] == [histogram_of(point) for point in receiver.points("x.histogram")]
    assert {START_NS + 400_000} == {point.time_ns for point in of_stat(receiver)}
    assert 2 == pipeline.account()["metrics"].delivered


def test_windows_of_two_stats_at_once_lose_nothing(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """No count and no sum is lost if the Stats of one name have different aggregations."""
    with delivered_by(start(distributions="histogram")):
        for aggregations in ([COUNT, HISTOGRAM], [SUM]):
            stat = Stat("x", aggregations, 60.0)
            stat.add(3.0)
            clock.advance(0.0004)
            stat.flush()
    assert ([2], [6.0]) == (receiver.values("x.count"), receiver.values("x.sum"))
    assert [1] == [point.proto.count for point in receiver.points("x.histogram")]


def test_window_without_aggregations_is_counted(receiver: Receiver, start: Start) -> None:
    """The window has no point, and is delivered with the next request, beside other windows or alone."""
    with delivered_by(start()) as pipeline:
        for aggregations in ((), (), (COUNT,)):
            record_window("x", aggregations, 1)
    record_window("x", (), 1)
    assert pipeline.force_flush(DEADLINE)
    account = pipeline.account()["metrics"]
    assert (4, 4, [3]) == (account.recorded, account.delivered, receiver.values("x.count"))


def test_first_stat_of_a_name_decides_unit_and_monotonic(
    receiver: Receiver, start: Start, clock: ManualClock, warned: Warned
) -> None:
    """Later Stats of the name share its metric, and one warning is logged."""
    with delivered_by(start()):
        record_window("x", [SUM], 2.0, unit="{token}", monotonic=True)
        clock.advance(60)
        record_window("x", [SUM], 2.0)
        record_window("x", [SUM], 2.0, unit="By", attributes={"split": "val"})
    points = receiver.points("x.sum")
    assert [({}, 2.0), ({}, 4.0), ({"split": "val"}, 2.0)] == [(point.attributes, point.value) for point in points]
    assert {("{token}", True)} == {(point.unit, point.monotonic) for point in points}
    assert 1 == len(warned("Stats of one metric differ"))


def test_histogram_has_exact_buckets(receiver: Receiver, start: Start, clock: ManualClock, temporality: int) -> None:
    """All finite samples since the start, or those of one window, which has no point without any."""
    with delivered_by(start(distributions="histogram")):
        windows = [[1.0, 4.0], [math.nan], [0.0, 1e9, math.inf], [2.0]]
        close_windows(Stat("x", [HISTOGRAM, COUNT], 60.0), clock, *windows)
    finite = [[each for each in samples if math.isfinite(each)] for samples in windows]
    points = receiver.points("x.histogram")
    if temporality == CUMULATIVE:
        assert [*map(Histogram.of, accumulate(finite))] == [histogram_of(point) for point in points]
        assert [(0, 1), (0, 2), (0, 3), (0, 4)] == [periods(point) for point in points]
    else:
        assert [Histogram.of(each) for each in finite if each] == [histogram_of(point) for point in points]
        assert [(0, 1), (2, 3), (3, 4)] == [periods(point) for point in points]
    assert {"x.count", "x.histogram"} == {point.metric for point in of_stat(receiver)}
    assert {temporality} == {point.temporality for point in points}
    assert all(point.proto.HasField("sum") for point in points)


def periods(point: Point) -> tuple[float, float]:
    """Return start and end of a point in minutes of the fixture ``clock``."""
    return (point.start_ns - START_NS) / MINUTE_NS, (point.time_ns - START_NS) / MINUTE_NS


def test_logged_number_is_a_gauge_at_the_time_of_the_call(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """With the bare name, no unit and no start; each number is an item. A Stat of the same name stays apart."""
    pipeline = start()
    close_windows(Stat("loss", [VALUE], 60.0), clock, [0.5])
    monitel.log({"loss": 0.25, "val": {"tokens": 3}, "text": "left out"}, step=7, split="val")
    called = clock.time_ns()
    clock.advance(60)
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    for name, value in (("loss", 0.25), ("val.tokens", 3.0)):
        (point,) = receiver.points(name)
        assert ("gauge", value, called, 0, "") == (point.kind, point.value, point.time_ns, point.start_ns, point.unit)
        assert ({"split": "val"}, "monitel") == (point.attributes, point.scope)
        assert point.proto.HasField("as_double")
    assert ([0.5], 1) == (receiver.values("loss.value"), receiver.values("monitel.log.left_out")[-1])
    assert 3 == pipeline.account()["metrics"].delivered


def test_last_number_of_a_millisecond_is_sent(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """The point has the time of the first. All are items; those without a point are counted. Series are separate."""
    with delivered_by(start()) as pipeline:
        begin = clock.time_ns()
        for millisecond in range(5):
            for value in range(4):
                monitel.log({"loss": millisecond + value / 10})
                monitel.log({"loss": -1.0}, split="val")
                clock.advance(0.00025)
    found = [(point.value, point.time_ns - begin) for point in receiver.points("loss") if not point.attributes]
    assert [(number + 0.3, number * MILLISECOND_NS) for number in range(5)] == found
    assert 40 == pipeline.account()["metrics"].delivered
    assert pipeline.force_flush(DEADLINE)
    assert 30 == receiver.values("monitel.log.coalesced")[-1]
