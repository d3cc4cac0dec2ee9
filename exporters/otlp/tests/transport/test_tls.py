"""Encrypted ways to the backend: the authority, the client's certificate, and what a mistake in them costs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import trustme

import monitel
from monitel_otlp.spool.spool import Spool

from .grpc_receiver import GrpcReceiver
from .inbox import DEADLINE
from .receiver import Receiver
from .test_faults import flushed, names, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp import Pipeline

    from .conftest import Run, Start

    Serve = Callable[[trustme.LeafCert, trustme.CA | None], Receiver | GrpcReceiver]

CERTIFICATE = "OTEL_EXPORTER_OTLP_CERTIFICATE"
CLIENT_CERTIFICATE = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
CLIENT_KEY = "OTEL_EXPORTER_OTLP_CLIENT_KEY"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


class TlsReceiver(Receiver):
    """The HTTP backend behind TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"https://127.0.0.1:{self.port}"


def serve_http(certificate: trustme.LeafCert, clients: trustme.CA | None) -> Receiver:
    """Serve HTTP with this certificate, to clients that have one of this authority, or to all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return TlsReceiver(context)


def serve_grpc(certificate: trustme.LeafCert, clients: trustme.CA | None) -> GrpcReceiver:
    """Serve gRPC likewise."""
    pair = (certificate.private_key_pem.bytes(), b"".join(each.bytes() for each in certificate.cert_chain_pems))
    roots = None if clients is None else clients.cert_pem.bytes()
    return GrpcReceiver(credentials=grpc.ssl_server_credentials([pair], roots, clients is not None))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """An authority that nobody knows."""
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA) -> trustme.LeafCert:
    """The backend's."""
    return authority.issue_cert("127.0.0.1")


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways, chosen by the variable."""
    chosen: str = request.param
    monkeypatch.setenv(PROTOCOL, chosen)
    return chosen


@pytest.fixture
def serve(protocol: str) -> Serve:
    """The server that speaks the protocol."""
    return serve_grpc if protocol == "grpc" else serve_http


@pytest.fixture
def backend(serve: Serve, certificate: trustme.LeafCert) -> Iterator[Receiver | GrpcReceiver]:
    """A backend behind TLS, for any client."""
    with serve(certificate, None) as receiver:
        yield receiver


@pytest.fixture
def closed_backend(
    serve: Serve, certificate: trustme.LeafCert, authority: trustme.CA
) -> Iterator[Receiver | GrpcReceiver]:
    """A backend behind TLS, for clients that have a certificate."""
    with serve(certificate, authority) as receiver:
        yield receiver


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The authority's certificate, which the variable names."""
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    monkeypatch.setenv(CERTIFICATE, str(path))
    return path


def assert_kept(pipeline: Pipeline, *expected: str) -> None:
    """These many events, and nothing else, are in the spool after the end."""
    assert not pipeline.shutdown()
    kept = [request.items for request in Spool(Path(pipeline.spool_dir)).peek() if request.signal == "logs"]
    assert len(expected) == sum(kept)


