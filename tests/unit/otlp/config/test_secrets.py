"""Secrets are never printed: a canary in each place of a secret is searched in each output channel."""

from __future__ import annotations

import http.client
import logging
import random
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import grpc
import pytest
from tests.support.canary import assert_canary_unseen, echoes_of, new_canary
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.hostile import Peer
from tests.support.receiver import partial_success

from monitel_otlp.__main__ import main
from monitel_otlp.config.settings import Settings, resolve
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.transport.answer import Answer, Verdict
from monitel_otlp.transport.factory import make_transports

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from monitel_otlp.transport.answer import Transport

pytestmark = pytest.mark.usefixtures("no_name_server")
REQUEST = FrozenRequest("logs", b"", 1, 0)
LEFT, RIGHT = new_canary(), new_canary()
ODD = ["", "/", "#", "?", "@", ":", "://", "\\", " ", "%", "%zz", "%40", "[", "]", "\t", "\n", "\u00e4", "\udce4"]
ODD += ["//", "&", "=", ";", "|", "^", "{", "<", '"', "'", ",", "..", "\x00", "@@", "/@", "?@", "#@", ":1/", "@1:"]
SECRETS = [f"{LEFT}{odd}{RIGHT}" for odd in ODD] + [f"1{odd}{LEFT}" for odd in ODD[:8]]
TEMPLATES = [
    "http://user:{}@host:4318",
    "http://{}@host:4318",
    "http://{}:password@host",
    "http://user:{}@host:port",
    "http://user:{}@host:99999",
    "http://user:{}@[::1",
    "http://user:{}@",
    "http://user:{}@collector..example",
    "http://user:{}@h\u00f6st.example",
    "htp://user:{}@host",
    "http:/user:{}@host",
    "http//user:{}@host",
    "//user:{}@host",
    "://user:{}@host",
    "user:{}@host:4318",
    "{}@host",
    "http://host:4318/v1?key={}",
    "http://host:4318/?next=http://user:{}@other",
    "http://me@user:{}@host",
]


