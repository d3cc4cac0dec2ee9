"""``python -m monitel_otlp doctor``: what the configuration is, and why an endpoint takes nothing, in plain words."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import ssl
import subprocess
import time
from contextlib import closing, contextmanager, suppress
from socket import SHUT_RDWR, create_server, socket
from threading import Thread
from typing import TYPE_CHECKING

import grpc
import pytest

import monitel
import monitel_otlp
from monitel_otlp.__main__ import main
from monitel_otlp.commands import doctor
from monitel_otlp.request import SIGNALS
from monitel_otlp.spool.raw import encode_block
from monitel_otlp.spool.spool import Spool

from .grpc_receiver import GrpcAnswer, GrpcReceiver
from .inbox import DEADLINE, Answer
from .receiver import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import Run
    from .receiver import Receiver

HTTP, GRPC = ("--protocol", "http/protobuf"), ("--protocol", "grpc")
BOTH = pytest.mark.parametrize("protocol", [HTTP, GRPC], ids=["http", "grpc"])
Sections = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speak to the endpoint itself."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Callable[..., Sections]:
    """Run the command, which must end with ``status``; what it printed by section and row, stderr being empty."""

    def examine(*arguments: str, status: int) -> Sections:
        ended = main(["doctor", *arguments])
        output = capsys.readouterr()
        assert (status, "") == (ended, output.err), output.out
        sections: Sections = {}
        for line in output.out.splitlines():
            if not line.startswith(" "):
                rows = sections.setdefault(line, {})
                continue
            name, value = line[2:20].strip(), line[21:]
            rows[name] = f"{rows[name]}\n{value}" if name in rows else value
        return sections

    return examine


@contextmanager
def serving(handle: Callable[[socket], object]) -> Iterator[int]:
    """A port on which each connection is given to ``handle``, and closed."""

    def accept() -> None:
        with suppress(OSError):  # of the listener that is shut down
            while True:
                with listener.accept()[0] as connection, suppress(OSError):
                    handle(connection)

    with create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=accept, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(SHUT_RDWR)
        thread.join(DEADLINE)


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that nobody trusts: ``certificate.pem``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    subprocess.run(
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout key.pem -out certificate.pem".split(),
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


@pytest.fixture
def tls_port(tls: ssl.SSLContext) -> Iterator[int]:
    """A port that speaks it, and hangs up after the handshake."""

    def shake(connection: socket) -> None:
        connection.settimeout(DEADLINE)
        tls.wrap_socket(connection, server_side=True).close()

    with serving(shake) as port:
        yield port


def test_a_healthy_backend_accepts_each_signal(
    receiver: Receiver, examine: Callable[..., Sections], tmp_path: Path
) -> None:
    """Status 0; one valid request with nothing in it for each signal, and nothing is left on disk."""
    told = examine("--endpoint", receiver.url, status=0)
    assert [*SIGNALS, "all signals", "3 of 3 endpoints accept telemetry"] == list(told)
    assert {"accepted"} == {told[signal]["result"].split("  ")[0] for signal in SIGNALS}
    assert {signal: MESSAGES[signal][0]() for signal in SIGNALS} == {
        request.signal: request.message for request in receiver.requests
    }
    assert [] == list(tmp_path.iterdir())


def test_each_value_is_told_with_its_source(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Argument, variable of a signal, general variable, or default; also the folder of the spool and the interval."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "3")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "2500")
    told = examine("--endpoint", receiver.url, status=0)
    assert f"{receiver.url}/v1/logs  (argument)" == told["logs"]["endpoint"]
    assert "http/protobuf  (default)" == told["logs"]["protocol"]
    assert "3 s  (OTEL_EXPORTER_OTLP_LOGS_TIMEOUT)" == told["logs"]["timeout"]
    assert "4 s  (OTEL_EXPORTER_OTLP_TIMEOUT)" == told["traces"]["timeout"]
    assert "gzip  (OTEL_EXPORTER_OTLP_COMPRESSION)" == told["metrics"]["compression"]
    assert "none  (default)" == told["metrics"]["headers"]
    assert "2.5 s  (OTEL_METRIC_EXPORT_INTERVAL)" == told["all signals"]["interval"]
    assert f"{tmp_path / 'state' / 'monitel'}  (XDG_STATE_HOME)" == told["all signals"]["spool"]


def test_no_secret_is_printed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Headers are sent, and told by name; neither their values nor a password or a query is."""
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
        (Answer(401), "wants credentials: set OTEL_EXPORTER_OTLP_HEADERS"),
        (Answer(403), "not allowed to write: check OTEL_EXPORTER_OTLP_HEADERS"),
        (Answer(404), "the endpoint is a base URL, /v1/... is appended"),
        (Answer(307, {"Location": "https://elsewhere"}), "redirected to 'https://elsewhere', set that endpoint"),
        (Answer(405), "not an OTLP receiver: check port and path"),
        (Answer(429), "busy: a pipeline keeps everything and retries"),
        (Answer(503), "busy: a pipeline keeps everything and retries"),
        (Answer(500, body=b"disk: timed out"), "HTTP 500: 'disk: timed out'  ("),
        (Answer(400, body=b"Client sent an HTTP request to an HTTPS server."), "begin the endpoint with https://"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else "",
)
def test_an_answer_over_http_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], answer: Answer, words: str
) -> None:
    """Status 1, with the answer itself and what to do."""
    receiver.rule(lambda _request: answer)
    told = examine("--endpoint", receiver.url, status=1)
    for signal in SIGNALS:
        assert f"FAILED: HTTP {answer.status}" in told[signal]["result"]
        assert words in told[signal]["result"] + told[signal].get("advice", "")
        assert ("advice" in told[signal]) == (answer.status in {400, 405, 429, 503})
    assert "0 of 3 endpoints accept telemetry" in told


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "wants credentials: set OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.PERMISSION_DENIED, "may not write: check OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.UNIMPLEMENTED, "no OTLP receiver for this signal at this address"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy: a pipeline keeps everything and retries"),
    ],
    ids=lambda value: value.name if isinstance(value, grpc.StatusCode) else "",
)
def test_an_answer_over_grpc_is_explained(examine: Callable[..., Sections], code: grpc.StatusCode, words: str) -> None:
    """As over HTTP."""
    with GrpcReceiver() as receiver:
        receiver.rule(lambda _request: GrpcAnswer(code=code))
        told = examine("--endpoint", receiver.url, *GRPC, status=1)
    for signal in SIGNALS:
        assert f"FAILED: gRPC {code.name}" in told[signal]["result"]
        assert words in told[signal]["result"] + told[signal].get("advice", "")


