"""``python -m monitel_otlp``: what a run has left is delivered, or looked at."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import monitel_otlp.__main__
import monitel_otlp.delivery.replay
import monitel_otlp.spool.spool
from monitel_otlp.__main__ import main
from monitel_otlp.request import REQUESTS, FrozenRequest
from monitel_otlp.spool.spool import Spool

from .inbox import Answer, records_of
from .receiver import partial_success
from .spooled_run import COMMAND, EVENTS, POISON, Command, command, events_request, raw, runs
from .spools import folders, spooled, write

if TYPE_CHECKING:
    from .conftest import Run
    from .inbox import Request
    from .receiver import Receiver

__all__ = ["command", "raw", "runs"]  # fixtures


def names(receiver: Receiver) -> list[str]:
    """The names of the records that were taken, in order of arrival."""
    return [record.name for record in receiver.records()]


def test_replay_delivers_everything_in_order(receiver: Receiver, command: Command, runs: Path) -> None:
    """Oldest first, at the times when it happened; what was delivered is removed, and said in one line."""
    kept = list(Spool(folders(runs)[0]).peek())
    left = {signal: [request.body for request in kept if request.signal == signal] for signal in REQUESTS}
    ended = command("replay", runs, "--endpoint", receiver.url)
    assert left == {signal: [request.body for request in receiver.of(signal)] for signal in REQUESTS}
    assert list(range(1, 21)) == receiver.values("loss.count")
    assert (EVENTS, 20) == (names(receiver), len(receiver.spans()))
    age, result = ended.stdout.splitlines()
    assert re.fullmatch(r"the oldest data is from \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, less than two minutes ago", age)
    assert "delivered 60 items from 1 spool" == result
    assert [] == list(runs.iterdir())


def test_replay_may_be_given_one_spool(receiver: Receiver, command: Command, runs: Path) -> None:
    """The folder that a run's last line names; the endpoint comes from the variable."""
    (folder,) = runs.iterdir()
    command("replay", folder, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert EVENTS == names(receiver)


def test_replay_runs_twice_safely(receiver: Receiver, command: Command, runs: Path) -> None:
    """The second time there is nothing to deliver, and it says so."""
    command("replay", runs, "--endpoint", receiver.url)
    sent = len(receiver.requests)
    again = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert re.search("nothing is left to deliver", again.stderr)
    assert sent == len(receiver.requests)


def test_replay_goes_on_where_it_was_stopped(receiver: Receiver, command: Command, runs: Path) -> None:
    """The backend fails in the middle: what it had is not sent again, the rest comes with the next run."""
    receiver.rule(lambda request: Answer(401) if POISON in request.body else None)
    ended = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "401" in ended.stderr
    assert "run this again" in ended.stderr
    assert EVENTS[:7] == names(receiver)
    assert EVENTS[7:] == spooled(runs)[1]
    done = re.fullmatch("delivered ([0-9]+) items from 1 spool", ended.stdout.splitlines()[-1])
    nothing = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "run this again" in nothing.stderr
    assert "delivered 0 items from 1 spool" == nothing.stdout.splitlines()[-1]
    receiver.forget_rules()
    rest = command("replay", runs, "--endpoint", receiver.url)
    assert done
    assert f"delivered {60 - int(done[1])} items from 1 spool" == rest.stdout.splitlines()[-1]
    assert EVENTS == names(receiver)
    assert list(range(1, 21)) == receiver.values("loss.count")


def test_replay_waits_for_a_busy_backend(receiver: Receiver, command: Command, runs: Path) -> None:
    """503 and a lost connection are tried again, and cost neither data nor order."""
    receiver.answer("logs", Answer(), Answer(503, {"Retry-After": "0"}), Answer(429, {"Retry-After": "0"}))
    command("replay", runs, "--endpoint", receiver.url)
    assert EVENTS == names(receiver)


def test_replay_sets_aside_what_is_rejected(receiver: Receiver, command: Command, runs: Path) -> None:
    """A poisoned request does not keep the others. It is in ``rejected/``, counted, and shows in the exit status."""
    receiver.rule(lambda request: Answer(400, body=b"bad") if POISON in request.body else None)
    ended = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "delivered 59 items from 1 spool; refused, and set aside in rejected/: 1" == ended.stdout.splitlines()[-1]
    assert [name for name in EVENTS if name != "event 7"] == names(receiver)
    (message,) = runs.rglob("rejected/*.binpb")
    assert str(message) in ended.stdout + ended.stderr
    assert POISON in message.read_bytes()
    assert "bad" in message.with_suffix(".txt").read_text()


def test_what_was_rejected_is_sent_again_when_it_is_asked_for(receiver: Receiver, command: Command, runs: Path) -> None:
    """Not otherwise; behind what waits, counted as before, and nothing of it is left on disk."""
    (folder,) = runs.iterdir()
    waiting = next(Spool(folder).peek(["logs"]))
    receiver.rule(lambda request: Answer(400) if request.signal == "metrics" or POISON in request.body else None)
    command("replay", runs, "--endpoint", receiver.url, returncode=1)
    with_nothing_else = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "replay --rejected sends what was refused again" in with_nothing_else.stderr
    receiver.forget_rules()
    receiver.requests.clear()
    with closing(Spool(folder)) as spool:
        spool.append(waiting)
    ended = command("replay", runs, "--rejected", "--endpoint", receiver.url)
    assert (["event 0", "event 7"], list(range(1, 21))) == (names(receiver), receiver.values("loss.count"))
    assert "delivered 22 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert [] == list(runs.rglob("*"))


def test_what_is_rejected_twice_is_set_aside_twice(receiver: Receiver, command: Command, runs: Path) -> None:
    """It is the same as before, beside what comes to it, and a foreign file stays where it is."""
    receiver.rule(lambda request: Answer(400) if POISON in request.body else None)
    command("replay", runs, "--endpoint", receiver.url, returncode=1)
    (before,) = runs.rglob("rejected/*.binpb")
    body, foreign = before.read_bytes(), before.with_name("mine.binpb")
    foreign.touch()
    command("replay", runs, "--rejected", "--endpoint", receiver.url, returncode=1)
    assert body == before.read_bytes()
    assert {before, before.with_suffix(".txt"), foreign} == set(before.parent.iterdir())


def test_replay_leaves_what_is_in_use_and_delivers_the_rest(receiver: Receiver, command: Command, runs: Path) -> None:
    """One process of many is still running: the others' spools are delivered, its own is named."""
    (folder,) = runs.iterdir()
    running = runs / "20000101-000000-1-1"  # comes first
    shutil.copytree(folder, running)
    with closing(Spool(running)) as spool:
        spool.load()
        ended = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "is in use" in ended.stderr
    assert str(running) in ended.stderr
    assert EVENTS == names(receiver)
    assert [running] == folders(runs)


def test_replay_sends_the_headers_that_it_is_given(receiver: Receiver, command: Command, runs: Path) -> None:
    """By option or by variable."""
    command("replay", runs, "--endpoint", receiver.url, "--header", "Tenant=a=b", "--header", "Other=c")
    assert {("a=b", "c")} == {(each.headers["tenant"], each.headers["other"]) for each in receiver.requests}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "typo", "--endpoint", "http://127.0.0.1:9"], ["there is no folder", "typo"]),
        (["replay", "state", "--endpoint", "http://127.0.0.1:9"], ["no spooled telemetry"]),
        (["replay", "runs"], ["no endpoint", "--endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"]),
        (["replay", "runs", "--endpoint", "localhost:4318"], ["endpoint", "http://"]),
        (["replay", "runs", "--endpoint", "http://127.0.0.1:9", "--header", "sesame"], ["NAME=VALUE"]),
        (["cat", "typo"], ["there is no folder", "typo"]),
        (["cat", "state"], ["no spooled telemetry"]),
        (["cat", "odd"], ["no spooled telemetry"]),
    ],
    ids=" ".join,
)
def test_a_mistake_gives_one_line(run: Run, runs: Path, arguments: list[str], words: list[str]) -> None:
    """No traceback, status 1, nothing lost, and no token repeated."""
    Path("state").mkdir()
    Path("odd/metrics-000001.spool").mkdir(parents=True)
    ended = run(*COMMAND, *arguments, returncode=1)
    (line,) = ended.stderr.splitlines()
    assert [] == [word for word in words if word not in line]
    assert "sesame" not in line
    assert EVENTS == spooled(runs)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "runs"], "interrupted; run this again to go on"),
        (["cat", "runs"], "interrupted"),
        (["doctor"], "interrupted before every endpoint had its time to answer"),
        (["simulate"], "interrupted; ranks still at work are gone, with what was in their memory"),
    ],
    ids=str,
)
def test_ctrl_c_is_answered_by_what_it_means(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    """A line for each command: only one of them goes on where it was."""

    def pressed(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(monitel_otlp.__main__, f"_{arguments[0]}", pressed)
    assert 130 == main(arguments)
    assert ("", f"monitel_otlp: {words}\n") == capsys.readouterr()


@pytest.mark.parametrize("arguments", [[], ["replay"], ["dance"], ["--help"]], ids=" ".join)
def test_the_command_explains_itself(run: Run, arguments: list[str]) -> None:
    """Usage, as every command has it."""
    ended = run(*COMMAND, *arguments, returncode=0 if "--help" in arguments else 2)
    assert "python -m monitel_otlp" in ended.stdout + ended.stderr


def test_an_unreachable_endpoint_loses_nothing(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, with what to do."""
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", (0.01,))
    assert 1 == main(["replay", str(runs), "--endpoint", "http://127.0.0.1:9"])
    assert re.search(r"http://127\.0\.0\.1:9.*run this again", capsys.readouterr().err)
    assert EVENTS == spooled(runs)[1]


@pytest.mark.parametrize("status", [413, 500])
def test_replay_gets_past_what_the_backend_cannot_take(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """As the pipeline does: what is too large is halved, what breaks the backend is set aside after three tries."""
    write(tmp_path / "runs" / "spool", events_request(range(100)))
    receiver.rule(lambda request: Answer(status) if len(list(records_of(request.message))) > 10 else None)
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", (0.01, 0.01, 0.01, 0.01))
    assert (status != 413) == main(["replay", str(tmp_path / "runs"), "--endpoint", receiver.url])
    if status == 413:
        assert [f"event {number}" for number in range(100)] == names(receiver)
    else:
        assert 1 == len(list(tmp_path.glob("runs/*/rejected/*.binpb")))


HOUR_NS = 3600 * 10**9
PROMETHEUS = "Prometheus refuses metrics of that age, .*out_of_order_time_window is {} or more"
LOKI = "Loki refuses log records .* more than a week old.*reject_old_samples is false"


@pytest.mark.parametrize(
    ("hours", "words", "advice"),
    [
        ({"metrics": 0.5, "logs": 0.01}, "30 minutes", []),
        ({"metrics": 1.5, "logs": 3}, "3 hours", [PROMETHEUS.format("3h")]),
        ({"metrics": 49, "traces": 70}, "2 days", [PROMETHEUS.format("51h")]),
        ({"logs": 7 * 24 + 1}, "7 days", [LOKI]),
        ({"metrics": 240, "logs": 240, "traces": 1}, "10 days", [PROMETHEUS.format("242h"), LOKI]),
        ({"traces": 9999}, "416 days", []),
    ],
    ids=str,
)
def test_replay_says_how_old_the_data_is(
    *,
    receiver: Receiver,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hours: dict[str, float],
    words: str,
    advice: list[str],
) -> None:
    """The oldest of all folders, and what backends do with data of that age, before anything is sent."""
    for signal, age in hours.items():
        for younger in (0, 1):
            with closing(Spool(tmp_path / "runs" / f"{signal}{younger}")) as spool:
                created_ns = time.time_ns() - int(age * HOUR_NS / (1 + younger)) - 10**9
                spool.append(FrozenRequest(signal, REQUESTS[signal]().SerializeToString(), 1, created_ns))
    assert 0 == main(["replay", str(tmp_path / "runs"), "--endpoint", receiver.url])
    first, *more, result = capsys.readouterr().out.splitlines()
    assert first.endswith(f", {words} ago")
    assert [True] * len(advice) == [bool(re.match(*pair)) for pair in zip(advice, more, strict=True)]
    assert f"delivered {2 * len(hours)} items from {2 * len(hours)} spools" == result


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
def test_what_was_refused_for_its_age_is_counted(
    *,
    receiver: Receiver,
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    words: str,
    counted: int,
) -> None:
    """And not asked for again, with whatever status it was refused: it only gets older."""
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", ())
    receiver.rule(lambda request: Answer(status, body=words.encode()) if POISON in request.body else None)
    assert 1 == main(["replay", str(runs), "--endpoint", receiver.url])
    result = capsys.readouterr().out.splitlines()[-1]
    assert result.startswith("delivered 59 items from 1 spool")
    assert bool(counted) is ("; refused for their age, and set aside in rejected/: 1" in result)
    assert 1 == sum(POISON in request.body for request in receiver.requests)


def test_replay_compresses(receiver: Receiver, run: Run, runs: Path) -> None:
    """With OTEL_EXPORTER_OTLP_COMPRESSION=gzip what is sent is compressed; what is kept is not."""
    assert EVENTS == re.findall(r'"eventName":"([^"]*)"', run(*COMMAND, "cat", runs).stdout)
    compressed = {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    run(*COMMAND, "replay", runs, "--endpoint", receiver.url, env=compressed)
    assert EVENTS == names(receiver)
    assert {"gzip"} == {request.headers["content-encoding"] for request in receiver.requests}


def test_raw_segments_are_printed_and_delivered_as_requests(receiver: Receiver, command: Command, raw: Path) -> None:
    """In their place among the others; a replay that was stopped in the middle of one goes on there."""
    assert EVENTS == re.findall(r'"eventName":"([^"]*)"', command("cat", raw).stdout)
    receiver.rule(lambda request: Answer(401) if POISON in request.body else None)
    ended = command("replay", raw, "--endpoint", receiver.url, returncode=1)
    assert "delivered 7 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert EVENTS[7:] == re.findall(r'"eventName":"([^"]*)"', command("cat", raw).stdout)
    receiver.forget_rules()
    ended = command("replay", raw, "--endpoint", receiver.url)
    assert "delivered 13 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert EVENTS == names(receiver)
    assert [] == list(raw.iterdir())


def test_what_cannot_be_read_shows_in_the_exit_status(receiver: Receiver, command: Command, raw: Path) -> None:
    """A damaged block and a file that is not a segment are counted; everything else is delivered."""
    (path,) = raw.glob("*/*.raw")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    (path.parent / "traces-000001.spool").write_bytes(b"x" * 100)
    assert EVENTS[:18] + EVENTS[19:] == re.findall(r'"eventName":"([^"]*)"', command("cat", raw, returncode=1).stdout)
    ended = command("replay", raw, "--endpoint", receiver.url, returncode=1)
    assert EVENTS[:18] + EVENTS[19:] == names(receiver)
    summary = "delivered 19 items from 1 spool; lost (disk 1): 1; unreadable segments or records: 2"
    assert summary == ended.stdout.splitlines()[-1]
    assert ["traces-000001.spool"] == [file.name for file in path.parent.iterdir()]


def test_a_signal_without_an_endpoint_does_not_keep_the_others(
    receiver: Receiver, command: Command, runs: Path
) -> None:
    """It stays where it is."""
    logs = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.url}/v1/logs"}
    ended = command("replay", runs, env=logs, returncode=1)
    assert "no endpoint for them: give --endpoint" in ended.stderr
    assert EVENTS == names(receiver)
    assert (list(range(1, 21)), []) == spooled(runs)


def test_items_that_a_backend_leaves_out_are_counted(receiver: Receiver, command: Command, tmp_path: Path) -> None:
    """A partial success is not a complete one."""
    write(tmp_path / "runs" / "spool", events_request(range(20)))
    receiver.rule(lambda request: partial_success("logs", 3, "no"))
    ended = command("replay", tmp_path / "runs", "--endpoint", receiver.url, returncode=1)
    assert "delivered 17 items from 1 spool; lost (partial_success 3): 3" == ended.stdout.splitlines()[-1]


def test_a_full_disk_is_reported_in_one_line_each(
    receiver: Receiver, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was refused nor parts of a request can be kept: they are counted as lost, without a traceback."""
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
    assert [name for number, name in enumerate(EVENTS) if number not in {7, 19}] == names(receiver)
    assert "delivered 18 items from 1 spool; lost (disk 1, rejected 1): 2" == ended.stdout.splitlines()[-1]
    assert "No space left on device" in ended.stderr


def test_a_folder_that_cannot_be_used_does_not_keep_the_others(
    receiver: Receiver, command: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with it: it is named, counted, and stays; the status is not 0."""
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
    assert EVENTS == names(receiver)
    assert "delivered 60 items from 1 spool; folders that cannot be used: 3" == ended.stdout.splitlines()[-1]
    assert broken == folders(runs)


def test_two_replays_at_once_deliver_each_request_once(receiver: Receiver, runs: Path) -> None:
    """A folder belongs to one of them; the other one reports it, and goes on."""
    (folder,) = runs.iterdir()
    for number in range(3):
        shutil.copytree(folder, runs / str(number))
    arguments = [sys.executable, *COMMAND, "replay", str(runs), "--endpoint", receiver.url]
    pair = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60) for process in pair]
    delivered = [re.search(r"delivered ([0-9]+) items", stdout) for stdout, _ in printed]
    assert 240 == sum(int(found[1]) for found in delivered if found)
    assert 4 * len(EVENTS) == len(names(receiver))
    assert [] == list(runs.iterdir())
    assert {process.returncode for process in pair} <= {0, 1}
    assert "Traceback" not in "".join(stderr for _, stderr in printed)
