"""No secret is in any output: a canary in each place of a secret is searched in each output channel."""

import http.client
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.canary import assert_canary_unseen, echoes_of, new_canary
from tests.support.checks import PROTOCOLS
from tests.support.commands import Printed, Program
from tests.support.hostile import Peer
from tests.support.inbox import Answer
from tests.support.pipelines import Start, emit
from tests.support.receiver import Receiver, partial_success

import monitel
import monitel_otlp
from monitel.run_events import last_exception

LEFT, RIGHT = new_canary(), new_canary()
#: What may be inside a password, and hide where it ends.
ODD = ["", "/", "#", "?", "@", ":", "\\", " ", "%zz", "[", "\n", "\u00e4", "//"]
ADDRESSES = [
    "http://user:{}@127.0.0.1:9",
    "http://{}@127.0.0.1:9",
    "http://user:{}@host:port",
    "http://user:{}@[::1",
    "http://user:{}@collector..example",
    "htp://user:{}@host",
    "http:/user:{}@host",
    "//user:{}@host",
    "user:{}@127.0.0.1:9",
    "{}@127.0.0.1:9",
    "http://127.0.0.1:9/v1?key={}",
    "http://me@user:{}@127.0.0.1:9",
]


Unseen = Callable[..., None]  # type of the fixture ``unseen``
Doctor = Callable[..., Printed]  # type of the fixture ``doctor``


@pytest.fixture
def unseen(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Unseen:
    """Return a function that searches stdout, stderr, all logs at DEBUG, and objects: none may show a canary."""
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, name)
    monkeypatch.setattr(http.client.HTTPConnection, "debuglevel", 1)
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # as the transport sets it
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")

    def unseen(*others: Any) -> None:
        outputs = capsys.readouterr()
        for canary in (LEFT, RIGHT):
            assert_canary_unseen(canary, *caplog.records, outputs.out, outputs.err, *others)
        caplog.clear()

    return unseen


@pytest.fixture
def doctor(program: Program, unseen: Unseen) -> Doctor:
    """Return a function that runs ``doctor`` for an endpoint of logs: it finds a problem, and shows no canary."""

    def doctor(endpoint: str, **variables: str) -> Printed:
        printed = program("doctor", env={"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": endpoint, **variables}, status=1)
        unseen(printed.stdout, printed.stderr)
        return printed

    return doctor


