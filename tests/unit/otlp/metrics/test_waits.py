"""Wait counters as metric points: names, values, start points, temporality, and failures."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import CUMULATIVE, DEADLINE, TEMPORALITY, Answer, points_of
from tests.support.pipelines import metric_requests
from tests.support.producers import run_together, wait
from tests.support.series import increase

import monitel
from monitel import wait_counter
from monitel.testing import ManualClock
from monitel_otlp.metrics.rising_sums import RisingSums

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

DELTA = 1
MILLISECOND_NS = 1_000_000


def test_wait_counter_has_four_metrics(receiver: Receiver, start: Start) -> None:
    """Time and count are monotonic, active is not, and the longest wait has a point only after a wait."""
    with ManualClock() as clock:
        before = clock.time_ns()
        pipeline = start()
        wait(clock, "loading", 2.0, 0.5)
        assert pipeline.force_flush(DEADLINE)
        with monitel.WaitCounter("loading").guard():
            assert pipeline.force_flush(DEADLINE)
            clock.advance(0.25)
        assert pipeline.force_flush(DEADLINE)
    expected: dict[str, tuple[Any, ...]] = {
        "time": ("sum", True, CUMULATIVE, "s", {2.5, 2.75}),
        "count": ("sum", True, CUMULATIVE, "{wait}", {2, 3}),
        "active": ("sum", False, CUMULATIVE, "{wait}", {0, 1}),
        "max": ("gauge", None, None, "s", {2.0, 0.25}),
    }
    for name, (kind, monotonic, temporality, unit, values) in expected.items():
        points = receiver.points(f"loading.wait.{name}")
        assert {(kind, monotonic, temporality, unit, "monitel")} == {
            (each.kind, each.monotonic, each.temporality, each.unit, each.scope) for each in points
        }
        assert values == {each.value for each in points}
        assert {name in {"time", "max"}} == {each.proto.HasField("as_double") for each in points}
        assert all(two.time_ns - one.time_ns >= MILLISECOND_NS for one, two in pairwise(points))
        if kind == "sum":
            assert {before} == {each.start_ns for each in points}
    assert [2.0, 0.25] == receiver.values("loading.wait.max")
    assert 0 == receiver.values("loading.wait.active")[-1]
    names = {each.metric for each in receiver.all_points() if each.metric.startswith("loading")}
    assert {f"loading.wait.{name}" for name in expected} == names


@pytest.mark.parametrize("seconds", [(2.0, 0.5), ()])
def test_sums_begin_with_zero_at_the_start_of_the_key(
    receiver: Receiver, start: Start, seconds: tuple[float, ...]
) -> None:
    """The increase of the stored samples is the total, from the first wait on."""
    with ManualClock(time.time_ns() - 60 * 10**9) as clock:
        created = clock.time_ns()
        monitel.WaitCounter("loading")
        wait(clock, "loading", *seconds)
        pipeline = start()
        assert pipeline.force_flush(DEADLINE)
        wait(clock, "loading", 1.0)
        assert pipeline.force_flush(DEADLINE)
    for name, total in (("time", sum(seconds) + 1), ("count", len(seconds) + 1)):
        starts = receiver.start_points(f"loading.wait.{name}")
        assert [created] * bool(seconds) == [each.time_ns for each in starts]
        assert {created} == {each.start_ns for each in [*starts, *receiver.points(f"loading.wait.{name}")]}
        assert total == increase(receiver, f"loading.wait.{name}")
    assert [] == receiver.start_points("loading.wait.active")


@pytest.mark.parametrize("preference", ["delta", "lowmemory"])
def test_delta_points_are_adjacent_differences(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    """Time and count have no point without a wait; the number of active waits stays cumulative."""
    monkeypatch.setenv(TEMPORALITY, preference)
    with ManualClock() as clock:
        pipeline = start()
        for seconds in ((2.0, 0.5), (), (1.0,)):
            wait(clock, "loading", *seconds)
            pipeline.force_flush(DEADLINE)
    for name, values in (("time", [2.5, 1.0]), ("count", [2, 1])):
        points = receiver.points(f"loading.wait.{name}")
        assert values == [point.value for point in points]
        assert {("sum", True, DELTA)} == {(point.kind, point.monotonic, point.temporality) for point in points}
        assert points[0].time_ns == points[1].start_ns
    active = receiver.points("loading.wait.active")
    assert {(0, "sum", False, CUMULATIVE)} == {
        (each.value, each.kind, each.monotonic, each.temporality) for each in active
    }
    assert len(active) >= 3
    assert [2.0, 1.0] == receiver.values("loading.wait.max")


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_second_pipeline_continues(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, temporality: str
) -> None:
    """Another zero would look like a reset; a difference is sent once."""
    monkeypatch.setenv(TEMPORALITY, temporality)
    with ManualClock() as clock:
        for seconds in (2.0, 0.5):
            wait(clock, "loading", seconds)
            start().shutdown()
    for name, total in (("time", 2.5), ("count", 2)):
        metric = f"loading.wait.{name}"
        if temporality == "cumulative":
            assert (1, total) == (len(receiver.start_points(metric)), increase(receiver, metric))
        else:
            assert total == sum(receiver.values(metric))


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_threads_lose_nothing(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, temporality: str
) -> None:
    """Readings without a lock come to the same totals as those with it."""
    monkeypatch.setenv(TEMPORALITY, temporality)
    pipeline = start(export_interval=0.01)
    waiting = monitel.WaitCounter("loading")

    def run() -> None:
        for _ in range(3_000):
            with waiting.guard():
                pass

    run_together(*[run] * 4)
    pipeline.shutdown()
    truth = monitel.wait_counters()["loading"]
    assert 12_000 == truth.count
    for name, total in (("time", truth.total), ("count", truth.count)):
        metric = f"loading.wait.{name}"
        found = increase(receiver, metric) if temporality == "cumulative" else sum(receiver.values(metric))
        assert total == pytest.approx(found, rel=1e-9)
    assert truth.max == max(receiver.values("loading.wait.max"))
    assert 0 == receiver.values("loading.wait.active")[-1]


def test_points_have_the_rank_if_requested(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each of the four metrics."""
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    with ManualClock() as clock:
        wait(clock, "loading", 1.0)
    assert start(rank_attribute=True).force_flush(DEADLINE)
    points = [point for point in receiver.all_points() if point.metric.startswith("loading.wait.")]
    assert [{"training.rank": 3}] * len(points) == [point.attributes for point in points]
    assert 4 == len({point.metric for point in points})


