"""TLS to the backend: certificates of the authority and of the client, and errors in them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import trustme
from tests.support.checks import wait_until, warnings_with
from tests.support.grpc_receiver import GrpcReceiver
from tests.support.inbox import DEADLINE
from tests.support.pipelines import deliver, emit_and_flush
from tests.support.receiver import Receiver

import monitel
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.pipelines import Start
    from tests.support.scripts import Run

    from monitel_otlp import Pipeline

    Serve = Callable[[trustme.LeafCert, trustme.CA | None], Receiver | GrpcReceiver]

CERTIFICATE = "OTEL_EXPORTER_OTLP_CERTIFICATE"
CLIENT_CERTIFICATE = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
CLIENT_KEY = "OTEL_EXPORTER_OTLP_CLIENT_KEY"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


class TlsReceiver(Receiver):
    """The HTTP backend with TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"https://127.0.0.1:{self.port}"


def serve_http(certificate: trustme.LeafCert, clients: trustme.CA | None) -> Receiver:
    """Serve HTTP with this certificate to clients with a certificate of this authority, or to all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return TlsReceiver(context)


def serve_grpc(certificate: trustme.LeafCert, clients: trustme.CA | None) -> GrpcReceiver:
    """Serve gRPC with this certificate to clients with a certificate of this authority, or to all."""
    pair = (certificate.private_key_pem.bytes(), b"".join(each.bytes() for each in certificate.cert_chain_pems))
    roots = None if clients is None else clients.cert_pem.bytes()
    return GrpcReceiver(credentials=grpc.ssl_server_credentials([pair], roots, clients is not None))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """An authority that no client trusts by default."""
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA) -> trustme.LeafCert:
    """The certificate of the backend."""
    return authority.issue_cert("127.0.0.1")


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each protocol, selected by the variable."""
    chosen: str = request.param
    monkeypatch.setenv(PROTOCOL, chosen)
    return chosen


@pytest.fixture
def serve(protocol: str) -> Serve:
    """The function that starts a backend with the protocol."""
    return serve_grpc if protocol == "grpc" else serve_http


@pytest.fixture
def backend(serve: Serve, certificate: trustme.LeafCert) -> Iterator[Receiver | GrpcReceiver]:
    """A backend with TLS, for all clients."""
    with serve(certificate, None) as receiver:
        yield receiver


@pytest.fixture
def closed_backend(
    serve: Serve, certificate: trustme.LeafCert, authority: trustme.CA
) -> Iterator[Receiver | GrpcReceiver]:
    """A backend with TLS, for clients with a certificate."""
    with serve(certificate, authority) as receiver:
        yield receiver


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the authority's certificate, which is set in the variable."""
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    monkeypatch.setenv(CERTIFICATE, str(path))
    return path


def assert_kept(pipeline: Pipeline, *expected: str) -> None:
    """Assert that as many events, and no others, are in the spool after the shutdown."""
    assert not pipeline.shutdown()
    kept = [request.items for request in Spool(Path(pipeline.spool_dir)).peek() if request.signal == "logs"]
    assert len(expected) == sum(kept)


def the_warning(caplog: pytest.LogCaptureFixture, *words: str) -> str:
    """Return the only warning with these words, once it is logged."""
    wait_until(lambda: warnings_with(caplog, *words), "a warning")
    (line,) = warnings_with(caplog, *words)
    return line


