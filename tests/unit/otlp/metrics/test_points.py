"""Points stay exact: windows in any order, late numbers, dropped windows, many readings, and waits of other sources."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checks import SetEnv, wait_until
from tests.support.inbox import DEADLINE, TEMPORALITY, Point
from tests.support.pipelines import Start, busy_encoder, delivered_by
from tests.support.producers import close_windows, make_small, wait
from tests.support.receiver import Receiver
from tests.support.series import increase

import monitel
import monitel_otlp
from monitel import COUNT, HISTOGRAM, MAX, MEAN, MIN, SUM, VALUE, LoggedNumbers, Stat, WaitReading, wait_counter
from monitel.stats import window_sinks
from monitel.stats.window import OpenWindow, encode
from monitel.testing import ManualClock
from monitel.wait_counter import set_foreign_waits

Group = tuple[int, list[monitel.Window]]  # the time of a point, and its windows

MILLISECOND_NS = 1_000_000
EPOCH_NS = 1_767_225_600_000_000_000
_numbers = count(1)
ALL = (COUNT, SUM, MEAN, MAX, MIN, VALUE)
SERIES: list[tuple[str, dict[str, Any]]] = [
    *(("a", {}), ("a", {"k": True}), ("a", {"k": 1}), ("a", {"k": "1"})),
    ("rising", {}),
]


def window(series: int, samples: list[float], start_ns: int, end_ns: int) -> monitel.Window:
    name, attributes = SERIES[series]
    definition = monitel.StatDefinition(name, ALL, "", "", MappingProxyType(attributes), monotonic=name == "rising")
    total = math.fsum(samples) if all(map(math.isfinite, samples)) else sum(samples)
    extremes = min(samples), max(samples)
    return monitel.Window(definition, start_ns, end_ns, len(samples), total, *extremes, samples[-1], 0, None, None)


eighths = st.integers(-8000, 8000).map(lambda number: number / 8)  # added up exactly, in any order
anything = eighths | eighths.map(abs) | st.sampled_from([math.nan, math.inf, -math.inf])
steps = st.sampled_from([0, 1, MILLISECOND_NS - 1, MILLISECOND_NS]) | st.integers(-2_000_000, 3_000_000)


@st.composite
def batches(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[list[monitel.Window]]:
    """Draw the windows between exports; each window ends one step after the previous one."""
    found: list[list[monitel.Window]] = []
    now_ns = EPOCH_NS + 60 * 10**9
    for size in draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)):
        found.append([])
        for _ in range(size):
            now_ns += draw(steps)
            samples = draw(st.lists(anything, min_size=1, max_size=3))
            begin_ns = now_ns - draw(st.integers(0, 2_000_000))
            found[-1].append(window(draw(st.integers(0, len(SERIES) - 1)), samples, begin_ns, now_ns))
    return found


def exported(
    receiver: Receiver, batches: list[list[monitel.Window]]
) -> Iterator[tuple[list[monitel.Window], list[Point]]]:
    options = {"endpoint": receiver.url, "spool_dir": "spool", "export_interval": 3600.0}
    instance = {"service.instance.id": str(uuid4())}  # no pipeline continues the series of another one
    with monitel_otlp.configure(**options, resource_attributes=instance) as pipeline:  # type: ignore[arg-type]
        for batch in batches:
            taken = len(receiver.requests)
            for closed in batch:
                serial = -1 - [*map(repr, SERIES)].index(repr((closed.name, dict(closed.attributes))))
                content = encode(OpenWindow(serial, next(_numbers), True, 0, *closed[1:]))
                window_sinks.send(closed.definition, closed, content)
            assert pipeline.force_flush(DEADLINE)
            points = [point for request in receiver.requests[taken:] for point in request.points]
            yield batch, [point for point in points if not point.metric.startswith("monitel.")]


def merged(windows: list[monitel.Window], last_ns: int) -> list[Group]:
    """Return the expected points of the windows of one series.

    All points, including the last one of the previous batch at ``last_ns``, are at least a millisecond apart.
    """
    found: list[Group] = []
    for closed in sorted(windows, key=lambda closed: closed.end_ns):
        end_ns = max(closed.end_ns, last_ns + MILLISECOND_NS)
        if found and end_ns < found[-1][0] + MILLISECOND_NS:
            found[-1] = (end_ns, [*found[-1][1], closed])
        else:
            found.append((end_ns, [closed]))
    return found


def is_summed(closed: monitel.Window) -> bool:
    return math.isfinite(closed.sum) and not (closed.name == "rising" and closed.sum < 0)


def amount(suffix: str, windows: list[monitel.Window]) -> float:
    return (
        sum(each.count for each in windows)
        if suffix == "count"
        else sum(each.sum for each in windows if is_summed(each))
    )


def check_gauges(groups: list[Group], found: dict[str, list[Point]]) -> None:
    """Compare the gauges of a series, by aggregation, with the expected points."""
    for suffix in ("mean", "value", "min", "max"):
        assert [end_ns for end_ns, _ in groups] == [point.time_ns for point in found[suffix]]
    for index, (_, group) in enumerate(groups):
        value = {suffix: found[suffix][index].value for suffix in ("mean", "value", "min", "max")}
        assert repr(sum(each.sum for each in group) / sum(each.count for each in group)) == repr(value["mean"])
        assert repr(group[-1].last) == repr(value["value"])
        for suffix, extreme in (("min", min), ("max", max)):
            extremes = [getattr(each, suffix) for each in group]
            if any(math.isnan(each.sum) for each in group):  # which of them is found depends on the order
                assert math.isnan(value[suffix]) or any(value[suffix] == each for each in extremes)
            else:
                assert extreme(extremes) == value[suffix]


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_points_of_any_windows(receiver: Receiver, setenv: SetEnv, temporality: str) -> None:
    """Gauges match the windows, and totals are exact; starts, order and periods are checked as of every test."""
    setenv({TEMPORALITY: temporality})

    @settings(max_examples=30)
    @given(batches())
    def check(batches: list[list[monitel.Window]]) -> None:
        last = dict.fromkeys(range(len(SERIES)), 0)
        logged: dict[int, list[monitel.Window]] = {series: [] for series in last}
        for batch, points in exported(receiver, batches):
            for series, (name, attributes) in enumerate(SERIES):
                own = [each for each in batch if (each.name, repr(dict(each.attributes))) == (name, repr(attributes))]
                logged[series] += own
                groups = merged(own, last[series])
                of_series = [each for each in points if repr(attributes) == repr(each.attributes)]
                found = {each.suffix: [p for p in of_series if p.metric == f"{name}.{each.suffix}"] for each in ALL}
                check_gauges(groups, found)
                for suffix in ("count", "sum"):
                    totals = [(each.time_ns, each.value) for each in found[suffix]]
                    if temporality == "delta" and (suffix == "count" or name == "rising"):
                        summed = [each for each in groups if suffix == "count" or any(map(is_summed, each[1]))]
                        assert [(end_ns, amount(suffix, group)) for end_ns, group in summed] == totals
                    elif groups:
                        totals = totals if last[series] else totals[1:]  # the first one is a zero
                        assert [end_ns for end_ns, _ in groups] == [time_ns for time_ns, _ in totals]
                        assert amount(suffix, logged[series]) == totals[-1][1]
                last[series] = groups[-1][0] if groups else last[series]
            assert {point.metric for point in points} <= {f"{name}.{each.suffix}" for name, _ in SERIES for each in ALL}

    check()


def test_number_that_arrives_late_has_a_later_time(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Such as one from a device: after the points that were sent already, or at its own time beside those that wait."""
    with delivered_by(start()) as pipeline:
        late, same, later = (LoggedNumbers({"loss": value}) for value in (1.0, 1.25, 1.5))
        clock.advance(1)
        for numbers in (LoggedNumbers({"loss": 2.0}), late, LoggedNumbers({"loss": 2.5}), same):
            monitel.log_event(numbers)
    monitel.log_event(later)
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    points = receiver.points("loss")
    assert ([1.25, 2.5, 1.5], 2) == ([each.value for each in points], receiver.values("monitel.log.coalesced")[-1])
    assert [late.time_ns, clock.time_ns(), clock.time_ns() + MILLISECOND_NS] == [point.time_ns for point in points]


