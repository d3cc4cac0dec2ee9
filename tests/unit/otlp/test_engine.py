"""The engine: when metrics of the process are sent, and signals in the middle of a call of the recorder."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, busy_encoder
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, MEAN, Stat
from monitel.stats.window import key
from monitel.testing import ManualClock
from monitel_otlp import Pipeline
from monitel_otlp.config import settings

ROUND = 5  # seconds


Rounds = Callable[..., list[set[str]]]


@pytest.fixture
def rounds(pipeline: Pipeline, receiver: Receiver, clock: ManualClock) -> Rounds:
    """Return a function that runs rounds, each five seconds after the last one by the manual clock.

    It returns the names of the metrics in each request.
    """
    engine = pipeline.engine
    assert engine is not None

    def run(number: int = 1) -> list[set[str]]:
        seen = len(receiver.of("metrics"))
        for _ in range(number):
            clock.advance(ROUND)
            with busy_encoder(pipeline):  # a request takes all windows of the round
                engine._round(asked=False)
            assert engine._deliver(time.monotonic() + DEADLINE)
        return [{point.metric for point in request.points} for request in receiver.of("metrics")[seen:]]

    return run


@pytest.fixture
def pipeline(start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline with the default intervals, whose thread makes no round."""
    monkeypatch.delenv("OTEL_METRIC_EXPORT_INTERVAL", raising=False)
    monkeypatch.setattr(settings, "_DEFAULT_INTERVAL", 3600.0)
    return start(export_interval=None)


def test_requests_in_ten_minutes(pipeline: Pipeline, rounds: Rounds, receiver: Receiver, clock: ManualClock) -> None:
    """Each minute takes a request with windows, one with the metrics of the process, and one with an event."""
    stats = [Stat("idle.loss", [COUNT, MEAN], 60.0, attributes={"layer": layer}) for layer in range(5)]
    steps = monitel.counter("idle.steps")
    sent: list[set[str]] = []
    for each in range(10 * 60 // ROUND):
        for stat in stats:
            stat.add(1.0)
        steps.add(ROUND)
        with monitel.WaitCounter("idle").guard():
            clock.advance(0)
        if each % 12 == 6:
            monitel.emit("epoch")
        sent += rounds()
    assert (10, 11) == (sum("idle.loss.mean" in found for found in sent), sum("idle.steps" in found for found in sent))
    assert 21 == len(sent)
    assert 10 == len(receiver.of("logs"))
    each_time = {"monitel.queue.size", "monitel.spool.size", "monitel.stat.nonfinite", "idle.steps", "idle.wait.time"}
    assert [] == [found for found in sent if "idle.steps" in found and not found >= each_time]
    assert [ROUND * 12 * minute for minute in range(1, 11)] == receiver.values("idle.steps")[-10:]
    exported = [
        point for point in receiver.points("monitel.exporter.item.exported") if point.attributes["signal"] == "metrics"
    ]
    # The windows of a round may be delivered before its metrics are read.
    assert all(point.value in {5 * minute, 5 * minute + 5} for minute, point in enumerate(exported, 1))
    assert len(exported) >= 9
    assert 50 == pipeline.account()["metrics"].delivered


def test_first_values_are_sent_soon(rounds: Rounds) -> None:
    """The first round sends, and so does the first one with a new counter, wait counter or step."""
    assert 1 == len(rounds())
    assert [] == rounds(3)
    monitel.counter("idle.new").add()
    (found,) = rounds()
    assert "idle.new" in found
    with monitel.WaitCounter("idle.new").guard():
        pass
    (found,) = rounds()
    assert "idle.new.wait.count" in found
    monitel.counter("idle.new").add()
    assert [] == rounds(11)
    assert 1 == len(rounds())


def test_wait_that_gets_long_is_sent_soon(rounds: Rounds, receiver: Receiver) -> None:
    """A wait is sent in the first round in which it has lasted for five seconds, and in the first one after its end."""
    counter = monitel.WaitCounter("idle.stuck")
    rounds(2)
    with counter.guard():
        assert 1 == len(rounds())
        assert 1 == receiver.values("idle.stuck.wait.active")[-1]
        assert [] == rounds(11)
        assert 1 == len(rounds())
    (found,) = rounds()
    assert "idle.stuck.wait.max" in found
    assert 0 == receiver.values("idle.stuck.wait.active")[-1]
    assert [65.0] == receiver.values("idle.stuck.wait.max")
    assert [] == rounds(11)


@pytest.mark.parametrize("handler", ["raises before", "raises afterwards", "shuts down"])
def test_interrupted_window_is_recorded_once(start: Start, monkeypatch: pytest.MonkeyPatch, handler: str) -> None:
    """Before the window is in the journal, as Ctrl-C does, or when it is there, and still open."""
    pipeline = start()
    assert pipeline.engine is not None
    box, take_rest = pipeline.engine.box, pipeline.engine.recorder.take_rest
    journal, append = box.journals["metrics"], box.journals["metrics"].append

    def interrupted(*arguments: Any) -> int:
        last = 0 if handler == "raises before" else append(*arguments)
        monkeypatch.setattr(journal, "append", append)
        if handler != "shuts down":
            raise KeyboardInterrupt
        take_rest()
        return last

    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    monkeypatch.setattr(journal, "append", interrupted)
    with nullcontext() if handler == "shuts down" else pytest.raises(KeyboardInterrupt):
        stat.flush()
    assert (handler == "raises before") == ((stat._serial, 1) in {*map(key, box.open_windows())})
    pipeline.shutdown()
    assert 1 == pipeline.account()["metrics"].recorded