def test_many_keys_are_spread_over_requests(receiver: Receiver, start: Start) -> None:
    """A large message would stall the training loop while it is serialized, and backends limit its size."""
    pipeline = start()
    keys = [f"loading.{number}" for number in range(1_200)]
    for key in keys:
        with monitel.WaitCounter(key).guard():
            pass
    monitel.set_step(5)
    assert pipeline.force_flush(DEADLINE)
    last: dict[str, Any] = {}
    for request in receiver.of("metrics"):
        points = [point for point in points_of(request.message) if point.metric.endswith(".wait.count")]
        assert len({point.metric for point in points}) <= 500
        last.update((point.metric, point.value) for point in points)
    assert {f"{key}.wait.count": 1 for key in keys} == last
    assert 1_200 == sum(len(receiver.points(f"{key}.wait.max")) for key in keys[::100]) * 100
    assert 5 == receiver.values("training.step")[-1]


@pytest.mark.timed
def test_thread_that_hangs_inside_the_lock_stops_only_the_longest_waits(receiver: Receiver, start: Start) -> None:
    """A signal handler or a destructor may hang while a wait ends."""
    with ManualClock() as clock:
        wait(clock, "loading", 1.0)
        entered, released = threading.Event(), threading.Event()

        def hold() -> None:
            with wait_counter._lock:
                entered.set()
                released.wait(3 * DEADLINE)

        thread = threading.Thread(target=hold, daemon=True)
        pipeline = start(export_interval=0.1)
        thread.start()
        assert entered.wait(DEADLINE)
        try:
            known = len(receiver.of("metrics"))
            monitel.counter("samples").add(1)
            receiver.wait_until(lambda: receiver.points("samples") and len(receiver.of("metrics")) > known)
            assert 1 == receiver.values("loading.wait.count")[-1]
        finally:
            released.set()
            thread.join(DEADLINE)
        assert pipeline.force_flush(DEADLINE)
    assert [1.0] == receiver.values("loading.wait.max")


def test_unchanged_readings_are_not_stored(start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a backend, a request without a new wait is idle, and fills no disk."""
    receiver.rule(lambda _: Answer(503))
    with ManualClock() as clock:
        wait(clock, "loading", 1.0)
        pipeline = start()
        put = metric_requests(pipeline, monkeypatch)
        for _ in range(3):
            pipeline.force_flush(0.1)
        wait(clock, "loading", 1.0)
        pipeline.force_flush(0.1)
        with monitel.WaitCounter("loading").guard():
            pipeline.force_flush(0.1)
    idle = [request.idle for request in put]
    assert (False, 3) == (idle[0], idle.count(False))
    receiver.forget_rules()


def test_wait_counter_that_cannot_be_encoded_is_left_out(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are sent, the failure is logged once, and the next round tries again without a gap."""
    write = RisingSums.write

    def fail(self: RisingSums, metric: Any, *arguments: Any, **options: Any) -> Any:
        if metric.name.startswith("broken"):
            raise RuntimeError("broken")
        return write(self, metric, *arguments, **options)

    with ManualClock() as clock:
        pipeline = start()
        wait(clock, "broken", 3.0)
        wait(clock, "whole", 4.0)
        with monkeypatch.context() as patch:
            patch.setattr(RisingSums, "write", fail)
            assert pipeline.force_flush(DEADLINE)
        assert ([], {4.0}) == (receiver.points("broken.wait.time"), set(receiver.values("whole.wait.time")))
        assert 1 == len(warnings_with(caplog, "wait counter 'broken' cannot be encoded and is left out"))
        assert pipeline.force_flush(DEADLINE)
    assert (3.0, 1) == (increase(receiver, "broken.wait.time"), increase(receiver, "broken.wait.count"))
    assert [3.0] == receiver.values("broken.wait.max")
