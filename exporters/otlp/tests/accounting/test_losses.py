"""What is lost is counted, by reason, and said at the end: the queues, the disk, what a backend leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import monitel
import monitel_otlp.engine
from monitel import COUNT, Stat

from .inbox import DEADLINE
from .receiver import partial_success
from .spools import last_line
from .test_faults import DOWN, dropped, flushed, names, told

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp.metrics.points import Points
    from monitel_otlp.metrics.window_row import WindowRow

    from .conftest import Start
    from .receiver import Receiver


def test_a_partial_success_is_counted_and_never_sent_again(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The backend has said what it left out: to insist would double the rest."""
    pipeline = start()
    receiver.answer("logs", partial_success("logs", 2, "attribute too long"))
    for _ in range(5):
        monitel.emit("event")
    assert not pipeline.force_flush(10)
    assert 1 == len(receiver.of("logs"))
    assert 1 == len(told(caplog, "2", "attribute too long"))
    assert {"logs": 2} == dropped(receiver, pipeline, "partial_success")
    pipeline.shutdown()
    said = last_line(capsys.readouterr().err)
    assert (3, 2) == (said.events, said.dropped)


@pytest.mark.parametrize("rejected", [10**9, -3])
def test_a_partial_success_that_cannot_be_does_not_count_below_zero(
    receiver: Receiver, start: Start, capsys: pytest.CaptureFixture[str], rejected: int
) -> None:
    """Counters stay between nothing and everything."""
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
    """A fault of ours in one window costs that window, is logged, and stops nothing."""

    def faulty(row: WindowRow, points: Points) -> None:
        if row.series.name == "bad":
            raise OverflowError("a fault of ours")
        add(row, points)

    pipeline = start()
    assert pipeline.engine is not None
    mapping = pipeline.engine.windows.mapping
    add = mapping.add
    monkeypatch.setattr(mapping, "add", faulty)
    for name in ("bad", "good"):
        stat = Stat(name, [COUNT], 60.0)
        stat.add(1)
        stat.flush()
        assert not pipeline.force_flush(10)
    assert [1] == receiver.values("good.count")
    assert {"metrics": 1} == dropped(receiver, pipeline, "encoding")
    assert 1 == len(told(caplog, "cannot be encoded"))


def test_the_disk_may_be_missing(
    *,
    receiver: Receiver,
    start: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A spool that cannot be made is told once with its path, and what is lost for it is counted at the end."""
    pipeline = start(spool_dir=tmp_path / "file" / "spool")
    (tmp_path / "file").write_text("not a folder")
    receiver.rule(lambda _request: DOWN)
    assert not flushed(pipeline, *["event"] * 5)
    assert not pipeline.shutdown()
    assert 1 == len(told(caplog, str(tmp_path / "file"), "cannot be written"))
    said = last_line(capsys.readouterr().err)
    assert (0, 0, 5) == (said.windows, said.events, said.dropped)


def test_a_request_that_lay_in_memory_when_the_disk_failed_is_not_lost(
    receiver: Receiver, start: Start, tmp_path: Path
) -> None:
    """Offline or not, what memory still holds is delivered once that is possible."""
    pipeline = start(spool_dir=tmp_path / "file" / "spool")
    (tmp_path / "file").write_text("not a folder")
    receiver.rule(lambda _request: DOWN)
    assert not flushed(pipeline, "first", "second")
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["first", "second"] == names(receiver)


def test_a_full_queue_drops_the_oldest_and_counts_them(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the encoder is busy, more comes than the queues hold: the newest are kept, the rest is counted at once."""
    monkeypatch.setattr(monitel_otlp.engine, "LIMIT", 100)
    pipeline = start()
    assert pipeline.engine is not None
    with pipeline.engine.encoder._encoding:
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
    assert [f"event {number}" for number in range(150, 250)] == names(receiver)
    assert list(range(31, 131)) == receiver.values("loss.count")
    assert {"metrics": 30, "logs": 150} == dropped(receiver, pipeline, "queue_full")
    pipeline.shutdown()
    said = last_line(capsys.readouterr().err)
    assert (100, 100, 180) == (said.windows, said.events, said.dropped)
