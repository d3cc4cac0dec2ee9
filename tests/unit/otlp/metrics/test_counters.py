"""Counters and the step as metric points: names, times, start points, temporality and limits."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import CUMULATIVE, DEADLINE, TEMPORALITY, Answer
from tests.support.pipelines import metric_requests
from tests.support.producers import run_together
from tests.support.series import increase

import monitel
from monitel_otlp.metrics.series import SeriesTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

DELTA = 1
MILLISECOND_NS = 1_000_000
HOUR_NS = 3_600 * 10**9


def test_counter_is_a_monotonic_sum_with_its_bare_name(receiver: Receiver, start: Start) -> None:
    """With unit, description, attributes and start of the counter; each round has its total."""
    before = time.time_ns()
    samples = monitel.counter(
        "training.samples", unit="{sample}", description="Samples in training", attributes={"split": "train"}
    )
    after = time.time_ns()
    pipeline = start()
    for amount in (32, 28, 0):
        samples.add(amount)
        assert pipeline.force_flush(DEADLINE)
    points = receiver.points("training.samples")
    assert [32, 60] == sorted({point.value for point in points})
    assert len(points) >= 3
    for point in points:
        assert ("sum", True, CUMULATIVE, "monitel") == (point.kind, point.monotonic, point.temporality, point.scope)
        assert ("{sample}", "Samples in training") == (point.unit, point.description)
        assert {"split": "train"} == point.attributes
        assert before <= point.start_ns <= after < point.time_ns <= time.time_ns()
        assert point.proto.HasField("as_int")
    assert 1 == len({point.start_ns for point in points})
    assert all(two.time_ns - one.time_ns >= MILLISECOND_NS for one, two in pairwise(points))


def test_floats_are_doubles(receiver: Receiver, start: Start) -> None:
    """The zero too; an int beyond 64 bits is a double as well."""
    seconds, large = monitel.counter("seconds", unit="s"), monitel.counter("large")
    seconds.add(2.5)
    large.add(2**63)
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    for name, value in (("seconds", 2.5), ("large", 2.0**63)):
        (zero,) = receiver.start_points(name)
        first = receiver.points(name)[0]
        assert (value, True, True) == (
            *(first.value, first.proto.HasField("as_double"), zero.proto.HasField("as_double")),
        )


@pytest.mark.parametrize("preference", ["delta", "lowmemory"])
def test_delta_points_are_adjacent_differences(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    """The first one starts with the counter. There is no point without an amount, and no start point."""
    monkeypatch.setenv(TEMPORALITY, preference)
    samples, seconds = monitel.counter("samples"), monitel.counter("seconds")
    pipeline = start()
    amounts = [32, 0, 28, 5]
    for amount in amounts:
        samples.add(amount)
        seconds.add(amount / 8)
        assert pipeline.force_flush(DEADLINE)
    for name, scale, counter in (("samples", 1, samples), ("seconds", 8, seconds)):
        points = receiver.points(name)
        assert [32 / scale, 28 / scale, 5 / scale] == [point.value for point in points]
        assert {("sum", True, DELTA)} == {(point.kind, point.monotonic, point.temporality) for point in points}
        starts = [counter.reading().start_ns, *(point.time_ns for point in points)]
        assert starts[:-1] == [point.start_ns for point in points]
        assert all(point.start_ns < point.time_ns for point in points)


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_threads_lose_nothing(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, temporality: str
) -> None:
    """The sums of all intervals are exact although rounds come in between, some of which fail in the SDK."""
    monkeypatch.setenv(TEMPORALITY, temporality)
    pipeline = start(export_interval=0.01)
    assert pipeline.engine is not None
    assert pipeline.engine.providers is not None
    collect = pipeline.engine.providers.collect
    choose = random.Random(3)

    def collect_or_fail() -> Any:
        if choose.random() < 0.3:
            raise RuntimeError("a view of the application")
        return collect()

    monkeypatch.setattr(pipeline.engine.providers, "collect", collect_or_fail)
    counters = [monitel.counter("tokens", attributes={"split": number}) for number in range(4)]

    def add(amount: int) -> Callable[[], None]:
        def run() -> None:
            for number in range(4_000):
                counters[number % 4].add(amount)

        return run

    run_together(*(add(amount) for amount in range(1, 5)))
    pipeline.shutdown()
    expected = 4_000 * (1 + 2 + 3 + 4)
    found = increase(receiver, "tokens") if temporality == "cumulative" else sum(receiver.values("tokens"))
    assert expected == found


def test_points_have_the_rank_if_requested(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On counters and on the step; the counter's attribute of the same name counts."""
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    monitel.counter("samples", attributes={"split": "train"}).add(1)
    monitel.counter("samples", attributes={"training.rank": 9}).add(1)
    monitel.set_step(5)
    pipeline = start(rank_attribute=True)
    assert pipeline.force_flush(DEADLINE)
    found = [point.attributes for point in receiver.points("samples")]
    assert {"training.rank": 3, "split": "train"} in found
    assert {"training.rank": 9} in found
    assert {"training.rank": 3} == receiver.points("training.step")[0].attributes


