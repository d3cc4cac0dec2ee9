"""The record of an ended process is ended once, moved, delivered, printed and removed."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.inbox import Answer
from tests.support.receiver import Receiver
from tests.support.spools import rejected_requests
from tests.unit.console.recorded import KILLED, SECOND, START, Recorded, definition, recorded, window

from monitel.blackbox.death import Deaths, End
from monitel.blackbox.folder import FolderError
from monitel.blackbox.recovery import claim, spool_of
from monitel.process.os_threads import Event
from monitel_otel.scope import SCOPE
from monitel_otlp.config.resource import describe_process
from monitel_otlp.config.settings import resolve
from monitel_otlp.export import records
from monitel_otlp.export.collector import Collected, collect
from monitel_otlp.export.records import Delivery, take
from monitel_otlp.export.sender import Rejected
from monitel_otlp.messages.request import encode_resource
from monitel_otlp.transport import make_transports
from monitel_run.folder import make_run_folder, remove_run_folder

LOSS = definition("loss")


@pytest.fixture
def boxes(own_boxes: Path) -> Path:
    return own_boxes


@pytest.fixture
def process(boxes: Path, tmp_path: Path) -> Iterator[Recorded]:
    """A process with a closed window and an open one, a logged number, and two events."""
    with recorded(boxes, tmp_path / "spool", resource=encode_resource(describe_process()), scope=tuple(SCOPE)) as found:
        found.close(LOSS, window(1, 1, 1.0, 2.0))
        found.open = [(LOSS, window(1, 2, 4.0, at_s=10))]
        found.event("epoch.start", 1)
        found.log("lr", 0.5, 2)
        found.box.snapshot()
        yield found


def collected(boxes: Path, tmp_path: Path, **options: Any) -> Collected:
    found = collect(boxes, tmp_path / "other", **options)
    assert [] == found.problems
    return found


def delivered(path: Path, receiver: Receiver, boxes: Path, on_progress: Any = None, **options: Any) -> Delivery:
    transports = make_transports(resolve(receiver.url))
    try:
        found = Delivery(transports, tries=1, **options)
        with closing(take(path, boxes)) as dead:
            found.deliver(dead, *([on_progress] if on_progress else []))
        return found
    finally:
        for transport in transports.values():
            transport.close()


def test_end_that_a_parent_has_observed_is_in_the_event(process: Recorded, boxes: Path, tmp_path: Path) -> None:
    """A box of a process whose end is still to be observed is left, by the parent and by everybody else, unlocked."""
    folder, announcements = make_run_folder()
    try:
        process.killed(run=folder)
        deaths = Deaths()
        with patch(f"{collect.__module__}.claim", wraps=claim) as claimed:
            assert 0 == collected(boxes, tmp_path).boxes
            assert 0 == collected(boxes, tmp_path, deaths=deaths, run=folder, observed_only=True).boxes
        assert boxes / KILLED not in [each.args[0] for each in claimed.call_args_list]  # else the lock is taken
        with pytest.raises(FolderError, match="is left to the monitel run"):
            take(boxes / KILLED, boxes)
        deaths.add(4194399, End(signal=9, time_ns=START + 20 * SECOND), "5")
        (death,) = collected(boxes, tmp_path, deaths=deaths, run=folder, observed_only=True).deaths
        assert "SIGKILL" == death.event().attributes["process.exit.signal"]
        assert [] != [name for name in os.listdir(folder) if name.startswith("report-")]  # noqa: PTH208
    finally:
        os.close(announcements)
        remove_run_folder(folder)


def test_record_stays_in_the_box_without_a_disk_and_is_delivered_there(
    process: Recorded, receiver: Receiver, boxes: Path, tmp_path: Path
) -> None:
    """The record is ended, and removed when everything is delivered."""
    process.killed()
    (tmp_path / "spool").write_bytes(b"a file instead of a folder")
    found = collected(boxes, tmp_path)
    assert ([boxes / KILLED], 1) == (found.records, len(found.deaths))
    assert 0 == len(collected(boxes, tmp_path).deaths)
    assert 6 == delivered(boxes / KILLED, receiver, boxes).delivered
    assert ([2, 3], False) == (receiver.values("loss.count"), (boxes / KILLED).exists())


def test_spool_of_the_collector_is_used_if_that_of_the_process_cannot_exist(tmp_path: Path) -> None:
    """The folders of a container are not made outside of it; a spool that nothing was moved to yet is."""
    for folder, expected in {"gone/spool": tmp_path, "spool": tmp_path / "spool"}.items():
        assert expected == spool_of([{"spool": str(tmp_path / folder)}], tmp_path)


def test_delivery_continues_where_it_was_stopped(
    process: Recorded, receiver: Receiver, boxes: Path, tmp_path: Path
) -> None:
    """After each request, and after a refusal; other signals are not blocked. Progress is in items."""
    process.killed()
    path = collected(boxes, tmp_path).records[0]
    stopped, progress = Event(), list[tuple[int, int]]()

    def note(settled: int, total: int) -> None:
        progress.append((settled, total))
        stopped.set()

    assert 2 == delivered(path, receiver, boxes, stopped=stopped, on_progress=note).delivered
    assert [(2, 6)] == progress
    receiver.answer("logs", Answer(503))
    outcome = delivered(path, receiver, boxes)
    (trouble,) = outcome.troubles
    assert (1, True) == (outcome.delivered, f"the rest is still in {path}, run this command again" in trouble)
    assert 3 == delivered(path, receiver, boxes).delivered
    assert ([2, 3], 1) == (receiver.values("loss.count"), receiver.record_names().count("process.died"))


def test_rejected_requests_are_kept_and_sent_again_as_they_are(
    process: Recorded, receiver: Receiver, boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a backend accepts them; after a kill in the middle of a write the rest of the file is used.

    What is refused again stays, also in a journal that is full.
    """
    process.killed()
    path = collected(boxes, tmp_path).records[0]
    receiver.rule(lambda request: Answer(400, body=b"bad") if b"epoch.start" in request.body else None)
    outcome = delivered(path, receiver, boxes)
    assert (5, 1, 1, False) == (outcome.delivered, outcome.set_aside, outcome.set_aside_requests, outcome.complete)
    (log,) = path.glob("rejected-*.log")
    log.write_bytes(log.read_bytes() + log.read_bytes()[16:50])
    transports = make_transports(resolve(receiver.url))
    with closing(take(path, boxes)) as dead:
        assert dead.disk is not None
        records._store(dead, Rejected("logs", "another", 1, b""))
        assert ["'bad'", "another"] == [each.reason.rpartition(" ")[2] for each in rejected_requests(path)]
        monkeypatch.setattr("monitel_otlp.export.sender.MOST_REJECTED_BYTES", 0)
        first, second = Delivery(transports), Delivery(transports)
        first.deliver_rejected(dead)
        assert (1, 1) == (first.delivered, first.set_aside)
        receiver.forget_rules()
        second.deliver_rejected(dead)
        assert 1 == second.delivered
        second.deliver(dead)
        assert second.complete
    assert (1, False) == (receiver.record_names().count("epoch.start"), path.exists())
    for each in transports.values():
        each.close()