def test_an_authority_of_ones_own(
    backend: Receiver | GrpcReceiver, trusted: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_EXPORTER_OTLP_CERTIFICATE names it, before the variable of ``requests``, and everything arrives."""
    other = trusted.with_name("other.pem")
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    pipeline = start(endpoint=backend.url)
    assert flushed(pipeline, "first", "second")
    assert ["first", "second"] == names(backend)
    assert backend.of("metrics")


def test_a_signal_has_an_authority_of_its_own(
    *,
    backend: Receiver | GrpcReceiver,
    trusted: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE counts before the general one, for logs alone."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE", str(trusted))
    other = trusted.with_name("other.pem")
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv(CERTIFICATE, str(other))
    pipeline = start(endpoint=backend.url)
    assert not flushed(pipeline, "event")
    assert (["event"], []) == (names(backend), backend.of("metrics"))
    assert 1 == len(told(caplog, "metrics", CERTIFICATE))


def test_an_unknown_authority_is_told_once_and_everything_is_kept(
    backend: Receiver | GrpcReceiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each signal names the variable and the cause."""
    pipeline = start(endpoint=backend.url)
    assert not flushed(pipeline, "first", "second", "third")
    (line,) = told(caplog, "logs", "everything is kept")
    assert "TLS failed" in line
    assert CERTIFICATE in line
    assert "certificate" in line.lower()
    assert len(line) < 400
    assert "\n" not in line
    assert_kept(pipeline, "first", "second", "third")
    assert [] == backend.requests


def test_a_wrong_authority_is_told_once_and_everything_is_kept(
    backend: Receiver | GrpcReceiver, trusted: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The same where the variable names another one."""
    trustme.CA().cert_pem.write_to_path(str(trusted))
    pipeline = start(endpoint=backend.url)
    assert not flushed(pipeline, "first", "second")
    assert 1 == len(told(caplog, "logs", "TLS failed", CERTIFICATE))
    assert_kept(pipeline, "first", "second")


def test_a_certificate_for_another_host_is_refused(
    *, serve: Serve, authority: trustme.CA, trusted: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The name is checked too."""
    with serve(authority.issue_cert("elsewhere.example.org"), None) as elsewhere:
        pipeline = start(endpoint=elsewhere.url)
        assert not flushed(pipeline, "first")
        assert 1 == len(told(caplog, "logs", "TLS failed", CERTIFICATE))
        assert_kept(pipeline, "first")
    assert [] == elsewhere.requests


@pytest.mark.parametrize("content", [None, b"", b"no PEM"], ids=["missing", "empty", "garbage"])
def test_a_file_that_is_no_certificate_is_told_and_everything_is_kept(
    *,
    backend: Receiver | GrpcReceiver,
    trusted: Path,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
) -> None:
    """The variable is named; telemetry does not end the run."""
    trusted.unlink()
    if content is not None:
        trusted.write_bytes(content)
    pipeline = start(endpoint=backend.url)
    assert not flushed(pipeline, "first", "second")
    assert told(caplog, CERTIFICATE)
    assert len(told(caplog, "cannot be read")) <= 1
    assert 1 == len(told(caplog, "logs", "everything is kept"))
    assert_kept(pipeline, "first", "second")


@pytest.mark.parametrize("files", ["two files", "one file"])
def test_a_client_certificate(
    *,
    closed_backend: Receiver | GrpcReceiver,
    authority: trustme.CA,
    trusted: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    files: str,
) -> None:
    """OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY, or both in the first one."""
    client = authority.issue_cert("trainer@example.org")
    chain, key = trusted.with_name("client.pem"), trusted.with_name("client.key")
    client.cert_chain_pems[0].write_to_path(str(chain))
    client.private_key_pem.write_to_path(str(key if files == "two files" else chain), append=True)
    monkeypatch.setenv(CLIENT_CERTIFICATE, str(chain))
    if files == "two files":
        monkeypatch.setenv(CLIENT_KEY, str(key))
    pipeline = start(endpoint=closed_backend.url)
    assert flushed(pipeline, "first", "second")
    assert ["first", "second"] == names(closed_backend)


def test_a_client_without_certificate_is_told_and_everything_is_kept(
    closed_backend: Receiver | GrpcReceiver, trusted: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the variable that may be missing."""
    pipeline = start(endpoint=closed_backend.url)
    assert not flushed(pipeline, "first", "second")
    assert 1 == len(told(caplog, "logs", "everything is kept"))
    assert 1 == len(told(caplog, "logs", CLIENT_CERTIFICATE))
    assert_kept(pipeline, "first", "second")
    assert [] == closed_backend.requests


@pytest.mark.parametrize("variable", [CLIENT_CERTIFICATE, CLIENT_KEY])
def test_half_a_client_certificate_does_not_end_the_run(
    *, closed_backend: Receiver | GrpcReceiver, authority: trustme.CA, trusted: Path, train: Run, variable: str
) -> None:
    """A certificate without its key, or a key alone: gRPC's core would abort the process."""
    client = authority.issue_cert("trainer@example.org")
    half = trusted.with_name("half.pem")
    (client.private_key_pem if variable == CLIENT_KEY else client.cert_chain_pems[0]).write_to_path(str(half))
    script = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
monitel.emit("event")
assert not pipeline.force_flush(0.5)
print("trained")
"""
    ended = train(script, closed_backend.url, env={variable: str(half)})
    assert "trained\n" == ended.stdout
    assert "1 in" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_https_to_a_backend_without_tls(
    *,
    receiver: Receiver,
    grpc_receiver: GrpcReceiver,
    protocol: str,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is told, and mended by ``http://``; nothing is lost."""
    url = grpc_receiver.url if protocol == "grpc" else receiver.url
    pipeline = start(endpoint=url.replace("http:", "https:"))
    assert not flushed(pipeline, "event")
    assert 1 == len(told(caplog, "logs", "TLS failed"))
    assert_kept(pipeline, "event")


def test_without_a_scheme_grpc_is_encrypted(
    authority: trustme.CA, trusted: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the specification has it, where OTEL_EXPORTER_OTLP_INSECURE is not ``true``."""
    with serve_grpc(authority.issue_cert("127.0.0.1"), None) as backend:
        monkeypatch.setenv(PROTOCOL, "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", backend.address)
        pipeline = start(endpoint=None)
        monitel.emit("event")
        assert pipeline.force_flush(DEADLINE)
        assert ["event"] == names(backend)