def test_private_authority_is_trusted(
    backend: Receiver | GrpcReceiver, trusted: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_EXPORTER_OTLP_CERTIFICATE overrides the variable of ``requests``."""
    other = trusted.with_name("other.pem")
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    pipeline = start(endpoint=backend.url)
    assert deliver(pipeline, "first", "second")
    assert ["first", "second"] == backend.record_names()
    assert backend.of("metrics")


def test_signal_may_have_a_separate_authority(
    *,
    backend: Receiver | GrpcReceiver,
    trusted: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE overrides the general variable, for logs only."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE", str(trusted))
    other = trusted.with_name("other.pem")
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv(CERTIFICATE, str(other))
    pipeline = start(endpoint=backend.url)
    assert not emit_and_flush(pipeline, "event")
    backend.wait_until(backend.record_names)
    assert (["event"], []) == (backend.record_names(), backend.of("metrics"))
    assert the_warning(caplog, "metrics", CERTIFICATE)


def test_unknown_authority_is_logged_once_and_everything_is_kept(
    backend: Receiver | GrpcReceiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning for each signal has the variable and the cause."""
    pipeline = start(endpoint=backend.url)
    assert not emit_and_flush(pipeline, "first", "second", "third")
    line = the_warning(caplog, "logs", "everything is kept")
    assert "TLS failed" in line
    assert CERTIFICATE in line
    assert "certificate" in line.lower()
    assert len(line) < 400
    assert "\n" not in line
    assert_kept(pipeline, "first", "second", "third")
    assert [] == backend.requests


def test_wrong_authority_is_logged_once_and_everything_is_kept(
    backend: Receiver | GrpcReceiver, trusted: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The variable names the certificate of another authority."""
    trustme.CA().cert_pem.write_to_path(str(trusted))
    pipeline = start(endpoint=backend.url)
    assert not emit_and_flush(pipeline, "first", "second")
    assert the_warning(caplog, "logs", "TLS failed", CERTIFICATE)
    assert_kept(pipeline, "first", "second")


def test_certificate_for_another_host_is_refused(
    *, serve: Serve, authority: trustme.CA, trusted: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The name of the host is checked."""
    with serve(authority.issue_cert("elsewhere.example.org"), None) as elsewhere:
        pipeline = start(endpoint=elsewhere.url)
        assert not emit_and_flush(pipeline, "first")
        assert the_warning(caplog, "logs", "TLS failed", CERTIFICATE)
        assert_kept(pipeline, "first")
    assert [] == elsewhere.requests


@pytest.mark.parametrize("content", [None, b"", b"no PEM"], ids=["missing", "empty", "garbage"])
def test_invalid_certificate_file_is_logged_and_everything_is_kept(
    *,
    backend: Receiver | GrpcReceiver,
    trusted: Path,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
) -> None:
    """The warning has the variable, and the run continues."""
    trusted.unlink()
    if content is not None:
        trusted.write_bytes(content)
    pipeline = start(endpoint=backend.url)
    assert not emit_and_flush(pipeline, "first", "second")
    wait_until(lambda: warnings_with(caplog, CERTIFICATE))
    assert len(warnings_with(caplog, "cannot be read")) <= 1
    assert the_warning(caplog, "logs", "everything is kept")
    assert_kept(pipeline, "first", "second")


@pytest.mark.parametrize("files", ["two files", "one file"])
def test_client_certificate_is_sent(
    *,
    closed_backend: Receiver | GrpcReceiver,
    authority: trustme.CA,
    trusted: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    files: str,
) -> None:
    """Certificate and key may be in two files, or both in the file of the certificate."""
    client = authority.issue_cert("trainer@example.org")
    chain, key = trusted.with_name("client.pem"), trusted.with_name("client.key")
    client.cert_chain_pems[0].write_to_path(str(chain))
    client.private_key_pem.write_to_path(str(key if files == "two files" else chain), append=True)
    monkeypatch.setenv(CLIENT_CERTIFICATE, str(chain))
    if files == "two files":
        monkeypatch.setenv(CLIENT_KEY, str(key))
    pipeline = start(endpoint=closed_backend.url)
    assert deliver(pipeline, "first", "second")
    assert ["first", "second"] == closed_backend.record_names()


def test_missing_client_certificate_is_logged_and_everything_is_kept(
    closed_backend: Receiver | GrpcReceiver, trusted: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning has the variable that may be missing."""
    pipeline = start(endpoint=closed_backend.url)
    assert not emit_and_flush(pipeline, "first", "second")
    assert the_warning(caplog, "logs", "everything is kept")
    assert the_warning(caplog, "logs", CLIENT_CERTIFICATE)
    assert_kept(pipeline, "first", "second")
    assert [] == closed_backend.requests


@pytest.mark.parametrize("variable", [CLIENT_CERTIFICATE, CLIENT_KEY])
def test_half_a_client_certificate_does_not_end_the_run(
    *, closed_backend: Receiver | GrpcReceiver, authority: trustme.CA, trusted: Path, train: Run, variable: str
) -> None:
    """With a certificate without its key, or a key alone, gRPC's core would abort the process."""
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
    assert "1 item in" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_https_to_a_backend_without_tls_is_logged(
    *,
    receiver: Receiver,
    grpc_receiver: GrpcReceiver,
    protocol: str,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning is logged, and nothing is lost."""
    url = grpc_receiver.url if protocol == "grpc" else receiver.url
    pipeline = start(endpoint=url.replace("http:", "https:"))
    assert not emit_and_flush(pipeline, "event")
    assert_kept(pipeline, "event")
    assert the_warning(caplog, "logs", "TLS failed")


def test_grpc_without_a_scheme_is_encrypted(
    authority: trustme.CA, trusted: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the specification TLS is the default unless OTEL_EXPORTER_OTLP_INSECURE is ``true``."""
    with serve_grpc(authority.issue_cert("127.0.0.1"), None) as backend:
        monkeypatch.setenv(PROTOCOL, "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", backend.address)
        pipeline = start(endpoint=None)
        monitel.emit("event")
        assert pipeline.force_flush(DEADLINE)
        assert ["event"] == backend.record_names()