def test_value_that_cannot_be_encoded_is_counted(receiver: Receiver, start: Start) -> None:
    """An earlier handler may have changed the Event."""
    pipeline = start()
    odd: Any = LoggedNumbers({"loss": 0.5, "odd": 1.0})
    odd.data["odd"] = object()
    monitel.log_event(odd)
    assert not pipeline.force_flush(DEADLINE)
    assert ({"encoding": 1}, [0.5]) == (pipeline.account()["metrics"].dropped, receiver.values("loss"))


@pytest.mark.parametrize("limit", ["disk", "memory"])
def test_dropped_windows_stay_in_the_totals(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, limit: str
) -> None:
    """The oldest are dropped, unless they are being sent. Their samples are in the totals, from the first one on."""
    make_small(monkeypatch, **({"spool_bytes": 9_000} if limit == "disk" else {"memory_bytes": 9_000, "after_s": 60}))
    pipeline = start(distributions="histogram", black_box=False)
    assert pipeline.engine is not None
    if limit == "memory":
        monkeypatch.setattr(pipeline.engine.box, "tend_disk", lambda _after_s: None)
    begin_ns = clock.time_ns()
    stat = Stat("x", [COUNT, SUM, HISTOGRAM], 60.0)
    with busy_encoder(pipeline):
        close_windows(stat, clock, *([float(number)] for number in range(100)))
        stat.flush()
        reason = {"disk": "spool_full", "memory": "queue_full"}[limit]
        wait_until(lambda: pipeline.dropped.get(reason, 0) > 20, "dropped windows")
        monkeypatch.undo()  # else the items behind those in flight are dropped, too
    assert not pipeline.force_flush(DEADLINE)
    dropped = pipeline.dropped[reason]
    assert ({reason: dropped}, 100 - dropped) == (pipeline.dropped, pipeline.account()["metrics"].delivered)
    kept = receiver.values("x.count")
    holes = [after - before for before, after in pairwise(kept) if after != before + 1]
    assert (100 - dropped, 100, True) == (len({*kept}), kept[-1], len(holes) <= 1)
    assert sorted(kept) == kept
    assert [number * (number - 1) / 2 for number in kept] == receiver.values("x.sum")
    assert [*kept] == [point.proto.count for point in receiver.points("x.histogram")]
    assert [begin_ns] == [point.start_ns for point in receiver.start_points("x.count")]


