"""The black box of a running pipeline: where it is made, what refuses it, and what it does without room."""

import errno
import logging
import os
from contextlib import closing
from pathlib import Path
from shutil import rmtree

import pytest
from tests.support.checks import wait_until, warnings_with
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import Start
from tests.support.receiver import Receiver

import monitel
from monitel.blackbox.context_page import read_page
from monitel.blackbox.folder import Folder
from monitel.blackbox.record import read_slots


def boxes(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def test_heartbeat_without_room_for_totals(
    own_boxes: Path, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that cannot be removed, because the totals cannot be written before, do not make the process silent."""
    pipeline = start()
    monitel.emit("event")
    (box,) = boxes(own_boxes)

    def heartbeat() -> int:
        return read_page((box / "page").read_bytes()).heartbeat_ns or 0

    def fail(_journal: object, *, disk: bool) -> None:
        raise OSError(errno.ENOSPC, "no space", disk)

    monkeypatch.setattr("monitel.blackbox.journal.Journal.truncate", fail)
    begun = heartbeat()
    wait_until(lambda: heartbeat() > begun)
    monkeypatch.undo()
    assert pipeline.shutdown(DEADLINE)
    assert ["event"] == receiver.record_names()


@pytest.mark.parametrize("moved", [False, True], ids=["removed", "moved away"])
def test_box_that_a_cleaner_takes_away_loses_nothing(
    own_boxes: Path, start: Start, receiver: Receiver, moved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and the pipeline goes on; nothing arrives twice."""
    pipeline = start()
    monitel.emit("before")
    (box,) = boxes(own_boxes)

    def removed() -> bool:
        rmtree(box, ignore_errors=True)  # it fails if a file is made meanwhile
        return not box.exists()

    if moved:
        box.rename(own_boxes / "elsewhere")
    else:
        wait_until(removed, "no folder")
    with caplog.at_level(logging.WARNING, "monitel"):
        monitel.emit("after")
        wait_until(lambda: warnings_with(caplog, "the box of"), "a warning")
    assert pipeline.force_flush(DEADLINE)
    assert ["after", "before"] == sorted(receiver.record_names())
    assert 1 == len(warnings_with(caplog, "the box of"))


def test_outage_without_room_fills_the_spool_and_not_the_box(
    own_boxes: Path, start: Start, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning; the box stays below its size, large events go to disk, and all arrives once."""
    away = [True]
    receiver.rule(lambda _: Answer(503) if away else None)
    pipeline = start(export_interval=0.05, black_box={"size": 512 << 10})
    loss = monitel.Stat("loss", [monitel.COUNT], 3600.0)
    others = [monitel.Stat(f"seconds.{number}", [monitel.HISTOGRAM], 3600.0) for number in range(150)]
    for each in others:  # the snapshot becomes large
        for number in range(80):
            each.add(1.1**number)
    wait_until(lambda: max(map(os.path.getsize, own_boxes.glob("*/state")), default=0) > 256 << 10, "a snapshot")
    sent = 0

    def emit_more() -> bool:
        nonlocal sent
        for _ in range(10):
            monitel.emit("event", number=sent, text="x" * 5000)
            sent += 1
        loss.add(1)
        pipeline.force_flush(0.05)
        sizes = {path.name: path.stat().st_size for path in own_boxes.glob("*/*")}
        assert sum(sizes.values()) <= (512 << 10) + sizes["page"], sizes
        return pipeline.account()["logs"].on_disk > 100

    wait_until(emit_more, "items in the spool")
    assert 1 == len(boxes(own_boxes))
    away.clear()
    loss.flush()
    receiver.wait_until(lambda: len(receiver.records("event")) == sent)
    assert pipeline.force_flush(DEADLINE)
    assert [*range(sent)] == sorted(record.attributes["number"] for record in receiver.records("event"))
    assert sent / 10 == receiver.values("loss.count")[-1]
    assert 1 == len(warnings_with(caplog, "the box of", "it is full"))


def test_without_a_box_the_disk_has_the_position_after_each_request(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what has arrived would be sent again after a kill. The disk thread does not wait for its next round."""
    monkeypatch.setattr("monitel_otlp.export.engine.SNAPSHOT_S", 3600.0)
    away = [True]
    receiver.rule(lambda _: Answer(503) if away else None)
    pipeline = start(black_box=False)
    for _ in range(30):
        monitel.emit("event", text="x" * 5000)
    wait_until(lambda: pipeline.account()["logs"].on_disk, "items in the spool")
    away.clear()
    assert pipeline.force_flush(DEADLINE)
    with closing(Folder.open(Path(pipeline.spool_dir))) as spool:
        wait_until(lambda: read_slots(spool, "position")[1]["logs"] == 30, "the position")
