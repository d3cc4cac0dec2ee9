"""``python -m monitel_otlp replay``: spooled telemetry is delivered, oldest first; and errors of all commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import Answer
from tests.support.spools import folders, spooled
from tests.unit.otlp.commands.spooled_run import COMMAND, EVENTS, POISON

import monitel_otlp.commands.parser
from monitel_otlp.__main__ import main
from monitel_otlp.messages.request import REQUESTS, FrozenRequest
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run
    from tests.unit.otlp.commands.spooled_run import Command


def test_replay_delivers_everything_in_order(receiver: Receiver, command: Command, runs: Path) -> None:
    """Requests are sent oldest first with their original times, and removed; one line reports their number."""
    kept = list(Spool(folders(runs)[0]).peek())
    left = {signal: [request.body for request in kept if request.signal == signal] for signal in REQUESTS}
    ended = command("replay", runs, "--endpoint", receiver.url)
    assert left == {signal: [request.body for request in receiver.of(signal)] for signal in REQUESTS}
    assert list(range(1, 21)) == receiver.values("loss.count")
    assert (EVENTS, 20) == (receiver.record_names(), len(receiver.spans()))
    age, result = ended.stdout.splitlines()
    assert re.fullmatch(r"the oldest data is from \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, less than two minutes ago", age)
    assert "delivered 60 items from 1 spool" == result
    assert [] == list(runs.iterdir())


def test_pipelines_of_one_process_are_replayed_in_their_order(
    receiver: Receiver, command: Command, train: Run, tmp_path: Path
) -> None:
    """Each has a separate spool, all within a second. Prometheus refuses points older than the last one of a series."""
    train(
        "for number in range(8):\n"
        "    with monitel_otlp.configure(export_interval=3600.0, spool_dir='several'):\n"
        "        monitel.log({'run': number})\n"
    )
    command("replay", tmp_path / "several", "--endpoint", receiver.url)
    assert list(range(8)) == receiver.values("run")


def test_replay_may_be_given_one_spool(receiver: Receiver, command: Command, runs: Path) -> None:
    """The argument may be the folder in the last line of a run; the endpoint may be set by the variable."""
    (folder,) = runs.iterdir()
    command("replay", folder, env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert EVENTS == receiver.record_names()


def test_second_replay_sends_nothing(receiver: Receiver, command: Command, runs: Path) -> None:
    """The message says that nothing is left to deliver."""
    command("replay", runs, "--endpoint", receiver.url)
    sent = len(receiver.requests)
    again = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert re.search("nothing is left to deliver", again.stderr)
    assert sent == len(receiver.requests)


def test_replay_resumes_where_it_stopped(receiver: Receiver, command: Command, runs: Path) -> None:
    """If the backend fails during a replay, the next one sends only the remaining requests."""
    receiver.rule(lambda request: Answer(401) if POISON in request.body else None)
    ended = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "401" in ended.stderr
    assert "run this command again" in ended.stderr
    assert EVENTS[:7] == receiver.record_names()
    assert EVENTS[7:] == spooled(runs)[1]
    done = re.fullmatch("delivered ([0-9]+) items from 1 spool", ended.stdout.splitlines()[-1])
    nothing = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "run this command again" in nothing.stderr
    assert "delivered 0 items from 1 spool" == nothing.stdout.splitlines()[-1]
    receiver.forget_rules()
    rest = command("replay", runs, "--endpoint", receiver.url)
    assert done
    assert f"delivered {60 - int(done[1])} items from 1 spool" == rest.stdout.splitlines()[-1]
    assert EVENTS == receiver.record_names()
    assert list(range(1, 21)) == receiver.values("loss.count")


def test_replay_waits_for_a_busy_backend(receiver: Receiver, command: Command, runs: Path) -> None:
    """Status 503 and 429 are retried, and everything arrives in order."""
    receiver.answer("logs", Answer(), Answer(503, {"Retry-After": "0"}), Answer(429, {"Retry-After": "0"}))
    command("replay", runs, "--endpoint", receiver.url)
    assert EVENTS == receiver.record_names()


def test_replay_skips_a_spool_in_use(receiver: Receiver, command: Command, runs: Path) -> None:
    """The message names the spool of the running process; the others are delivered."""
    (folder,) = runs.iterdir()
    running = runs / "20000101-000000-1-1"  # comes first
    shutil.copytree(folder, running)
    with closing(Spool(running)) as spool:
        spool.load()
        ended = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "is in use" in ended.stderr
    assert str(running) in ended.stderr
    assert EVENTS == receiver.record_names()
    assert [running] == folders(runs)


def test_replay_sends_the_given_headers(receiver: Receiver, command: Command, runs: Path) -> None:
    """``--header`` may be given several times."""
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
def test_invalid_argument_prints_one_line(run: Run, runs: Path, arguments: list[str], words: list[str]) -> None:
    """The exit status is 1, without a traceback; nothing is lost, and no token is printed."""
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
        (["replay", "runs"], "interrupted; run this command again to continue"),
        (["cat", "runs"], "interrupted"),
        (["doctor"], "interrupted before every endpoint had answered"),
        (["simulate"], "interrupted; ranks that were still running have lost the telemetry in their memory"),
    ],
    ids=str,
)
def test_ctrl_c_prints_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    """The line says what was interrupted, and whether the command can be continued."""

    def pressed(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(monitel_otlp.commands.parser, f"_{arguments[0]}", pressed)
    assert 130 == main(arguments)
    assert ("", f"monitel: {words}\n") == capsys.readouterr()


@pytest.mark.parametrize("arguments", [[], ["cat"], ["dance"], ["--help"]], ids=" ".join)
def test_command_prints_its_usage(run: Run, arguments: list[str]) -> None:
    """The exit status is 2 unless the usage was asked for."""
    ended = run(*COMMAND, *arguments, returncode=0 if "--help" in arguments else 2)
    assert "python -m monitel_otlp" in ended.stdout + ended.stderr


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
def test_replay_reports_the_age_of_the_data(
    *,
    receiver: Receiver,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hours: dict[str, float],
    words: str,
    advice: list[str],
) -> None:
    """The age of the oldest request in all folders, with advice for backends that refuse old data."""
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


def test_replay_compresses(receiver: Receiver, run: Run, runs: Path) -> None:
    """OTEL_EXPORTER_OTLP_COMPRESSION=gzip compresses requests when they are sent; the spool is not compressed."""
    assert EVENTS == re.findall(r'"eventName":"([^"]*)"', run(*COMMAND, "cat", runs).stdout)
    compressed = {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    run(*COMMAND, "replay", runs, "--endpoint", receiver.url, env=compressed)
    assert EVENTS == receiver.record_names()
    assert {"gzip"} == {request.headers["content-encoding"] for request in receiver.requests}


def test_raw_segments_are_printed_and_delivered_as_requests(receiver: Receiver, command: Command, raw: Path) -> None:
    """Raw segments keep their position among other requests, and a replay resumes inside a raw segment."""
    assert EVENTS == re.findall(r'"eventName":"([^"]*)"', command("cat", raw).stdout)
    receiver.rule(lambda request: Answer(401) if POISON in request.body else None)
    ended = command("replay", raw, "--endpoint", receiver.url, returncode=1)
    assert "delivered 7 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert EVENTS[7:] == re.findall(r'"eventName":"([^"]*)"', command("cat", raw).stdout)
    receiver.forget_rules()
    ended = command("replay", raw, "--endpoint", receiver.url)
    assert "delivered 13 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert EVENTS == receiver.record_names()
    assert [] == list(raw.iterdir())


@pytest.mark.parametrize(
    ("signal", "words"),
    [
        ("metrics", "set OTEL_EXPORTER_OTLP_LOGS_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ("logs", "the metrics and traces in "),
        ("traces", "because no endpoint is set for them"),
    ],
)
def test_signal_without_an_endpoint_does_not_block_others(
    receiver: Receiver, command: Command, runs: Path, signal: str, words: str
) -> None:
    """Its requests stay in the spool; the last line names the variables to set, and then the rest is delivered."""
    (folder,) = folders(runs)
    shutil.copytree(folder, runs / "other")
    variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    ended = command("replay", runs, env={variable: f"{receiver.url}/v1/{signal}"}, returncode=1)
    assert ("delivered 40 items from 2 spools", 1) == (ended.stdout.splitlines()[-1], ended.stderr.count(words))
    assert 40 == len(receiver.of(signal)) == len(receiver.requests)
    assert {*REQUESTS} - {signal} == {request.signal for each in folders(runs) for request in Spool(each).peek()}
    command("replay", runs, "--endpoint", receiver.url)
    assert 120 == len(receiver.requests)
    assert [] == list(runs.iterdir())


@pytest.mark.parametrize("signal", list(REQUESTS))
def test_signal_that_is_refused_does_not_block_others(
    receiver: Receiver, command: Command, runs: Path, signal: str
) -> None:
    """A backend of one signal answers 404 to the others: each is reported once, and stays in the spool."""
    receiver.rule(lambda request: None if request.signal == signal else Answer(404))
    ended = command("replay", runs, "--endpoint", receiver.url, returncode=1)
    assert "delivered 20 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert 2 == len(re.findall("HTTP 404: no OTLP receiver at this path: .* run this command again", ended.stderr))
    assert {*REQUESTS} - {signal} == {request.signal for request in Spool(folders(runs)[0]).peek()}


def test_concurrent_replays_deliver_each_request_once(receiver: Receiver, runs: Path) -> None:
    """A folder that one replay uses is reported and skipped by the other."""
    (folder,) = runs.iterdir()
    for number in range(3):
        shutil.copytree(folder, runs / str(number))
    arguments = [sys.executable, *COMMAND, "replay", str(runs), "--endpoint", receiver.url]
    pair = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60) for process in pair]
    delivered = [re.search(r"delivered ([0-9]+) items", stdout) for stdout, _ in printed]
    assert 240 == sum(int(found[1]) for found in delivered if found)
    assert 4 * len(EVENTS) == len(receiver.record_names())
    assert [] == list(runs.iterdir())
    assert {process.returncode for process in pair} <= {0, 1}
    assert "Traceback" not in "".join(stderr for _, stderr in printed)
