"""``python -m monitel_otlp replay`` with rejected requests, faults of the backend, and damaged or unusable folders."""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import Answer, records_of
from tests.support.receiver import partial_success
from tests.support.spools import folders, spooled, write
from tests.unit.otlp.commands.spooled_run import EVENTS, POISON, events_request
from tests.unit.otlp.transport.test_error_bodies import BEHIND, IGNORED, status

import monitel_otlp.delivery.replay
from monitel_otlp.__main__ import main
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inbox import Request
    from tests.support.receiver import Receiver
    from tests.unit.otlp.commands.spooled_run import Command


def test_rejected_request_is_set_aside(receiver: Receiver, command: Command, runs: Path) -> None:
    """The request is in ``rejected/`` and counted, the exit status is 1, and other requests are delivered."""
    receiver.rule(lambda request: Answer(400, body=b"bad") if POISON in request.body else None)
    ended = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "delivered 59 items from 1 spool; refused, and set aside in rejected/: 1" == ended.stdout.splitlines()[-1]
    assert [name for name in EVENTS if name != "event 7"] == receiver.record_names()
    (message,) = runs.rglob("rejected/*.binpb")
    assert str(message) in ended.stdout + ended.stderr
    assert POISON in message.read_bytes()
    assert "bad" in message.with_suffix(".txt").read_text()


def test_rejected_requests_are_sent_again_with_an_option(receiver: Receiver, command: Command, runs: Path) -> None:
    """``--rejected`` sends them after the waiting requests; nothing is left on disk."""
    (folder,) = runs.iterdir()
    waiting = next(Spool(folder).peek(["logs"]))
    receiver.rule(lambda request: Answer(400) if request.signal == "metrics" or POISON in request.body else None)
    command("replay", runs, "--endpoint", receiver.url, returncode=1)
    with_nothing_else = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "replay --rejected sends the refused requests again" in with_nothing_else.stderr
    receiver.forget_rules()
    receiver.requests.clear()
    with closing(Spool(folder)) as spool:
        spool.append(waiting)
    ended = command("replay", runs, "--rejected", "--endpoint", receiver.url)
    assert (["event 0", "event 7"], list(range(1, 21))) == (receiver.record_names(), receiver.values("loss.count"))
    assert "delivered 22 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert [] == list(runs.rglob("*"))


def test_request_that_is_rejected_again_is_set_aside_again(receiver: Receiver, command: Command, runs: Path) -> None:
    """Its content does not change, and other files in the folder stay."""
    receiver.rule(lambda request: Answer(400) if POISON in request.body else None)
    command("replay", runs, "--endpoint", receiver.url, returncode=1)
    (before,) = runs.rglob("rejected/*.binpb")
    body, foreign = before.read_bytes(), before.with_name("mine.binpb")
    foreign.touch()
    command("replay", runs, "--rejected", "--endpoint", receiver.url, returncode=1)
    assert body == before.read_bytes()
    assert {before, before.with_suffix(".txt"), foreign} == set(before.parent.iterdir())