def test_a_healthy_grpc_backend_accepts_each_signal(examine: Callable[..., Sections]) -> None:
    """Status 0, and the address is told as it was given."""
    with GrpcReceiver() as receiver:
        told = examine("--endpoint", receiver.url, *GRPC, status=0)
        assert sorted(SIGNALS) == sorted(request.signal for request in receiver.requests)
    assert f"{receiver.url}  (argument)" == told["metrics"]["endpoint"]


def test_a_grpc_port_spoken_to_with_http_is_recognised(examine: Callable[..., Sections]) -> None:
    """The commonest mistake of all: 4317 without the protocol."""
    with GrpcReceiver() as receiver:
        told = examine("--endpoint", receiver.url, status=1)
    words = "this looks like a gRPC port: set OTEL_EXPORTER_OTLP_PROTOCOL=grpc or use 4318"
    assert [True] * 3 == [words in told[signal]["advice"] for signal in SIGNALS]


def test_an_http_port_spoken_to_with_grpc_is_recognised(receiver: Receiver, examine: Callable[..., Sections]) -> None:
    """And the reverse."""
    told = examine("--endpoint", receiver.url, *GRPC, status=1)
    words = "this looks like an HTTP port: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf or use 4317"
    assert [True] * 3 == [words in told[signal]["advice"] for signal in SIGNALS]


def test_a_server_that_hangs_up_is_taken_for_a_grpc_port(examine: Callable[..., Sections]) -> None:
    """Some gRPC servers do just that when they are spoken to with HTTP."""
    with serving(lambda connection: connection.recv(1 << 16)) as port:
        told = examine("--endpoint", f"http://127.0.0.1:{port}", status=1)
    assert "this looks like a gRPC port" in told["metrics"]["advice"]


@BOTH
def test_a_port_where_nobody_listens_is_explained(examine: Callable[..., Sections], protocol: tuple[str, ...]) -> None:
    """Connection refused."""
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    told = examine("--endpoint", f"http://127.0.0.1:{port}", *protocol, status=1)
    assert "nothing listens there" in told["metrics"]["advice"]