def test_further_sets_of_attributes_share_a_series(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The total of all series stays exact, and one warning names the counter."""
    pipeline = start(series_limit=2)
    for layer in range(5):
        monitel.counter("gradients", attributes={"layer": layer}).add(10**layer)
        assert pipeline.force_flush(DEADLINE)
    latest = {repr(point.attributes): point.value for point in receiver.points("gradients")}
    assert {"{'layer': 0}": 1, "{'layer': 1}": 10, "{'otel.metric.overflow': True}": 11_100} == latest
    assert 11_111 == increase(receiver, "gradients")
    assert 1 == len(warnings_with(caplog, "'gradients' has more than 2 sets of attributes"))


def test_overflow_beyond_64_bits_is_a_double(receiver: Receiver, start: Start) -> None:
    """Each of the counters has an int."""
    for layer in range(3):
        monitel.counter("large", attributes={"layer": layer}).add(2**63 - 1)
    pipeline = start(series_limit=1)
    assert pipeline.force_flush(DEADLINE)
    assert {2**63 - 1, 2.0**64} == set(receiver.values("large"))


def test_step_is_a_gauge(receiver: Receiver, start: Start) -> None:
    """Without a point before the step is known; the step may go back."""
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    assert [] == receiver.points("training.step")
    for step in (7, 3):
        monitel.set_step(step)
        assert pipeline.force_flush(DEADLINE)
    points = receiver.points("training.step")
    assert [7, 3] == list(dict.fromkeys(point.value for point in points))
    assert {("gauge", "{step}", 0, "monitel")} == {
        (point.kind, point.unit, point.start_ns, point.scope) for point in points
    }
    assert all(two.time_ns - one.time_ns >= MILLISECOND_NS for one, two in pairwise(points))


def test_counter_that_cannot_be_encoded_is_left_out(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are sent, the failure is logged once, and the next round tries again without a gap."""
    pipeline = start()
    of_counter = SeriesTable.of_counter
    broken = monitel.counter("broken")

    def fail(self: SeriesTable, counter: monitel.Counter) -> Any:
        if counter is broken:
            raise RuntimeError("broken")
        return of_counter(self, counter)

    broken.add(3)
    monitel.counter("whole").add(4)
    with monkeypatch.context() as patch:
        patch.setattr(SeriesTable, "of_counter", fail)
        assert pipeline.force_flush(DEADLINE)
    assert ([], {4}) == (receiver.points("broken"), set(receiver.values("whole")))
    assert 1 == len(warnings_with(caplog, "counter 'broken' cannot be encoded and is left out"))
    assert pipeline.force_flush(DEADLINE)
    assert 3 == increase(receiver, "broken")


def test_unchanged_readings_are_not_stored(start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a backend, a total is written to disk once; a process that has stopped counting fills no disk."""
    receiver.rule(lambda _: Answer(503))
    monitel.counter("samples").add(1)
    pipeline = start()
    put = metric_requests(pipeline, monkeypatch)
    for _ in range(3):
        pipeline.force_flush(0.1)
    monitel.counter("samples").add(1)
    pipeline.force_flush(0.1)
    idle = [request.idle for request in put]
    assert (False, 2) == (idle[0], idle.count(False))
    receiver.forget_rules()