def test_unreachable_endpoint_loses_nothing(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the endpoint and what to do."""
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", (0.01,))
    assert 1 == main(["replay", str(runs), "--endpoint", "http://127.0.0.1:9"])
    assert re.search(r"http://127\.0\.0\.1:9.*run this command again", capsys.readouterr().err)
    assert EVENTS == spooled(runs)[1]


@pytest.mark.parametrize("status", [413, 500])
def test_replay_continues_after_a_request_that_the_backend_cannot_accept(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A request that is too large is halved; one that breaks the backend is set aside after three attempts."""
    write(tmp_path / "runs" / "spool", events_request(range(100)))
    receiver.rule(lambda request: Answer(status) if len(list(records_of(request.message))) > 10 else None)
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", (0.01, 0.01, 0.01, 0.01))
    assert (status != 413) == main(["replay", str(tmp_path / "runs"), "--endpoint", receiver.url])
    if status == 413:
        assert [f"event {number}" for number in range(100)] == receiver.record_names()
    else:
        assert 1 == len(list(tmp_path.glob("runs/*/rejected/*.binpb")))


@pytest.mark.parametrize(
    ("status", "words", "counted"),
    [
        (400, "out of order sample", 1),
        (400, "entry has timestamp too old: 2026-01-01T00:00:00Z", 1),
        (400, "(err-mimir-sample-out-of-order)", 1),
        (500, "too old sample", 1),
        (400, "no", 0),
    ],
)
def test_requests_refused_for_their_age_are_counted(
    *,
    receiver: Receiver,
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    words: str,
    counted: int,
) -> None:
    """Such requests are not retried, whatever the status."""
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", ())
    receiver.rule(lambda request: Answer(status, body=words.encode()) if POISON in request.body else None)
    assert 1 == main(["replay", str(runs), "--endpoint", receiver.url])
    result = capsys.readouterr().out.splitlines()[-1]
    assert result.startswith("delivered 59 items from 1 spool")
    assert bool(counted) is ("; refused for their age, and set aside in rejected/: 1" in result)
    assert 1 == sum(POISON in request.body for request in receiver.requests)


def test_unreadable_segment_shows_in_the_exit_status(receiver: Receiver, command: Command, raw: Path) -> None:
    """A damaged block and a file that is not a segment are counted; everything else is delivered."""
    (path,) = raw.glob("*/*.raw")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    (path.parent / "traces-000001.spool").write_bytes(b"x" * 100)
    assert EVENTS[:18] + EVENTS[19:] == re.findall(r'"eventName":"([^"]*)"', command("cat", raw, returncode=1).stdout)
    ended = command("replay", raw, "--endpoint", receiver.url, returncode=1)
    assert EVENTS[:18] + EVENTS[19:] == receiver.record_names()
    summary = "delivered 19 items from 1 spool; lost (disk 1): 1; unreadable segments or records: 2"
    assert summary == ended.stdout.splitlines()[-1]
    assert ["traces-000001.spool"] == [file.name for file in path.parent.iterdir()]


def test_items_that_a_backend_leaves_out_are_counted(receiver: Receiver, command: Command, tmp_path: Path) -> None:
    """Items that a partial success leaves out are reported as lost, and the exit status is 1."""
    write(tmp_path / "runs" / "spool", events_request(range(20)))
    receiver.rule(lambda request: partial_success("logs", 3, "no"))
    ended = command("replay", tmp_path / "runs", "--endpoint", receiver.url, returncode=1)
    assert "delivered 17 items from 1 spool; lost (partial_success 3): 3" == ended.stdout.splitlines()[-1]


def test_full_disk_is_reported_without_a_traceback(
    receiver: Receiver, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused requests and parts of requests that cannot be written are counted as lost."""
    write(tmp_path / "runs" / "spool", *(events_request([number, number + 1]) for number in range(0, 20, 2)))

    def refuse(request: Request) -> Answer | None:
        if b"event 19" in request.body:
            return Answer(413) if b"event 18" in request.body else Answer(503, {"Retry-After": "0"})
        return Answer(400) if POISON in request.body else None

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    receiver.rule(refuse)
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", ())
    ended = command("replay", tmp_path / "runs", "--endpoint", receiver.url, returncode=1)
    assert [name for number, name in enumerate(EVENTS) if number not in {7, 19}] == receiver.record_names()
    assert "delivered 18 items from 1 spool; lost (disk 1, rejected 1): 2" == ended.stdout.splitlines()[-1]
    assert "No space left on device" in ended.stderr


def test_unusable_folder_does_not_block_others(
    receiver: Receiver, command: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is reported, counted and kept, and the exit status is 1."""
    (folder,) = runs.iterdir()
    broken = [runs / "1", runs / "2", runs / "3"]
    for each in broken:
        shutil.copytree(folder, each)
    (broken[0] / "lock").unlink()
    (broken[0] / "lock").mkdir()
    (broken[1] / "lock").unlink()
    (broken[1] / "lock").symlink_to("elsewhere")
    real = os.listdir

    def listdir(folder: Any = ".") -> list[str]:
        if isinstance(folder, int) and os.fstat(folder).st_ino == broken[2].stat().st_ino:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    ended = command("replay", runs, "--rejected", "--endpoint", receiver.url, returncode=1)
    assert EVENTS == receiver.record_names()
    assert "delivered 60 items from 1 spool; folders that cannot be used: 3" == ended.stdout.splitlines()[-1]
    assert broken == folders(runs)


def test_stored_records_of_a_refused_request_are_delivered(
    receiver: Receiver, command: Command, tmp_path: Path
) -> None:
    """A backend that stores the good records reports their number; ``--rejected`` counts only those that it refused."""
    spool = Spool(tmp_path / "runs" / "one")
    spool.append(events_request(range(42)))
    spool.close()

    def refuse(request: Request) -> Answer | None:
        bad = [each for each in records_of(request.message) if int(each.name.split()[1]) % 4 == 0]
        text = BEHIND + IGNORED.format(len(bad), len(list(records_of(request.message))))
        return Answer(400, body=status(text)) if bad else None

    receiver.rule(refuse)
    ended = command("replay", tmp_path / "runs", "--endpoint", receiver.url, returncode=1)
    assert ended.stdout.splitlines()[-1].startswith(
        "delivered 31 items from 1 spool; refused, and set aside in rejected/: 11"
    )
    receiver.forget_rules()
    ended = command("replay", tmp_path / "runs", "--rejected", "--endpoint", receiver.url)
    assert "delivered 11 items from 1 spool" == ended.stdout.splitlines()[-1]