def test_a_proxy_that_is_not_there_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is the proxy's, not the endpoint's, and its variables are named."""
    with create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
    told = examine("--endpoint", receiver.url, status=1)
    assert "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY" in told["metrics"]["advice"]


@BOTH
def test_a_host_that_does_not_exist_is_explained(
    examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, protocol: tuple[str, ...]
) -> None:
    """DNS does not know it, or does not answer."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://nowhere.invalid:4318")
    told = examine(*protocol, status=1)
    assert re.search("no host has this name|no answer in time", told["metrics"]["advice"])


@BOTH
def test_a_blackhole_is_explained_in_time(
    examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, protocol: tuple[str, ...]
) -> None:
    """A port that takes a connection and says nothing: all signals are tried at once, for less than their timeout."""
    monkeypatch.setattr(doctor, "_TIMEOUT", 0.5)
    with create_server(("127.0.0.1", 0)) as listener:
        begin = time.monotonic()
        told = examine("--endpoint", f"http://127.0.0.1:{listener.getsockname()[1]}", *protocol, status=1)
    assert time.monotonic() - begin < 5
    assert "no answer in time" in told["metrics"]["advice"]
    assert "10 s  (default)" == told["metrics"]["timeout"]


@BOTH
def test_a_certificate_that_is_not_trusted_is_explained(
    examine: Callable[..., Sections], tls_port: int, protocol: tuple[str, ...]
) -> None:
    """With the variable that names the authority's."""
    told = examine("--endpoint", f"https://127.0.0.1:{tls_port}", *protocol, status=1)
    assert "not trusted: set OTEL_EXPORTER_OTLP_CERTIFICATE" in told["metrics"]["advice"]


def test_a_certificate_that_is_not_there_is_explained(
    examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, tls_port: int
) -> None:
    """The file that the variable names is told, and what is wrong with it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "missing.pem")
    told = examine("--endpoint", f"https://127.0.0.1:{tls_port}", status=1)
    assert "missing.pem  (OTEL_EXPORTER_OTLP_CERTIFICATE)" == told["metrics"]["certificate"]
    assert re.search("OTEL_EXPORTER_OTLP_CERTIFICATE.*missing.pem", told["metrics"]["result"])


@BOTH
def test_a_backend_that_wants_a_certificate_is_explained(
    examine: Callable[..., Sections],
    monkeypatch: pytest.MonkeyPatch,
    tls: ssl.SSLContext,
    tls_port: int,
    protocol: tuple[str, ...],
) -> None:
    """Mutual TLS: the variable of the client's certificate is named."""
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations("certificate.pem")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "certificate.pem")
    told = examine("--endpoint", f"https://127.0.0.1:{tls_port}", *protocol, status=1)
    assert "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" in told["metrics"]["result"] + told["metrics"].get("advice", "")


@BOTH
def test_a_port_with_tls_spoken_to_without_is_explained(
    examine: Callable[..., Sections], tls_port: int, protocol: tuple[str, ...]
) -> None:
    """It wants https."""
    told = examine("--endpoint", f"http://127.0.0.1:{tls_port}", *protocol, status=1)
    assert "https://" in told["metrics"]["advice"]


@BOTH
def test_a_port_without_tls_spoken_to_with_it_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], protocol: tuple[str, ...]
) -> None:
    """It wants http."""
    told = examine("--endpoint", receiver.url.replace("http", "https"), *protocol, status=1)
    assert "this port does not use TLS: begin the endpoint with http://" == told["metrics"]["advice"]


def test_without_an_endpoint_it_is_offline(examine: Callable[..., Sections], tmp_path: Path) -> None:
    """Status 1: nothing would arrive anywhere. The folder is that of offline runs."""
    told = examine(status=1)
    for signal in SIGNALS:
        assert ["result"] == list(told[signal])
        assert re.match("offline: .* set OTEL_EXPORTER_OTLP_ENDPOINT", told[signal]["result"])
    assert f"{tmp_path / 'monitel-runs'}  (default)" == told["all signals"]["spool"]