def test_readings_of_a_round_are_spread_over_requests(receiver: Receiver, start: Start) -> None:
    """A large message would stall the training loop. The activities of a round have one time, and add up."""
    pipeline = start()
    for number in range(498):  # the activities are in two requests
        monitel.counter("x", attributes={"number": number}).add(1)
        with monitel.WaitCounter(f"key.{number}").guard():
            pass
    monitel.set_step(5)
    with monitel.activity("data"):
        pass
    found = monitel.ledger()
    assert found is not None
    assert pipeline.force_flush(DEADLINE)
    assert max(len({p.metric for p in request.points}) for request in receiver.of("metrics")) <= 4 * 500 + 20
    assert max(len(request.points) for request in receiver.of("metrics")) < 498 * 7
    assert dict.fromkeys(range(498), 1) == {p.attributes["number"]: p.value for p in receiver.points("x")}
    assert {1} == {value for number in range(498) for value in receiver.values(f"key.{number}.wait.count")}
    last_ns = max(point.time_ns for point in receiver.points("training.time"))
    last = [point.value for point in receiver.points("training.time") if point.time_ns == last_ns]
    assert 3 == len(last)
    assert found.elapsed_ns / 1e9 - 1e-3 <= sum(last) <= (monitel.ledger() or found).elapsed_ns / 1e9 + 1e-3


def test_foreign_totals_begin_where_they_say(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or when the process began. The longest wait since the last export is derived from the totals."""
    began = time.time_ns() - 60 * 10**9
    monkeypatch.setattr(wait_counter, "_began_ns", began)
    theirs = {"old": WaitReading(3, 7.5, 5.0, 1), "given": WaitReading(1, 0.5, 0.5, 0, began + 10**9)}
    theirs["own"] = WaitReading(100, 100.0, 100.0, 0)
    wait_counter.set_foreign_waits(theirs)
    with ManualClock() as clock:
        wait(clock, "own", 0.0)  # a key of the process takes precedence
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    wait_counter.set_foreign_waits({**theirs, "old": WaitReading(4, 8.5, 5.0, 0)})
    assert pipeline.force_flush(DEADLINE)
    wait_counter.set_foreign_waits({})
    assert ({1}, {0.0}) == tuple({*receiver.values(f"own.wait.{name}")} for name in ("count", "time"))
    for key, start_ns in (("old", began), ("given", began + 10**9)):
        (zero,) = receiver.start_points(f"{key}.wait.time")
        assert (start_ns, start_ns) == (zero.time_ns, zero.start_ns)
    assert (8.5, 4) == (increase(receiver, "old.wait.time"), increase(receiver, "old.wait.count"))
    assert (0, [5.0, 1.0]) == (receiver.values("old.wait.active")[-1], receiver.values("old.wait.max"))


def test_longest_foreign_wait() -> None:
    """A new maximum and an only wait of all readings are known; otherwise the key is omitted, as one of monitel."""
    maxima, own = monitel.WaitMaxima(), monitel.WaitCounter("test_points.own").key
    table: list[tuple[list[WaitReading], dict[str, float]]] = [
        ([WaitReading(1, 5.0, 5.0, 0), WaitReading(2, 6.0, 5.0, 0), WaitReading(4, 9.0, 5.0, 0)], {"elsewhere": 5.0}),
        ([WaitReading(4, 9.0, 5.0, 0)], {}),
        ([WaitReading(5, 10.0, 5.0, 0), WaitReading(6, 12.0, 5.0, 0)], {"elsewhere": 2.0}),
        ([WaitReading(7, 13.0, 5.0, 0), WaitReading(9, 20.0, 5.0, 0)], {}),
        ([WaitReading(11, 23.0, 5.0, 0), WaitReading(12, 24.0, 5.0, 0)], {}),
        ([WaitReading(14, 28.0, 5.0, 0), WaitReading(15, 35.0, 7.0, 0)], {"elsewhere": 7.0}),
    ]
    for readings, longest in table:
        for reading in readings:
            set_foreign_waits({"elsewhere": reading, own: reading})
        assert longest == maxima.read()
    assert ({"elsewhere": 7.0}, 0) == (monitel.WaitMaxima().read(), monitel.wait_counters()[own].max)
