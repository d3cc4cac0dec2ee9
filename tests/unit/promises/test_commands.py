"""``monitel cat``, ``replay`` and ``doctor``: their text, exit status, and what they deliver."""

import marshal
import math
import os
import re
import shutil
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Program
from tests.support.hostile import refusing_url
from tests.support.inbox import DEADLINE, TEMPORALITY, Answer, Inbox, Request
from tests.support.producers import record_ranges
from tests.support.receiver import MESSAGES, Receiver, partial_success
from tests.support.spools import cat, parse
from tests.support.validity.requests import assert_valid

import monitel
import monitel_otlp
from monitel import COUNT, MEAN, Stat
from monitel.blackbox.folder import Folder
from monitel.blackbox.record import SlotFile
from monitel.testing import ManualClock

SIGNALS = ["metrics", "logs", "traces"]
EVENTS = [f"event {number}" for number in range(6)]
POISON = b"event 3"


@pytest.fixture
def runs(clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with the spool of a run without a backend: six requests of each signal, with one item each."""
    with monitel_otlp.configure(spool_dir="runs", export_interval=3600.0, spans=True) as pipeline:
        loss = Stat("loss", [COUNT, MEAN], 60.0, attributes={"r\u00e9seau": "\u00e9"})
        for number, name in enumerate(EVENTS):
            monitel.emit(name, why="tiefe Gr\u00f6\u00dfe")
            loss.add([1.0, math.nan, math.inf][number % 3])
            record_ranges("step")
            clock.advance(60)
            assert pipeline.force_flush(DEADLINE)
    capsys.readouterr()
    return tmp_path / "runs"


def refuse(receiver: Receiver, answer: Answer) -> None:
    """Let a backend give an answer to requests that contain one of the events."""
    receiver.rule(lambda request: answer if POISON in request.body else None)


def test_cat_prints_each_request_as_a_line_of_otlp_json(program: Program, runs: Path) -> None:
    """Parsed by the rules of OTLP's JSON it is what was recorded: values, names, times, hexadecimal ids, NaN."""
    text = program("cat", runs).stdout
    found = parse(text)
    assert_valid(found.requests)
    assert repr([1.0, math.nan, math.inf] * 2) == repr(found.values("loss.mean"))
    assert {"r\u00e9seau": "\u00e9"} == found.points("loss.mean")[0].attributes
    assert (EVENTS, 6) == (found.names, len(found.spans))
    ids = re.findall(r'"(traceId|spanId)":"([0-9a-f]+)"', text)
    assert {("traceId", 32), ("spanId", 16)} == {(name, len(value)) for name, value in ids}
    assert {"9"} == set(re.findall(r'"severityNumber":([^,]*)', text))
    for words in ('"NaN"', '"Infinity"', "tiefe Gr\u00f6\u00dfe"):
        assert words in text


def test_cat_removes_nothing_and_reads_a_spool_in_use(receiver: Receiver, program: Program) -> None:
    with monitel_otlp.configure(spool_dir="runs", export_interval=3600.0) as pipeline:
        monitel.emit("first")
        assert pipeline.force_flush(DEADLINE)
        before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
        assert ["first"] == cat("runs").names
        assert ["first"] == cat(pipeline.spool_dir).names
        assert before == {path: path.read_bytes() for path in before}
        assert "is in use" in program("replay", "runs", "--endpoint", receiver.url, status=1).stderr
        monitel.emit("second")
    assert ["first", "second"] == cat("runs").names
    assert [] == receiver.requests


def test_folder_that_others_can_write_to_is_refused(receiver: Receiver, program: Program, runs: Path) -> None:
    """Nothing of it is read until its permissions are right."""
    (folder,) = runs.iterdir()
    folder.chmod(0o777)
    for words in (["cat", runs], ["replay", runs, "--endpoint", receiver.url]):
        assert "run chmod go-w on it" in program(*words, status=1).stderr
    folder.chmod(0o700)
    assert ([], EVENTS) == (receiver.requests, cat(runs).names)


def test_senseless_spool_is_set_aside_and_reported_once(receiver: Receiver, program: Program, runs: Path) -> None:
    """The warning names its folder. Everything else is delivered, and later commands leave it alone."""
    (whole,) = runs.iterdir()
    copy = whole.with_name("20260101T000000-1-1-000000")
    shutil.copytree(whole, copy)
    with closing(Folder.open(copy)) as folder:
        SlotFile(folder, "totals").write(marshal.dumps("senseless", 2))
    words = ["replay", runs, "--endpoint", receiver.url]
    printed = program(*words, status=1)
    assert f"'{copy}' cannot be read: it is senseless, and set aside with the suffix .corrupt" in printed.stderr
    assert "delivered 18 items from 1 spool; folders that cannot be used: 1" == printed.last
    assert EVENTS == receiver.record_names()
    assert "nothing is left to deliver" in program(*words).stderr
    assert ["20260101T000000-1-1-000000.corrupt"] == [path.name for path in runs.iterdir()]


def test_damage_costs_its_items_and_shows_in_the_exit_status(receiver: Receiver, program: Program, runs: Path) -> None:
    """A damaged record, and those behind it in its file, are counted; everything else is printed and delivered."""
    for path in runs.glob("*/logs-*.log"):
        path.write_bytes(path.read_bytes().replace(POISON, b"Event 3"))
    printed = program("cat", runs, status=1)
    found, damage = parse(printed.stdout).names, "is damaged: 1 of its items cannot be read\n"
    assert (EVENTS[:3], True) == (found[:3], damage in printed.stderr)
    assert POISON.decode() not in found
    printed = program("replay", runs, "--endpoint", receiver.url, status=1)
    assert (found, True) == (receiver.record_names(), damage in printed.stderr)
    assert f"delivered {12 + len(found)} items from 1 spool; unreadable items: 1" == printed.last


def test_replay_delivers_everything_once_in_order(receiver: Receiver, program: Program, runs: Path) -> None:
    """Messages arrive as ``cat`` prints them, byte for byte and with the original times, and leave the disk."""
    kept = cat(runs).requests
    printed = program("replay", runs, "--endpoint", receiver.url)
    for signal in SIGNALS:
        expected = [message.SerializeToString() for each, message in kept if each == signal]
        assert expected == [request.message.SerializeToString() for request in receiver.of(signal)]
    assert ([1, 2, 3, 4, 5, 6], EVENTS) == (receiver.values("loss.count"), receiver.record_names())
    assert "delivered 18 items from 1 spool" == printed.last
    assert [] == [*runs.iterdir()]
    sent = len(receiver.requests)
    again = program("replay", runs, "--endpoint", receiver.url)
    assert ("nothing is left to deliver" in again.stderr, sent) == (True, len(receiver.requests))


def test_replay_has_a_default_folder(receiver: Receiver, grpc_receiver: Any, program: Program, runs: Path) -> None:
    """MONITEL_SPOOL_DIR, else the place of ``configure()``; it takes the folder in the last line of a run, too.

    Those of ``monitel.start()`` in the current folder are delivered as well.
    """
    (folder,) = runs.iterdir()
    for place in (runs.with_name("variable"), runs.with_name("state") / "monitel"):
        shutil.copytree(folder, place / folder.name)
    shutil.copytree(runs, "runs-again")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    over_grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": grpc_receiver.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    for words, more in (([folder], over_grpc), ([], {"MONITEL_SPOOL_DIR": "variable"}), ([], {})):
        assert "delivered 18 items from 1 spool" == program("replay", *words, env={**env, **more}).last
    assert EVENTS == grpc_receiver.record_names()
    shutil.copytree("runs-again", "monitel-runs/my-run-20260101-1")
    assert "delivered 18 items from 1 spool" == program("replay", env=env).last
    assert "/state/monitel' or 'monitel-runs': nothing is left" in program("replay", env=env).stderr


def test_replay_resumes_where_it_stopped(receiver: Receiver, program: Program, runs: Path) -> None:
    """While the backend refuses the token everything stays, in order; the next replay sends only the rest."""
    refuse(receiver, Answer(401))
    printed = program("replay", runs, "--endpoint", receiver.url, status=1)
    assert re.search(r"401.*run this command again", printed.stderr)
    assert ("delivered 12 items from 1 spool", []) == (printed.last, receiver.record_names())
    assert EVENTS == cat(runs).names
    receiver.forget_rules()
    assert "delivered 6 items from 1 spool" == program("replay", runs, "--endpoint", receiver.url).last
    assert (EVENTS, [1, 2, 3, 4, 5, 6]) == (receiver.record_names(), receiver.values("loss.count"))


def test_rejected_request_is_set_aside_and_sent_on_request(receiver: Receiver, program: Program, runs: Path) -> None:
    """The request is in the spool with the answer; others are delivered. ``--rejected`` sends it, even twice."""
    refuse(receiver, Answer(400, body=b"bad"))
    printed = program("replay", runs, "--endpoint", receiver.url, status=1)
    assert "delivered 17 items from 1 spool; refused, and set aside in the spool: 1" == printed.last
    for words in ("a request was rejected: http.*: HTTP 400: 'bad'", "order_time_window", "old_samples_max_age"):
        assert re.search(words, printed.stderr)
    (kept,) = runs.rglob("rejected-*.log")
    assert (True, True) == (POISON in kept.read_bytes(), b"bad" in kept.read_bytes())
    kept.write_bytes(kept.read_bytes() + kept.read_bytes()[16:50])  # as after a kill in the middle of a write
    hint = program("replay", runs, "--endpoint", receiver.url, status=1)
    assert "replay --rejected sends the refused requests again" in hint.stderr
    program("replay", runs, "--rejected", "--endpoint", receiver.url, status=1)
    assert [kept.parent] == [each.parent for each in runs.rglob("rejected-*.log")]
    receiver.forget_rules()
    assert "delivered 1 item from 1 spool" == program("replay", runs, "--rejected", "--endpoint", receiver.url).last
    assert sorted(EVENTS) == sorted(receiver.record_names())
    assert [] == [*runs.rglob("*")]


def test_folder_with_waiting_and_rejected_items_is_named_once(
    receiver: Receiver, program: Program, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitel_otlp.export.sender._LONGEST_PAUSE", 0.0)
    refuse(receiver, Answer(400))
    receiver.rule(lambda request: Answer(503) if b"event 5" in request.body and POISON not in request.body else None)
    program("replay", runs, "--endpoint", receiver.url, status=1)
    receiver.rule(lambda _: Answer(503))
    printed = program("replay", runs, "--rejected", "--endpoint", receiver.url, status=1)
    assert (1, 0) == (printed.stderr.count("the rest is still in"), printed.stderr.count("more folder"))


def test_requests_with_which_a_backend_fails_are_soon_tried_once(
    receiver: Receiver, program: Program, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Collector answers 500 for data that is too old for Prometheus: a day of it must not take hours."""
    monkeypatch.setattr("monitel_otlp.export.sender._LONGEST_PAUSE", 0.0)
    receiver.rule(lambda _request: Answer(500))
    program("replay", runs, "--endpoint", receiver.url, status=1)
    assert [3, 3, 1] == [max(Counter(each.body for each in receiver.of(signal)).values()) for signal in SIGNALS]


def test_record_that_another_process_delivers_is_no_error(receiver: Receiver, program: Program, runs: Path) -> None:
    others = [shutil.copytree(next(runs.iterdir()), runs / name) for name in ("x", "y")]

    def deliver_the_others(_request: Request) -> None:
        for folder in others:
            shutil.rmtree(folder, ignore_errors=True)

    receiver.rule(deliver_the_others)
    assert "delivered 18 items from 1 spool" == program("replay", runs, "--endpoint", receiver.url).last


def test_backend_that_is_down_gets_no_attempt_for_each_spool(
    receiver: Receiver, program: Program, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five for the first signal, and one for each other signal. What remains is named once for each signal."""
    monkeypatch.setattr("monitel_otlp.export.sender._LONGEST_PAUSE", 0.01)
    for name in ("x", "y"):
        shutil.copytree(next(runs.iterdir()), runs / name)
    receiver.rule(lambda _: Answer(503))
    printed = program("replay", runs, "--endpoint", receiver.url, status=1)
    assert [5, 1, 1] == [len(receiver.of(signal)) for signal in SIGNALS]
    remains = f"{receiver.url}.*; the rest is still in {runs}/.+ and 2 more folders, run this command again"
    assert 3 == len(re.findall(remains, printed.stderr)) == printed.stderr.count("run this command again")
    assert 3 * EVENTS == cat(runs).names


def test_items_that_a_backend_leaves_out_are_lost(receiver: Receiver, program: Program, runs: Path) -> None:
    receiver.answer("logs", partial_success("logs", 1, "no"))
    printed = program("replay", runs, "--endpoint", receiver.url, status=1)
    assert "delivered 17 items from 1 spool; lost (partial_success 1): 1" == printed.last


def test_signal_without_an_endpoint_stays_and_blocks_no_other(receiver: Receiver, program: Program, runs: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.url}/v1/metrics"}
    printed = program("replay", runs, env=env, status=1)
    assert "delivered 6 items from 1 spool" == printed.last
    assert {"metrics"} == {each.signal for each in receiver.requests}
    assert (
        f"the logs and traces in '{runs}' remain there, because no endpoint is set for them: set "
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or give --endpoint"
    ) in printed.stderr
    assert {"logs", "traces"} == {signal for signal, _ in cat(runs).requests}
    assert "delivered 12 items from 1 spool" == program("replay", runs, "--endpoint", receiver.url).last


WRONG: list[tuple[list[str], list[str]]] = [
    (["replay", "typo", "--endpoint", "http://127.0.0.1:9"], ["there is no folder", "typo"]),
    (["replay", "runs"], ["no endpoint", "--endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"]),
    (["replay", "runs", "--endpoint", "localhost:4318"], ["endpoint must be a base URL", "http://"]),
    (["replay", ""], ["empty"]),
    (["cat", "typo"], ["there is no folder", "typo"]),
    (["cat", "state"], ["there is no spooled telemetry in 'state'"]),
    (["cat", ""], ["empty"]),
    (["doctor", "--endpoint", "localhost:4318"], ["endpoint must be a base URL", "http://"]),
]


def test_wrong_argument_prints_one_line(program: Program, runs: Path) -> None:
    Path("state").mkdir()
    for arguments, words in WRONG:
        line = program(*arguments, status=2 if "" in arguments else 1).stderr.splitlines()[-1]
        assert [] == [word for word in words if word not in line], arguments
    assert EVENTS == cat(runs).names


def test_current_folder_that_was_removed_is_named(program: Program) -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()
    for command in ("runs", "ledger", "report"):
        assert (
            "monitel: the current folder was removed: change to another one"
            == program(command, status=1).stderr.strip()
        )


def test_usage_is_printed(program: Program) -> None:
    """All commands are in it; the exit status is 2 unless it was asked for. A slip gets the command that was meant."""
    for arguments in ([], ["cat"], ["dance"], ["runs", "--dance"], ["cat", "x", "y"]):
        of = arguments[0] if arguments and arguments != ["dance"] else ""
        assert f"usage: monitel {of}" in program(*arguments, status=2).stderr
    assert "give a command: run, top," in program(status=2).stderr
    assert "there is no command 'topp': did you mean 'top'?" in program("topp", status=2).stderr
    usage = program("--help").stdout
    for command in ("run", "doctor", "cat", "replay", "autopsy", "top", "runs", "ledger", "compare"):
        assert re.search(rf"^ +{command}\b", usage, re.MULTILINE), command
    assert f"monitel {monitel.__version__}\n" == program("--version").stdout


def test_plug_in_that_cannot_be_loaded_is_named(program: Program, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [each for each in entry_points(group="monitel.commands") if each.name != "replay"]
    broken = EntryPoint("replay", "of_an_old_version:add", "monitel.commands")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([*others, broken]))
    printed = program("--help")
    words = "the command 'replay' of 'of_an_old_version:add' cannot be loaded: ModuleNotFoundError"
    assert (True, True) == (words in printed.stderr, "doctor" in printed.stdout)
    refused = program("replay", runs, status=2).stderr
    assert (True, True) == (words in refused, "monitel replay needs monitel-otlp: run `pip install" in refused)
    assert EVENTS == cat(runs).names


def test_doctor_accepts_a_healthy_backend(backend: Inbox, program: Program, tmp_path: Path) -> None:
    """The exit status is 0; one valid request without content is sent for each signal, and nothing is left on disk."""
    printed = program("doctor", "--endpoint", backend.url, env={"OTEL_EXPORTER_OTLP_PROTOCOL": backend.protocol})
    report = printed.sections()
    assert [*SIGNALS, "all signals", "3 of 3 endpoints accept telemetry"] == [*report]
    for signal in SIGNALS:
        assert re.fullmatch(r"accepted  \(\d+ ms\)", report[signal]["result"])
        assert f"{backend.protocol}  (OTEL_EXPORTER_OTLP_PROTOCOL)" == report[signal]["protocol"]
    assert {signal: MESSAGES[signal][0]() for signal in SIGNALS} == {
        each.signal: each.message for each in backend.requests
    }
    assert ("", []) == (printed.stderr, [*tmp_path.iterdir()])


def test_doctor_prints_each_value_with_its_source(receiver: Receiver, program: Program, tmp_path: Path) -> None:
    """An argument, the variable of a signal, the general variable, or the default; MONITEL_ variables that are set."""
    env = {
        "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "3",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "4",
        "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_HEADERS": "b=1,a=2",
        "OTEL_METRIC_EXPORT_INTERVAL": "2500",
        "MONITEL_SPAN_BUDGET": "7",
        "MONITEL_RANKS": "zero",
        "MONITEL_SPOOL_DIR": "here",
        "MONITEL_BLACK_BOX_SIZE": "70000",
    }
    report = program("doctor", "--endpoint", receiver.url, env=env).sections()
    assert {
        "endpoint": f"{receiver.url}/v1/logs  (argument)",
        "protocol": "http/protobuf  (default)",
        "headers": "a, b  (OTEL_EXPORTER_OTLP_HEADERS)",
        "timeout": "3 s  (OTEL_EXPORTER_OTLP_LOGS_TIMEOUT)",
        "compression": "gzip  (OTEL_EXPORTER_OTLP_LOGS_COMPRESSION)",
    } == {name: value for name, value in report["logs"].items() if name != "result"}
    assert "4 s  (OTEL_EXPORTER_OTLP_TIMEOUT)" == report["traces"]["timeout"]
    assert "none  (default)" == report["metrics"]["compression"]
    common = report["all signals"]
    assert "2.5 s  (OTEL_METRIC_EXPORT_INTERVAL)" == common["interval"]
    assert f"{tmp_path / 'here'}  (MONITEL_SPOOL_DIR)" == common["spool"]
    assert ("7  (MONITEL_SPAN_BUDGET)", "zero  (MONITEL_RANKS)") == (common["span budget"], common["ranks"])
    assert "at most 70,000 bytes per process" in common["black box"]
    assert "problem" not in common


def test_doctor_reports_wrong_variables(receiver: Receiver, program: Program) -> None:
    """As problems, not as warnings in the log; the defaults are shown."""
    env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon", "MONITEL_RANKS": "one", "OTEL_SDK_DISABLED": "true"}
    env |= {TEMPORALITY: "sometimes", "OTEL_EXPORTER_OTLP_CLIENT_KEY": "key.pem"}
    printed = program("doctor", "--endpoint", receiver.url, env={"OTEL_SDK_DISABLED": "1"})
    problem = "OTEL_SDK_DISABLED: expected true or false, got '1'; telemetry is not disabled"
    assert (problem, "") == (printed.sections()["all signals"]["problem"], printed.stderr)
    printed = program("doctor", "--endpoint", receiver.url, env=env)
    assert [
        "OTEL_SDK_DISABLED=true: configure() records and sends nothing",
        "MONITEL_RANKS: expected all or zero, got 'one'; using 'all'",
        "OTEL_EXPORTER_OTLP_TIMEOUT: expected a positive number of seconds, got 'soon'; using 10 s",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY: it has no effect without OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        f"{TEMPORALITY}: expected cumulative or delta or lowmemory, got 'sometimes'; using cumulative",
    ] == printed.sections()["all signals"]["problem"].splitlines()
    assert ("10 s  (default)", "") == (printed.sections()["logs"]["timeout"], printed.stderr)


def test_doctor_reports_signals_without_an_endpoint(receiver: Receiver, program: Program, tmp_path: Path) -> None:
    """As offline: the exit status is 0, with no endpoint at all, too, as nothing is wrong then."""
    offline = program("doctor")
    for signal in SIGNALS:
        assert {"result": "offline: telemetry is kept on disk; set OTEL_EXPORTER_OTLP_ENDPOINT to send it"} == (
            offline.sections()[signal]
        )
    assert f"{tmp_path / 'state/monitel'}  (XDG_STATE_HOME)" == offline.sections()["all signals"]["spool"]
    assert "0 of 0 endpoints accept telemetry" == offline.last
    env = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.url}/v1/metrics"}
    assert "1 of 1 endpoints accept telemetry" == program("doctor", env=env).last


def test_doctor_reports_what_waits_on_disk(program: Program, runs: Path, own_boxes: Path) -> None:
    """With the command that delivers it; and the place of black boxes."""
    common = program("doctor", env={"MONITEL_SPOOL_DIR": str(runs)}).sections()["all signals"]
    command = f"monitel replay {runs} --endpoint http://HOST:4318"
    assert f"{runs}; deliver the telemetry of ended processes with: {command}  (MONITEL_SPOOL_DIR)" == common["spool"]
    common = program("doctor").sections()["all signals"]
    place = f"{own_boxes} (memory), at most 16,777,216 bytes per process  (MONITEL_BLACK_BOX_DIR)"
    assert place == common["black box"]
    Path("state").write_text("")  # in place of the folder
    off = program("doctor", env={"MONITEL_BLACK_BOX": "0"}, status=1).sections()["all signals"]
    assert ("off  (MONITEL_BLACK_BOX)", True) == (off["black box"], "NOT USABLE" in off["spool"])


ANSWERS = [
    (Answer(401), "requires credentials: set OTEL_EXPORTER_OTLP_HEADERS"),
    (Answer(403), "do not permit writing: check OTEL_EXPORTER_OTLP_HEADERS"),
    (Answer(407), "the proxy requires credentials: check HTTPS_PROXY"),
    (Answer(404), "the endpoint must be a base URL, to which /v1/"),
    (Answer(307, {"Location": "https://there"}), "redirected to 'https://there', set this address as the endpoint"),
    (Answer(405), "if the backend takes no "),
    (Answer(503), "busy: a pipeline keeps everything and retries"),
    (Answer(500, body=b"\x1b[2Jdisk: timed out"), "HTTP 500: '\\x1b[2Jdisk: timed out'  ("),
    (Answer(400, body=b"Client sent an HTTP request to an HTTPS server."), "begin the endpoint with https://"),
]


def test_doctor_explains_the_answers_of_a_backend(receiver: Receiver, program: Program) -> None:
    """The exit status is 1; the report has the answer, without control characters, and what to change."""
    for answer, words in ANSWERS:
        receiver.rule(lambda _request, answer=answer: answer)  # type: ignore[misc]
        printed = program("doctor", "--endpoint", receiver.url, status=1)
        for signal in SIGNALS:
            rows = printed.sections()[signal]
            assert f"FAILED: HTTP {answer.status}" in rows["result"]
            assert words in rows["result"] + rows.get("advice", ""), answer
        assert "0 of 3 endpoints accept telemetry" == printed.last
        assert printed.stdout.replace("\n", "").isprintable()


def test_doctor_reports_a_page_that_is_not_an_answer_of_otlp(receiver: Receiver, program: Program) -> None:
    receiver.rule(lambda _request: Answer(body=b"<!DOCTYPE html>\n<HTML>Sign in</HTML>"))
    result = program("doctor", "--endpoint", receiver.url).sections()["logs"]["result"]
    assert result.startswith("accepted: a page of HTML: check the endpoint, and proxies")


def test_doctor_knows_the_answer_of_loki_to_a_request_without_content(receiver: Receiver, program: Program) -> None:
    receiver.rule(lambda _request: Answer(422, body=b"error at least one valid stream is required"))
    assert "3 of 3 endpoints accept telemetry" == program("doctor", "--endpoint", receiver.url).last


def test_doctor_explains_a_backend_of_other_signals(receiver: Receiver, program: Program) -> None:
    """A Collector answers 404 for a signal without a pipeline; the address of one signal is used as it is."""
    receiver.rule(lambda request: Answer(404) if request.path != "/v1/metrics" else None)
    report = program("doctor", "--endpoint", receiver.url, status=1)
    advice = "this backend does not accept traces; a Collector needs a pipeline for traces"
    assert (advice, "1 of 3 endpoints accept telemetry") == (report.sections()["traces"]["advice"], report.last)
    name = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
    report = program("doctor", env={name: f"{receiver.url}/metrics", "OTEL_LOGS_EXPORTER": "none"}, status=1)
    url = f"{receiver.url}/metrics"
    expected = f"no OTLP receiver at {url}: {name} must be the whole address: {url}/v1/metrics; "
    assert expected in report.sections()["metrics"]["result"]
    assert "off: nothing is recorded  (OTEL_LOGS_EXPORTER=none)" == report.sections()["logs"]["result"]


@pytest.fixture
def tls_url() -> Iterator[str]:
    """The URL of a server with a certificate of an unknown authority."""
    trustme = pytest.importorskip("trustme", reason="pip install trustme (cryptography may have no wheel)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with Receiver(tls=context) as receiver:
        yield receiver.url


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_doctor_explains_why_there_is_no_connection(
    receiver: Receiver, grpc_receiver: Any, program: Program, tls_url: str, protocol: str
) -> None:
    """The port of the other protocol, no server, TLS without trust, and TLS or none where the other is expected."""
    over_http = protocol == "http/protobuf"
    cases = {
        refusing_url(): "no server listens on this port",
        tls_url: "not trusted: set OTEL_EXPORTER_OTLP_CERTIFICATE",
        receiver.url.replace("http", "https"): "this port does not use TLS: begin the endpoint with http://",
        tls_url.replace("https", "http"): "https://",
        (grpc_receiver if over_http else receiver).url: (
            "this looks like a gRPC port: set OTEL_EXPORTER_OTLP_PROTOCOL=grpc or use 4318"
            if over_http
            else "this looks like an HTTP port: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf or use 4317"
        ),
    }
    for url, words in cases.items():
        env = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        logs = program("doctor", env=env, status=1).sections()["logs"]
        assert words in logs["advice"], url
        assert ("with http://" in words) == ("TLS failed, begin the endpoint with http://" in logs["result"])


def test_doctor_explains_a_missing_proxy(receiver: Receiver, program: Program) -> None:
    env = {"HTTP_PROXY": refusing_url(), "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": receiver.url}
    rows = program("doctor", env=env, status=1).sections()["logs"]
    assert "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY" in rows["advice"]
    assert f"{env['HTTP_PROXY']}  (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY)" == rows["proxy"]


def test_doctor_does_not_wait_for_long(receiver: Receiver, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """All signals are tried at once, for a limited time, whatever OTEL_EXPORTER_OTLP_TIMEOUT is."""
    monkeypatch.setattr("monitel_otlp.commands.doctor._TIMEOUT", 0.2)
    receiver.rule(lambda _request: Answer(fault="hang"))
    env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
    began = time.monotonic()
    report = program("doctor", "--endpoint", receiver.url, env=env, status=1).sections()
    assert time.monotonic() - began < DEADLINE
    assert "no answer in time" in report["traces"]["advice"]
    assert "3600 s  (OTEL_EXPORTER_OTLP_TIMEOUT)" == report["traces"]["timeout"]