def test_one_signal_may_have_an_endpoint(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 0 when it is accepted; the others are told to be offline."""
    variable = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
    monkeypatch.setenv(variable, f"{receiver.url}/v1/metrics")
    told = examine(status=0)
    assert f"{receiver.url}/v1/metrics  ({variable})" == told["metrics"]["endpoint"]
    assert "offline" in told["logs"]["result"]
    assert "1 of 1 endpoints accept telemetry" in told


def test_the_address_of_one_signal_without_its_path_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is appended to it, as the standard has it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{receiver.url}/other/metrics")
    receiver.rule(lambda request: Answer(404) if request.path != "/v1/metrics" else None)
    told = examine(status=1)
    assert "the whole address, usually with /v1/metrics at the end" in told["metrics"]["advice"]


def test_a_backend_that_does_not_take_a_signal_is_explained(
    receiver: Receiver, examine: Callable[..., Sections]
) -> None:
    """A Collector answers 404 for a signal that has no pipeline; the others are accepted."""
    receiver.rule(lambda request: Answer(404) if request.signal == "traces" else None)
    told = examine("--endpoint", receiver.url, status=1)
    assert "this backend does not accept traces; a Collector needs a pipeline for traces" == told["traces"]["advice"]
    assert "2 of 3 endpoints accept telemetry" in told


def test_what_is_wrong_with_variables_is_told_once(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rest, and not as warnings too; the values that count are the defaults."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "-1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    told = examine("--endpoint", receiver.url, status=0)
    problems = told["all signals"]["problem"].splitlines()
    named = ["OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_METRIC_EXPORT_INTERVAL", "OTEL_SDK_DISABLED"]
    assert named == sorted(re.split("[=:]", line)[0] for line in problems)
    assert "10 s  (default)" == told["logs"]["timeout"]
    assert "5 s  (default)" == told["all signals"]["interval"]


def test_what_waits_in_the_spool_is_told(
    examine: Callable[..., Sections], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that delivers it."""
    with monitel_otlp.configure():
        monitel.emit("event")
    capsys.readouterr()
    told = examine(status=1)
    assert f"python -m monitel_otlp replay {tmp_path / 'monitel-runs'}  (default)" in told["all signals"]["spool"]


def test_lock_of_the_spool_is_reported(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without flock is named, because lock files take its place there."""
    assert "flock" == examine("--endpoint", receiver.url, status=0)["all signals"]["spool lock"]

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert examine("--endpoint", receiver.url, status=0)["all signals"]["spool lock"].startswith("lock files")


def test_raw_segments_are_reported(examine: Callable[..., Sections], tmp_path: Path) -> None:
    """Items that an exit had no time to encode wait for replay as well."""
    with closing(Spool(tmp_path / "monitel-runs" / "ended")) as spool:
        spool.append_raw("logs", ("events",), encode_block([("event", 1)]))
    assert "python -m monitel_otlp replay" in examine(status=1)["all signals"]["spool"]


def test_a_spool_that_cannot_be_written_is_told(
    receiver: Receiver, examine: Callable[..., Sections], tmp_path: Path
) -> None:
    """Here a file is where its folder should be; the endpoint is tried all the same."""
    (tmp_path / "state").write_text("")
    told = examine("--endpoint", receiver.url, status=0)
    assert f"NOT USABLE, {tmp_path / 'state'} is not a folder" in told["all signals"]["spool"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "localhost:4318"], "http://"),
        (["--endpoint", "http://127.0.0.1:9", "--header", "sesame"], "NAME=VALUE"),
    ],
    ids=["endpoint", "header"],
)
def test_a_mistake_gives_one_line(run: Run, arguments: list[str], words: str) -> None:
    """No traceback, status 1, and no token repeated."""
    ended = run("-m", "monitel_otlp", "doctor", *arguments, returncode=1)
    (line,) = ended.stderr.splitlines()
    assert words in line
    assert "sesame" not in line


def test_the_command_runs(receiver: Receiver, run: Run) -> None:
    """As a user runs it."""
    ended = run("-m", "monitel_otlp", "doctor", env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert "3 of 3 endpoints accept telemetry" in ended.stdout
    assert "" == ended.stderr


def test_a_reader_that_has_seen_enough_is_no_error(run: Run) -> None:
    """As in ``doctor | head -1``: no traceback."""
    code = "import os, sys; from monitel_otlp.__main__ import main; os.close(1); r, w = os.pipe(); os.close(r); "
    ended = run("-c", f"{code}assert w == 1 or os.dup2(w, 1) == 1; sys.exit(main(['doctor']))")
    assert "" == ended.stderr
