"""``python -m monitel_otlp doctor``: the configuration with its sources, the state of the spool, and each answer."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import closing
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.inbox import Answer
from tests.support.receiver import MESSAGES

import monitel
import monitel_otlp
from monitel_otlp.__main__ import main
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.spool.raw_segment import encode_blocks
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

GRPC = ("--protocol", "grpc")
Sections = dict[str, dict[str, str]]


def test_healthy_backend_accepts_each_signal(
    receiver: Receiver, examine: Callable[..., Sections], tmp_path: Path
) -> None:
    """The exit status is 0; one empty request is sent for each signal, and nothing is left on disk."""
    report = examine("--endpoint", receiver.url, status=0)
    assert [*SIGNALS, "all signals", "3 of 3 endpoints accept telemetry"] == list(report)
    assert {"accepted"} == {report[signal]["result"].split("  ")[0] for signal in SIGNALS}
    assert {signal: MESSAGES[signal][0]() for signal in SIGNALS} == {
        request.signal: request.message for request in receiver.requests
    }
    assert [] == list(tmp_path.iterdir())


def test_each_value_is_reported_with_its_source(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The source is an argument, the variable of a signal, the general variable, or the default."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "3")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "2500")
    report = examine("--endpoint", receiver.url, status=0)
    assert f"{receiver.url}/v1/logs  (argument)" == report["logs"]["endpoint"]
    assert "http/protobuf  (default)" == report["logs"]["protocol"]
    assert "3 s  (OTEL_EXPORTER_OTLP_LOGS_TIMEOUT)" == report["logs"]["timeout"]
    assert "4 s  (OTEL_EXPORTER_OTLP_TIMEOUT)" == report["traces"]["timeout"]
    assert "gzip  (OTEL_EXPORTER_OTLP_COMPRESSION)" == report["metrics"]["compression"]
    assert "none  (default)" == report["metrics"]["headers"]
    assert "2.5 s  (OTEL_METRIC_EXPORT_INTERVAL)" == report["all signals"]["interval"]
    assert f"{tmp_path / 'state' / 'monitel'}  (XDG_STATE_HOME)" == report["all signals"]["spool"]


def test_no_secret_is_printed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Headers are sent, and reported by name; neither their values nor passwords nor queries are printed."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer sesame,broken sesame")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.replace("//", "//me:sesame@"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"{receiver.url}/v1/?key=sesame/logs")
    main(["doctor", "--header", "tenant=sesame"])
    output = capsys.readouterr()
    assert "sesame" not in output.out + output.err
    assert "authorization, tenant  (argument)" in output.out
    assert {"sesame"} == {request.headers["tenant"] for request in receiver.requests}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(401), "requires credentials: set OTEL_EXPORTER_OTLP_HEADERS"),
        (Answer(403), "do not permit writing: check OTEL_EXPORTER_OTLP_HEADERS"),
        (Answer(404), "the endpoint must be a base URL, to which /v1/... is appended"),
        (
            Answer(307, {"Location": "https://elsewhere"}),
            "redirected to 'https://elsewhere', set this address as the endpoint",
        ),
        (Answer(405), "not an OTLP receiver: check port and path"),
        (Answer(429), "busy: a pipeline keeps everything and retries"),
        (Answer(503), "busy: a pipeline keeps everything and retries"),
        (Answer(500, body=b"disk: timed out"), "HTTP 500: 'disk: timed out'  ("),
        (Answer(500, body=Status(code=13, message="disk is full").SerializeToString()), "HTTP 500: disk is full  ("),
        (Answer(400, body=b"Client sent an HTTP request to an HTTPS server."), "begin the endpoint with https://"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else "",
)
def test_answer_over_http_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], answer: Answer, words: str
) -> None:
    """The exit status is 1; the report has the answer and what to change."""
    receiver.rule(lambda _request: answer)
    report = examine("--endpoint", receiver.url, status=1)
    for signal in SIGNALS:
        assert f"FAILED: HTTP {answer.status}" in report[signal]["result"]
        assert words in report[signal]["result"] + report[signal].get("advice", "")
        assert ("advice" in report[signal]) == (answer.status in {400, 405, 429, 503})
    assert "0 of 3 endpoints accept telemetry" in report


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "requires credentials: set OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.PERMISSION_DENIED, "do not permit writing: check OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.UNIMPLEMENTED, "no OTLP receiver for this signal at this address"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy: a pipeline keeps everything and retries"),
    ],
    ids=lambda value: value.name if isinstance(value, grpc.StatusCode) else "",
)
def test_answer_over_grpc_is_explained(examine: Callable[..., Sections], code: grpc.StatusCode, words: str) -> None:
    """The report has the gRPC status and what to change."""
    with GrpcReceiver() as receiver:
        receiver.rule(lambda _request: GrpcAnswer(code=code))
        report = examine("--endpoint", receiver.url, *GRPC, status=1)
    for signal in SIGNALS:
        assert f"FAILED: gRPC {code.name}" in report[signal]["result"]
        assert words in report[signal]["result"] + report[signal].get("advice", "")


def test_healthy_grpc_backend_accepts_each_signal(examine: Callable[..., Sections]) -> None:
    """The exit status is 0, and the address is reported as it was given."""
    with GrpcReceiver() as receiver:
        report = examine("--endpoint", receiver.url, *GRPC, status=0)
        assert sorted(SIGNALS) == sorted(request.signal for request in receiver.requests)
    assert f"{receiver.url}  (argument)" == report["metrics"]["endpoint"]


def test_missing_endpoint_is_reported_as_offline(examine: Callable[..., Sections], tmp_path: Path) -> None:
    """The exit status is 1, and the spool is the folder of offline runs."""
    report = examine(status=1)
    for signal in SIGNALS:
        assert ["result"] == list(report[signal])
        assert re.match("offline: .* set OTEL_EXPORTER_OTLP_ENDPOINT", report[signal]["result"])
    assert f"{tmp_path / 'monitel-runs'}  (default)" == report["all signals"]["spool"]


def test_one_signal_may_be_the_only_one_with_an_endpoint(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status is 0 if the signal is accepted; the others are reported as offline."""
    variable = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
    monkeypatch.setenv(variable, f"{receiver.url}/v1/metrics")
    report = examine(status=0)
    assert f"{receiver.url}/v1/metrics  ({variable})" == report["metrics"]["endpoint"]
    assert "offline" in report["logs"]["result"]
    assert "1 of 1 endpoints accept telemetry" in report