def test_token_is_only_in_the_request(
    receiver: Receiver, start: Start, unseen: Unseen, own_boxes: Path, tmp_path: Path
) -> None:
    """Not in logs, stderr, the spool, rejected requests, the black box, or the repr and attributes of a pipeline."""
    pipeline = start(headers={"authorization": f"Bearer {LEFT}"}, run_events=True)
    receiver.answer("logs", partial_success("logs", 1, f"dropped: Bearer {LEFT} at noon"))
    receiver.rule(lambda request: Answer(400, body=f"invalid: {LEFT}".encode()) if request.signal == "logs" else None)
    for _ in range(2):
        assert not emit(pipeline, "event")
    for status in (503, 401):
        receiver.rule(lambda _request, status=status: Answer(status, body=LEFT.encode()))  # type: ignore[misc]
        monitel.emit("event")
        pipeline.force_flush(0.1)
        receiver.wait_until(lambda status=status: status in {each.answer.status for each in receiver.requests})  # type: ignore[misc]
    assert_canary_unseen(LEFT, own_boxes)
    pipeline.shutdown()
    assert f"Bearer {LEFT}" == receiver.of("logs")[0].headers["authorization"]
    assert [*tmp_path.rglob("rejected-*.log")]
    unseen(tmp_path, pipeline, vars(pipeline), pipeline.endpoints, pipeline.account())
    assert_canary_unseen(LEFT, *(request.body for request in receiver.requests))


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_no_address_shows_its_secret(doctor: Doctor, unseen: Unseen, protocol: str) -> None:
    """Valid or malformed, as an argument or a variable: in errors, warnings, and the output of ``doctor``."""
    secrets = [f"{LEFT}{odd}{RIGHT}" for odd in ODD] + [f"1/{LEFT}", f"1#{LEFT}"]
    for template, secret in product(ADDRESSES, secrets if protocol == "http/protobuf" else secrets[::4]):
        url = template.format(secret)
        if "127.0.0.1:9" not in url or protocol == "http/protobuf":  # an attempt over gRPC takes long
            doctor(url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        try:
            monitel_otlp.configure(endpoint=url, protocol=protocol, run_events=False, spool_dir="spool").shutdown(0)
        except ValueError as error:
            unseen(error)
        unseen()


def test_no_proxy_shows_its_secret(doctor: Doctor) -> None:
    """Its address may be valid or malformed. A proxy that answers gets the credentials, and may repeat them."""
    for template, odd in product(ADDRESSES[:10], ODD[:6]):
        doctor("https://192.0.2.1", HTTPS_PROXY=template.format(LEFT + odd + RIGHT))

    def behave(peer: Peer, connection: socket.socket) -> None:
        head = peer.read_request(connection)
        peer.send(connection, f"HTTP/1.1 407 {quote(head)}\r\nX: {quote(head)}\r\n\r\n".encode() + head)

    with Peer(behave) as peer:
        doctor("https://192.0.2.1", HTTPS_PROXY=peer.url.replace("://", f"://{LEFT}:{RIGHT}@"))
        assert b"Proxy-Authorization: Basic" in peer.requests[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_key_is_shown_in_place_of_its_path(doctor: Doctor, protocol: str) -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{LEFT}\n-----END PRIVATE KEY-----"
    variables = dict.fromkeys(("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_LOGS_CLIENT_KEY"), key)
    printed = doctor("https://127.0.0.1:9", OTEL_EXPORTER_OTLP_PROTOCOL=protocol, **variables)
    problems = [f"{each}: expected the path of a file, got the content of one" for each in variables]
    assert problems == printed.sections()["all signals"]["problem"].splitlines()


def test_no_header_shows_its_value(doctor: Doctor, unseen: Unseen) -> None:
    """Valid or malformed, an argument or a variable."""
    for odd in (*ODD, "=", ",", ";"):
        value = f"{LEFT}{odd}{RIGHT}"
        entries = ("authorization=Bearer {}", "a b={}", *(["{},a=b", "{}"] if odd != "=" else []))
        for text in (entry.format(value) for entry in entries):
            doctor("http://127.0.0.1:9", OTEL_EXPORTER_OTLP_HEADERS=text)
        for name in ("authorization", "a b"):
            try:
                monitel_otlp.configure(headers={name: value}, spool_dir="spool").shutdown(0)
            except ValueError as error:
                unseen(error)
            unseen()


#: Answers that repeat the request.
ECHOES: dict[str, Callable[[str], str]] = {
    "redirection": lambda echo: f"HTTP/1.1 307 Moved\r\nLocation: https://other/?{quote(echo)}\r\n\r\n",
    "redirection with a user": lambda echo: f"HTTP/1.1 308 Moved\r\nLocation: http://{quote(echo)}@x/\r\n\r\n",
    "bad request": lambda echo: f"HTTP/1.1 400 Bad\r\n\r\n{echo}",
    "odd status": lambda echo: f"HTTP/1.1 418 {quote(echo)}\r\nX: {quote(echo)}\r\n\r\n{echo}",
    "unavailable": lambda echo: f"HTTP/1.1 503 {quote(echo)}\r\nRetry-After: {quote(echo)}\r\n\r\n{echo}",
    "not HTTP": lambda echo: echo,
    "bad chunks": lambda echo: f"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n{echo}\r\n",
    "cut off": lambda echo: f"HTTP/1.1 400 Bad\r\nContent-Length: 100000\r\n\r\n{echo}",
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_no_echo_of_a_backend_is_shown(doctor: Doctor, echo: Callable[[str], str]) -> None:
    """The backend may repeat the request's head in any encoding, as a whole, or cut off inside a secret."""
    head = f"POST /v1/logs?api_key={LEFT}&b={RIGHT} authorization: Bearer {LEFT} cookie: a={RIGHT}; b=c"
    cut = [f"token {secret[:length]}" for secret in (LEFT, RIGHT) for length in (8, 12, 19)]
    texts: Iterator[str] = iter(["", *echoes_of(head), *cut, f"{'.' * 470}{LEFT}{RIGHT}"])

    def behave(peer: Peer, connection: socket.socket) -> None:
        received = peer.read_request(connection).partition(b"\r\n\r\n")[0].decode("latin-1")
        peer.send(connection, echo(text or received).encode("latin-1"))

    with Peer(behave) as peer:
        url = peer.url.replace("://", f"://{LEFT}:{RIGHT}@") + f"/v1/logs?api_key={LEFT}&b={quote(RIGHT)}"
        headers = f"X-Token=Bearer {LEFT},Cookie={quote(f'a={RIGHT}; b=c')}"
        for text in texts:  # noqa: B007  the backend reads it
            printed = doctor(url, OTEL_EXPORTER_OTLP_HEADERS=headers)
            assert "FAILED" in printed.sections()["logs"]["result"]
        assert LEFT.encode() in peer.requests[0]


def test_no_echo_of_a_grpc_backend_is_shown(doctor: Doctor, grpc_receiver: Any) -> None:
    """The details of a status may repeat the metadata."""
    import grpc
    from tests.support.grpc_receiver import GrpcAnswer

    url = grpc_receiver.url.replace("://", f"://user:{RIGHT}@")
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_HEADERS": f"tenant=Bearer {LEFT}"}
    for code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT):
        for details in echoes_of(f"authorization: Bearer {LEFT}, tenant: {RIGHT}"):
            grpc_receiver.answer("logs", GrpcAnswer(code=code, details=details))
            assert f"FAILED: gRPC {code.name}" in doctor(url, **variables).sections()["logs"]["result"]
    assert f"Bearer {LEFT}" == grpc_receiver.requests[0].headers["tenant"]


def test_doctor_and_replay_print_names_of_headers_alone(
    program: Program, receiver: Receiver, unseen: Unseen, start: Start
) -> None:
    """Headers are sent; one that is not NAME=VALUE is reported without its text."""
    pipeline = start(endpoint=None, spool_dir="runs")
    monitel.emit("event")
    pipeline.shutdown()
    env = {"OTEL_EXPORTER_OTLP_HEADERS": f"X-Tenant={LEFT},{RIGHT}"}
    for words in (["doctor"], ["replay", "runs"]):
        printed = program(*words, "--endpoint", receiver.url, env=env)
        assert ("x-tenant" in printed.stdout) == (words == ["doctor"])
        assert LEFT == receiver.requests[-1].headers["x-tenant"]
        assert "an entry is not NAME=VALUE" in printed.stdout + printed.stderr
        unseen(printed.stdout, printed.stderr)


def test_command_and_exception_are_masked_in_the_events_of_the_run(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, unseen: Unseen
) -> None:
    """By names of options, in URLs, and by values of variables with such names."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--hf-token", LEFT, f"x{RIGHT}y", "--max-tokens", "5"])
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "*")
    monkeypatch.setattr(sys, "last_value", OSError(f"no such host: https://me:{LEFT}@example.org"), raising=False)
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", RIGHT)
    with monitel_otlp.configure(endpoint=receiver.url, run_events=True):
        pass
    command = "python train.py --hf-token '***' 'x***y' --max-tokens 5"
    assert command == receiver.records("run.started")[0].attributes["run.command"]
    found = last_exception()
    assert found is not None
    assert ("OSError", "no such host: https://***@example.org") == found[:2]
    unseen(found, *(request.body for request in receiver.requests))
