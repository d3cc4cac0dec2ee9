"""``python -m monitel_otlp doctor``: why no connection to an endpoint is possible, and what to change."""

from __future__ import annotations

import re
import ssl
from socket import create_server
from typing import TYPE_CHECKING

import pytest
import trustme
from tests.support.checks import in_time
from tests.support.grpc_receiver import GrpcReceiver
from tests.support.hostile import Peer, refusing_url, url_of
from tests.support.inbox import DEADLINE

from monitel_otlp.commands import doctor
from monitel_otlp.messages.request import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from socket import socket

    from tests.support.receiver import Receiver

    Sections = dict[str, dict[str, str]]

HTTP, GRPC = ("--protocol", "http/protobuf"), ("--protocol", "grpc")
BOTH = pytest.mark.parametrize("protocol", [HTTP, GRPC], ids=["http", "grpc"])


@pytest.fixture
def tls() -> ssl.SSLContext:
    """A server's TLS context, with a certificate of an unknown authority: ``authority.pem``."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path("authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


@pytest.fixture
def tls_url(tls: ssl.SSLContext) -> Iterator[str]:
    """The ``http`` URL of a server that speaks TLS, and closes each connection after the handshake."""

    def shake(_peer: Peer, connection: socket) -> None:
        connection.settimeout(DEADLINE)
        tls.wrap_socket(connection, server_side=True).close()

    with Peer(shake) as peer:
        yield peer.url


def test_http_to_a_grpc_port_is_recognized(examine: Callable[..., Sections]) -> None:
    """The most frequent mistake: port 4317 without OTEL_EXPORTER_OTLP_PROTOCOL."""
    with GrpcReceiver() as receiver:
        report = examine("--endpoint", receiver.url, status=1)
    words = "this looks like a gRPC port: set OTEL_EXPORTER_OTLP_PROTOCOL=grpc or use 4318"
    assert [True] * 3 == [words in report[signal]["advice"] for signal in SIGNALS]


def test_grpc_to_an_http_port_is_recognized(receiver: Receiver, examine: Callable[..., Sections]) -> None:
    """The advice names the protocol and the port to use."""
    report = examine("--endpoint", receiver.url, *GRPC, status=1)
    words = "this looks like an HTTP port: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf or use 4317"
    assert [True] * 3 == [words in report[signal]["advice"] for signal in SIGNALS]


def test_server_that_closes_the_connection_is_taken_for_a_grpc_port(examine: Callable[..., Sections]) -> None:
    """Some gRPC servers close the connection when they receive HTTP/1.1."""
    with Peer(lambda _peer, connection: connection.recv(1 << 16)) as peer:
        report = examine("--endpoint", peer.url, status=1)
    assert "this looks like a gRPC port" in report["metrics"]["advice"]


@BOTH
def test_refused_connection_is_explained(examine: Callable[..., Sections], protocol: tuple[str, ...]) -> None:
    """The advice is that nothing listens on the port."""
    report = examine("--endpoint", refusing_url(), *protocol, status=1)
    assert "no server listens on this port" in report["metrics"]["advice"]


def test_missing_proxy_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice names the variables of the proxy, not the endpoint."""
    monkeypatch.setenv("HTTP_PROXY", refusing_url())
    report = examine("--endpoint", receiver.url, status=1)
    assert "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY" in report["metrics"]["advice"]


@BOTH
def test_unknown_host_is_explained(
    examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, protocol: tuple[str, ...]
) -> None:
    """DNS returns no address, or does not answer."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://nowhere.invalid:4318")
    report = examine(*protocol, status=1)
    assert re.search("no host has this name|no answer in time", report["metrics"]["advice"])


@BOTH
def test_blackhole_is_explained_in_time(
    examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, protocol: tuple[str, ...]
) -> None:
    """If a port accepts connections and never answers, all signals are tried at once, with a short timeout."""
    monkeypatch.setattr(doctor, "_TIMEOUT", 0.5)
    with create_server(("127.0.0.1", 0)) as listener, in_time(5):
        report = examine("--endpoint", url_of(listener), *protocol, status=1)
    assert "no answer in time" in report["metrics"]["advice"]
    assert "10 s  (default)" == report["metrics"]["timeout"]


@BOTH
def test_untrusted_certificate_is_explained(
    examine: Callable[..., Sections], tls_url: str, protocol: tuple[str, ...]
) -> None:
    """The advice names the variable for the certificate of the authority."""
    report = examine("--endpoint", tls_url.replace("http", "https"), *protocol, status=1)
    assert "not trusted: set OTEL_EXPORTER_OTLP_CERTIFICATE" in report["metrics"]["advice"]


def test_missing_certificate_file_is_explained(
    examine: Callable[..., Sections], monkeypatch: pytest.MonkeyPatch, tls_url: str
) -> None:
    """The report has the path, its variable and the error."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "missing.pem")
    report = examine("--endpoint", tls_url.replace("http", "https"), status=1)
    assert "missing.pem  (OTEL_EXPORTER_OTLP_CERTIFICATE)" == report["metrics"]["certificate"]
    assert re.search("OTEL_EXPORTER_OTLP_CERTIFICATE.*missing.pem", report["metrics"]["result"])


@BOTH
def test_missing_client_certificate_is_explained(
    examine: Callable[..., Sections],
    monkeypatch: pytest.MonkeyPatch,
    tls: ssl.SSLContext,
    tls_url: str,
    protocol: tuple[str, ...],
) -> None:
    """The advice names the variable for the client's certificate."""
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations("authority.pem")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "authority.pem")
    report = examine("--endpoint", tls_url.replace("http", "https"), *protocol, status=1)
    assert "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" in report["metrics"]["result"] + report["metrics"].get("advice", "")


@BOTH
def test_plain_text_to_a_tls_port_is_explained(
    examine: Callable[..., Sections], tls_url: str, protocol: tuple[str, ...]
) -> None:
    """The advice is to use ``https://``."""
    report = examine("--endpoint", tls_url, *protocol, status=1)
    assert "https://" in report["metrics"]["advice"]


@BOTH
def test_tls_to_a_plain_text_port_is_explained(
    receiver: Receiver, examine: Callable[..., Sections], protocol: tuple[str, ...]
) -> None:
    """The advice is to use ``http://``."""
    report = examine("--endpoint", receiver.url.replace("http", "https"), *protocol, status=1)
    assert "this port does not use TLS: begin the endpoint with http://" == report["metrics"]["advice"]