class Channels:
    """Everything that a program prints: logs of all levels and loggers, stdout and stderr."""

    def __init__(self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
        self._caplog = caplog
        self._capfd = capfd

    def assert_unseen(self, *others: Any) -> None:
        """Assert that no channel and none of the other objects shows a canary, and clear the channels."""
        outputs = self._capfd.readouterr()
        for canary in (LEFT, RIGHT):
            assert_canary_unseen(canary, *self._caplog.records, outputs.out, outputs.err, *others)
        self._caplog.clear()


@pytest.fixture
def channels(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Channels:
    """All output channels, with all loggers at DEBUG, including http.client."""
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, name)
    monkeypatch.setattr(http.client.HTTPConnection, "debuglevel", 1)
    return Channels(caplog, capfd)


def attempts(settings: Settings) -> list[object]:
    """Make an attempt with each transport over HTTP, and return all objects that a program could print afterwards."""
    found: list[object] = [settings, settings.problems]
    for endpoint in settings.endpoints.values():
        found += [endpoint, str(endpoint), f"{endpoint}", asdict(endpoint), endpoint.public_url]
    transports = make_transports(settings)
    for signal, transport in transports.items():
        if settings.endpoints[signal].protocol != "grpc":  # gRPC has its own resolver
            found.append(transport.send(FrozenRequest(signal, b"", 1, 0), 1.0))
        found += [transport, transport.url]
        transport.close()
    return found


def resolved(url: str, protocol: str) -> list[object]:
    """Return the endpoint that an argument gives."""
    return [resolve(url, protocol=protocol).endpoints.get("logs")]


def outcome(work: Callable[[], list[object]]) -> list[object]:
    """Return the result of a function, or the ValueError that it raises."""
    try:
        return work()
    except ValueError as error:
        return [error]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_no_address_shows_its_secret(
    channels: Channels, monkeypatch: pytest.MonkeyPatch, template: str, protocol: str
) -> None:
    """The address may be valid or malformed, an argument or a variable."""
    for secret in SECRETS:
        url = template.format(secret)
        channels.assert_unseen(*outcome(partial(resolved, url, protocol)))
        if "\0" not in url:  # a variable cannot hold it
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", url)
            channels.assert_unseen(*outcome(lambda: attempts(resolve(protocol=protocol))))


@pytest.mark.parametrize(("variable", "url"), [("HTTP_PROXY", "http://host"), ("https_proxy", "https://host")])
def test_no_proxy_shows_its_secret(
    channels: Channels, monkeypatch: pytest.MonkeyPatch, variable: str, url: str
) -> None:
    """The address of the proxy may be valid or malformed."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", url)
    for template, secret in random.Random(4711).sample(list(product(TEMPLATES[:16], SECRETS)), 150):
        proxy = template.format(secret)
        if "\0" not in proxy:
            monkeypatch.setenv(variable, proxy)
            channels.assert_unseen(*outcome(lambda: attempts(resolve())))


@pytest.mark.parametrize("variable", ["http_proxy", "grpc_proxy"])
def test_no_proxy_of_grpc_shows_its_secret(channels: Channels, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """GRPC's core would print an address that it cannot parse."""
    for secret in SECRETS[:20]:
        if "\0" not in secret:
            monkeypatch.setenv(variable, f"http://user:{secret}@127.0.0.1:9")
            transport = make_transports(resolve("http://192.0.2.1:4317", protocol="grpc"))["logs"]
            answer = transport.send(REQUEST, 0.5)
            transport.close()
            assert Verdict.DELIVERED is not answer.verdict
            channels.assert_unseen(answer)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_no_header_shows_its_value(channels: Channels, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    """The header may be valid or malformed, an argument or a variable, which OpenTelemetry's parser would log."""
    value = f"{LEFT}{odd}{RIGHT}"
    for name in ("authorization", "a b"):
        channels.assert_unseen(*outcome(lambda name=name: attempts(resolve("http://host", {name: value}))))  # type: ignore[misc]
    if "\0" in value:
        return
    without_a_name = [value, f"{value},a=b"] if odd != "=" else [f"{LEFT}=", f"{LEFT}==,a=b"]  # as base64 ends
    for text in (*without_a_name, f"a={value}", f"authorization=Bearer {value}", f"a b={value}"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", text)
        channels.assert_unseen(*outcome(lambda: attempts(resolve("http://host"))))
        channels.assert_unseen(*outcome(lambda: attempts(resolve("http://host", protocol="grpc"))))


def configured(monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, Transport]:
    """Return transports whose user, password, query and headers contain canaries."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"{with_user(url)}/v1/logs?api_key={LEFT}&b={quote(RIGHT)}")
    return make_transports(resolve(headers={"X-Token": f"Bearer {LEFT}", "Cookie": f"a={RIGHT}; b=c"}))


def with_user(url: str) -> str:
    """Return an address with canaries as user and password."""
    return url.replace("://", f"://{LEFT}:{RIGHT}@")


ECHOES: dict[str, Callable[[str], str]] = {
    "redirection": lambda echo: f"HTTP/1.1 307 Moved\r\nLocation: https://other/?{quote(echo)}\r\n\r\n",
    "redirection to a path": lambda echo: f"HTTP/1.1 302 Moved\r\nLocation: /{quote(echo)}\r\n\r\n",
    "redirection with a user": lambda echo: f"HTTP/1.1 308 Moved\r\nLocation: http://{quote(echo)}@x/\r\n\r\n",
    "redirection to nonsense": lambda echo: f"HTTP/1.1 301 Moved\r\nLocation: {quote(echo)}\r\n\r\n",
    "bad request": lambda echo: f"HTTP/1.1 400 Bad\r\n\r\n{echo}",
    "server error": lambda echo: f"HTTP/1.1 500 Oops\r\n\r\n{echo}",
    "too large": lambda echo: f"HTTP/1.1 413 Large\r\n\r\n{echo}",
    "odd status": lambda echo: f"HTTP/1.1 418 {quote(echo)}\r\nX: {quote(echo)}\r\n\r\n{echo}",
    "unavailable": lambda echo: f"HTTP/1.1 503 {quote(echo)}\r\nRetry-After: {quote(echo)}\r\n\r\n{echo}",
    "not HTTP": lambda echo: f"{echo}",
    "no status": lambda echo: f"HTTP/1.1 {echo}\r\n\r\n",
    "bad chunks": lambda echo: f"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n{echo}\r\n",
    "cut off": lambda echo: f"HTTP/1.1 400 Bad\r\nContent-Length: 100000\r\n\r\n{echo}",
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_no_echo_of_an_http_backend_is_shown(
    channels: Channels, monkeypatch: pytest.MonkeyPatch, echo: Callable[[str], str]
) -> None:
    """The backend may repeat the request's head in any encoding, as a whole or in part."""
    texts: list[str] = []

    def behave(peer: Peer, connection: socket.socket) -> None:
        head = peer.read_request(connection).partition(b"\r\n\r\n")[0].decode("latin-1")
        peer.send(connection, echo(texts[-1].replace("HEAD", head) if texts[-1] else head).encode("latin-1"))

    with Peer(behave) as peer:
        transport = configured(monkeypatch, peer.url)["logs"]
        answers = []
        head = f"POST /v1/logs?api_key={LEFT}&b={RIGHT} authorization: Bearer {LEFT} cookie: a={RIGHT}; b=c"
        for text in ["HEAD", *echoes_of(head), *(f"{'.' * cut}{LEFT}{RIGHT}" for cut in range(440, 500, 7))]:
            texts.append(text)
            answers.append(transport.send(REQUEST, 5.0))
        transport.close()
        assert LEFT.encode() in peer.requests[0]
    channels.assert_unseen(transport, *answers)
    assert all(answer.reason and answer.reason.isprintable() for answer in answers)


def test_no_echo_of_a_partial_success_is_shown(channels: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a partial success comes from the backend."""
    body = partial_success("logs", 1, f"dropped: Bearer {LEFT}, {RIGHT}").body or b""

    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.read_request(connection)
        peer.send(connection, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with Peer(behave) as peer:
        transport = configured(monkeypatch, peer.url)["logs"]
        answer = transport.send(REQUEST, 5.0)
        transport.close()
    channels.assert_unseen(answer)
    assert Answer(Verdict.DELIVERED, "dropped: ***, ***", rejected=1) == answer


@pytest.mark.parametrize("status", ["407 {}", "403 {}", "200 {}", "{}"])
def test_no_echo_of_a_proxy_is_shown(channels: Channels, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    """Credentials of a proxy are sent only to the proxy."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        head = peer.read_request(connection)
        peer.send(connection, f"HTTP/1.1 {status.format(quote(head))}\r\nX: {quote(head)}\r\n\r\n".encode() + head)

    with Peer(behave) as peer:
        monkeypatch.setenv("HTTPS_PROXY", with_user(peer.url))
        transport = make_transports(resolve("https://192.0.2.1"))["logs"]
        answer = transport.send(REQUEST, 5.0)
        transport.close()
        assert b"Proxy-Authorization: Basic" in peer.requests[0]
    assert Verdict.DELIVERED is not answer.verdict
    channels.assert_unseen(answer, transport)


def test_no_password_of_netrc_is_shown(channels: Channels, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A password from netrc is sent if no other credentials are set, and masked like them."""
    path = tmp_path / "netrc"
    path.write_text(f"machine 127.0.0.1 login {LEFT} password {RIGHT}\n")
    monkeypatch.setenv("NETRC", str(path))

    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.send(connection, b"HTTP/1.1 400 Bad\r\n\r\n" + peer.read_request(connection) + f"{LEFT}:{RIGHT}".encode())

    with Peer(behave) as peer:
        transport = make_transports(resolve(peer.url))["logs"]
        answer = transport.send(REQUEST, 5.0)
        transport.close()
        assert b"authorization: Basic" in peer.requests[0]
    channels.assert_unseen(answer, transport)


@pytest.mark.parametrize("code", list(grpc.StatusCode)[1:], ids=lambda code: code.name)
def test_no_echo_of_a_grpc_backend_is_shown(
    channels: Channels, grpc_receiver: GrpcReceiver, code: grpc.StatusCode
) -> None:
    """The details of each status may repeat the metadata."""
    transport = make_transports(
        resolve(with_user(grpc_receiver.url), {"authorization": f"Bearer {LEFT}", "tenant": RIGHT}, protocol="grpc")
    )["logs"]
    answers = []
    for details in echoes_of(f"authorization: Bearer {LEFT}, tenant: {RIGHT}"):
        grpc_receiver.answer("logs", GrpcAnswer(code=code, details=details))
        answers.append(transport.send(REQUEST, 5.0))
    grpc_receiver.answer("logs", partial_success("logs", 1, f"Bearer {LEFT} {RIGHT}"))
    answers.append(transport.send(REQUEST, 5.0))
    transport.close()
    assert f"Bearer {LEFT}" == grpc_receiver.requests[0].headers["authorization"]
    channels.assert_unseen(transport, *answers)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_doctor_prints_no_secret(channels: Channels, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """No secret of the configuration, of echoes of a backend or of malformed variables is printed."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.send(connection, b"HTTP/1.1 400 Bad\r\n\r\n" + peer.read_request(connection))

    with Peer(behave) as peer:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"{with_user(peer.url)}/v1/logs?api_key={LEFT}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://user:1/{LEFT}@{RIGHT}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer {LEFT},{RIGHT}")
        assert 1 == main(["doctor", "--header", f"tenant={RIGHT}", "--protocol", protocol])
        channels.assert_unseen()
        assert 1 == main(["doctor", "--endpoint", f"http://user:{LEFT}/{RIGHT}@host", "--protocol", protocol])
        channels.assert_unseen()
        assert 1 == main(["doctor", "--endpoint", peer.url, "--header", LEFT])
        channels.assert_unseen()


@pytest.mark.parametrize("content", [b"\xff\xfe machine", b"machine", b""])
def test_netrc_that_cannot_be_read_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, content: bytes) -> None:
    """The transport is created without credentials."""
    path = tmp_path / "netrc"
    path.write_bytes(content)
    monkeypatch.setenv("NETRC", str(path))
    assert make_transports(resolve("http://127.0.0.1:9"))
