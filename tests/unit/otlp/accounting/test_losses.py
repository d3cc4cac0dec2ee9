"""Losses in queues, on disk and at the backend are counted by reason and reported in the last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import busy_encoder, emit_and_flush, reported_drops
from tests.support.receiver import partial_success
from tests.support.spools import last_line

import monitel
import monitel_otlp.engine.engine
from monitel import COUNT, Stat

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel_otlp.metrics.points import Points
    from monitel_otlp.metrics.window_row import WindowRow


def test_partial_success_is_counted_and_never_sent_again(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A retry would duplicate the accepted items."""
    pipeline = start()
    receiver.answer("logs", partial_success("logs", 2, "attribute too long"))
    for _ in range(5):
        monitel.emit("event")
    assert not pipeline.force_flush(10)
    assert 1 == len(receiver.of("logs"))
    assert 1 == len(warnings_with(caplog, "2", "attribute too long"))
    assert {"logs": 2} == reported_drops(receiver, pipeline, "partial_success")
    pipeline.shutdown()
    line = last_line(capsys.readouterr().err)
    assert (3, 2) == (line.events, line.dropped)


@pytest.mark.parametrize("rejected", [10**9, -3])
def test_impossible_partial_success_does_not_count_below_zero(
    receiver: Receiver, start: Start, capsys: pytest.CaptureFixture[str], rejected: int
) -> None:
    """Counters stay between zero and the number of items."""
    pipeline = start()
    receiver.answer("logs", partial_success("logs", rejected, "nonsense"))
    monitel.emit("event")
    assert (rejected < 0) == pipeline.force_flush(10)
    pipeline.shutdown()
    assert (0 if rejected > 0 else 1) == last_line(capsys.readouterr().err).events
    assert 1 == len(receiver.of("logs"))


def test_windows_that_cannot_be_encoded_are_counted(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the encoding of one window loses only that window, and is logged once."""

    def faulty(row: WindowRow, points: Points) -> None:
        if row.series.name == "bad":
            raise OverflowError("injected")
        add(row, points)

    pipeline = start()
    assert pipeline.engine is not None
    mapping = pipeline.engine.metric_requests.mapping
    add = mapping.add
    monkeypatch.setattr(mapping, "add", faulty)
    for name in ("bad", "good"):
        stat = Stat(name, [COUNT], 60.0)
        stat.add(1)
        stat.flush()
        assert not pipeline.force_flush(10)
    assert [1] == receiver.values("good.count")
    assert {"metrics": 1} == reported_drops(receiver, pipeline, "encoding")
    assert 1 == len(warnings_with(caplog, "cannot be encoded"))


def test_unusable_spool_is_logged_once_and_losses_are_counted(
    *,
    receiver: Receiver,
    start: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If the spool folder cannot be created, its path is logged once, and the last line counts the lost items."""
    pipeline = start(spool_dir=tmp_path / "file" / "spool")
    (tmp_path / "file").write_text("not a folder")
    receiver.rule(lambda _request: Answer(503))
    assert not emit_and_flush(pipeline, *["event"] * 5)
    assert not pipeline.shutdown()
    assert 1 == len(warnings_with(caplog, str(tmp_path / "file"), "cannot be written"))
    line = last_line(capsys.readouterr().err)
    assert (0, 0, 5) == (line.windows, line.events, line.dropped)


def test_request_in_memory_survives_a_disk_failure(receiver: Receiver, start: Start, tmp_path: Path) -> None:
    """Requests in memory are delivered when the backend is back."""
    pipeline = start(spool_dir=tmp_path / "file" / "spool")
    (tmp_path / "file").write_text("not a folder")
    receiver.rule(lambda _request: Answer(503))
    assert not emit_and_flush(pipeline, "first", "second")
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["first", "second"] == receiver.record_names()


def test_full_queue_drops_the_oldest_and_counts_them(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If more items are recorded than the queues hold, the newest are kept and the others are counted at once."""
    monkeypatch.setattr(monitel_otlp.engine.engine, "LIMIT", 100)
    pipeline = start()
    with busy_encoder(pipeline):
        for number in range(250):
            monitel.emit(f"event {number}")
        with monitel.testing.ManualClock() as clock:
            stat = Stat("loss", [COUNT], 60.0)
            for _ in range(130):
                stat.add(1)
                clock.advance(60)
            stat.flush()
        assert {"queue_full": 180} == pipeline.dropped
    assert not pipeline.force_flush(DEADLINE)
    assert [f"event {number}" for number in range(150, 250)] == receiver.record_names()
    assert list(range(31, 131)) == receiver.values("loss.count")
    assert {"metrics": 30, "logs": 150} == reported_drops(receiver, pipeline, "queue_full")
    pipeline.shutdown()
    line = last_line(capsys.readouterr().err)
    assert (100, 100, 180) == (line.windows, line.events, line.dropped)