def test_missing_path_of_one_signal_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the OpenTelemetry specification nothing is appended to the address of a single signal."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{receiver.url}/other/metrics")
    receiver.rule(lambda request: Answer(404) if request.path != "/v1/metrics" else None)
    report = examine(status=1)
    assert "the whole address, usually with /v1/metrics at the end" in report["metrics"]["advice"]


def test_unsupported_signal_is_explained(receiver: Receiver, examine: Callable[..., Sections]) -> None:
    """A Collector answers 404 for a signal without a pipeline; other signals are accepted."""
    receiver.rule(lambda request: Answer(404) if request.signal == "traces" else None)
    report = examine("--endpoint", receiver.url, status=1)
    assert "this backend does not accept traces; a Collector needs a pipeline for traces" == report["traces"]["advice"]
    assert "2 of 3 endpoints accept telemetry" in report


def test_invalid_variables_are_reported_once(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Problems are part of the report and not logged as warnings; the defaults are used instead."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "-1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    report = examine("--endpoint", receiver.url, status=0)
    problems = report["all signals"]["problem"].splitlines()
    named = ["OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_METRIC_EXPORT_INTERVAL", "OTEL_SDK_DISABLED"]
    assert named == sorted(re.split("[=:]", line)[0] for line in problems)
    assert "10 s  (default)" == report["logs"]["timeout"]
    assert "5 s  (default)" == report["all signals"]["interval"]


def test_waiting_requests_are_reported(
    examine: Callable[..., Sections], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report has the command that delivers them."""
    with monitel_otlp.configure():
        monitel.emit("event")
    capsys.readouterr()
    report = examine(status=1)
    assert f"monitel replay {tmp_path / 'monitel-runs'}  (default)" in report["all signals"]["spool"]


def test_lock_of_the_spool_is_reported(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without flock, lock files are used and reported."""
    assert "flock" == examine("--endpoint", receiver.url, status=0)["all signals"]["spool lock"]

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert examine("--endpoint", receiver.url, status=0)["all signals"]["spool lock"].startswith("lock files")


def test_raw_segments_are_reported(examine: Callable[..., Sections], tmp_path: Path) -> None:
    """Items that were not encoded before an exit wait for replay as well."""
    with closing(Spool(tmp_path / "monitel-runs" / "ended")) as spool:
        spool.append_raw("logs", ("events",), encode_blocks([("event", 1)]))
    assert "monitel replay" in examine(status=1)["all signals"]["spool"]


def test_unusable_spool_is_reported(receiver: Receiver, examine: Callable[..., Sections], tmp_path: Path) -> None:
    """If a file has the name of the spool's folder, the report says so, and the endpoint is still tried."""
    (tmp_path / "state").write_text("")
    report = examine("--endpoint", receiver.url, status=0)
    assert f"NOT USABLE, {tmp_path / 'state'} is not a folder" in report["all signals"]["spool"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "localhost:4318"], "http://"),
        (["--endpoint", "http://127.0.0.1:9", "--header", "sesame"], "NAME=VALUE"),
    ],
    ids=["endpoint", "header"],
)
def test_invalid_argument_prints_one_line(run: Run, arguments: list[str], words: str) -> None:
    """The exit status is 1, without a traceback, and no token is printed."""
    ended = run("-m", "monitel_otlp", "doctor", *arguments, returncode=1)
    (line,) = ended.stderr.splitlines()
    assert words in line
    assert "sesame" not in line


def test_command_runs(receiver: Receiver, run: Run) -> None:
    """The module is a command."""
    ended = run("-m", "monitel_otlp", "doctor", env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert "3 of 3 endpoints accept telemetry" in ended.stdout
    assert "" == ended.stderr


def test_closed_output_prints_no_traceback(run: Run) -> None:
    """``doctor | head -1`` closes stdout early."""
    code = "import os, sys; from monitel_otlp.__main__ import main; os.close(1); r, w = os.pipe(); os.close(r); "
    ended = run("-c", f"{code}assert w == 1 or os.dup2(w, 1) == 1; sys.exit(main(['doctor']))")
    assert "" == ended.stderr
