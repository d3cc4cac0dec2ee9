"""A backend that is down, slow, silent or hostile: one deadline, one limit of size, and nothing else waits for it."""

import re
import ssl
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from socket import socket
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support import hostile
from tests.support.checks import SetEnv, Warned, wait_until, warnings_with
from tests.support.hostile import Behaviour, Peer
from tests.support.inbox import DEADLINE, Answer, Inbox, Request, records_of
from tests.support.pipelines import Start, emit, logs
from tests.support.producers import make_small, record_ranges, record_window, run_together
from tests.support.receiver import Receiver, partial_success
from tests.support.spools import cat, rejected_in, rejected_requests

import monitel
from monitel import COUNT
from monitel_otlp import Pipeline
from monitel_otlp.export import sender
from monitel_otlp.transport import answer as transport
from monitel_otlp.transport.answer import Consequence

grpc = pytest.importorskip("grpc", reason="the extra monitel-otlp[grpc] is not installed")
trustme = pytest.importorskip("trustme", reason="pip install trustme (cryptography may have no wheel)")

from cryptography.hazmat.primitives import serialization  # noqa: E402
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver  # noqa: E402
from tests.support.pipelines import busy_encoder  # noqa: E402

Code = grpc.StatusCode
NEVER = "3600"  # seconds: a deadline that no test reaches
SOON = "0.3"


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after milliseconds instead of seconds, unless the backend has asked for a pause."""
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # set by the import of gRPC
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    make_small(monkeypatch)


def logs_to(start: Start, setenv: SetEnv, url: str, timeout: str) -> Pipeline:
    """Start a pipeline that sends logs alone: to a URL, with a deadline in seconds."""
    setenv(OTEL_EXPORTER_OTLP_TIMEOUT=timeout, OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=f"{url}/v1/logs")
    return start(endpoint=None)


def answers(backend: Inbox, answer: Callable[[list[str]], Answer | None]) -> None:
    def rule(request: Request) -> Answer | None:
        return answer([each.name for each in records_of(request.message)]) if request.signal == "logs" else None

    backend.rule(rule)


def outcome(pipeline: Pipeline) -> tuple[int, dict[str, int]]:
    """Return the number of delivered events, and that of dropped ones by reason."""
    return logs(pipeline).delivered, dict(logs(pipeline).dropped)


def kept_in_rejected(pipeline: Pipeline) -> list[str]:
    return [record.name for each in rejected_in(Path(pipeline.spool_dir)) for record in records_of(each)]


# One deadline: whatever a backend does slowly, the attempt ends, and the request is sent again.


def handshakes_slowly(peer: Peer, connection: socket) -> None:
    connection.recv(1 << 16)
    peer.send(connection, b"\x16\x03\x03\x40\x00")
    peer.drip(connection, b"\x02")


@pytest.mark.parametrize("behave", [hostile.never_answers, hostile.drips_headers, handshakes_slowly])
def test_attempt_ends_at_its_deadline(start: Start, setenv: SetEnv, behave: Behaviour) -> None:
    """Bytes that arrive do not prolong it. The request is kept, and sent again in a new connection."""
    with Peer(behave) as peer:
        pipeline = logs_to(
            start, setenv, peer.url.replace("http", "https") if behave is handshakes_slowly else peer.url, SOON
        )
        assert not emit(pipeline, "event", seconds=0.0)
        wait_until(lambda: peer.connections > 1, "a second attempt")
        kept = logs(pipeline)
        assert (1, 0, 1) == (kept.recorded, kept.delivered, kept.waiting + kept.on_disk)
        assert not pipeline.shutdown()
    assert (0, 1) == (logs(pipeline).delivered, logs(pipeline).on_disk)


def test_call_over_grpc_ends_at_its_deadline(
    grpc_receiver: GrpcReceiver, start: Start, setenv: SetEnv, warned: Warned
) -> None:
    setenv(OTEL_EXPORTER_OTLP_TIMEOUT=SOON)
    grpc_receiver.answer("logs", *[GrpcAnswer(fault="hang")] * 2)
    assert emit(start(grpc_receiver), "event")
    assert len(grpc_receiver.of("logs")) >= 3  # more if an answer came late
    assert 1 == len(warned("(logs)", "DEADLINE_EXCEEDED", "everything is kept"))


# One limit of size: however fast a backend sends, the attempt ends, even with a deadline of an hour.


@pytest.mark.parametrize(
    ("behave", "timeout", "delivered"),
    [
        (hostile.drips_body, SOON, 1),
        (hostile.drips_events, SOON, 1),
        (hostile.continues_forever, NEVER, 0),
        (hostile.sends_headers_forever, NEVER, 0),
        (hostile.sends_one_endless_line, NEVER, 0),
        (hostile.sends_chunks_forever, NEVER, 1),
        (hostile.sends_bomb, NEVER, 1),
    ],
)
def test_answer_without_an_end_is_not_read_to_its_end(
    start: Start, setenv: SetEnv, behave: Behaviour, timeout: str, delivered: int
) -> None:
    """A success counts, whatever its body is; before its headers are complete the request is sent again."""
    with Peer(behave) as peer:
        pipeline = logs_to(start, setenv, peer.url, timeout)
        monitel.emit("event")
        if delivered:
            assert pipeline.force_flush(DEADLINE)
            sent = len(peer.requests)  # more than one if the headers of the first came late
            assert pipeline.force_flush(DEADLINE)
            assert sent == len(peer.requests)
            assert timeout == SOON or sent == 1
        else:
            pipeline.force_flush(0.0)
            wait_until(lambda: len(peer.requests) > 1, "a second attempt")
        assert delivered == logs(pipeline).delivered
        assert b"accept-encoding: identity\r\n" in peer.requests[0]
        pipeline.shutdown()


# Answers


PASSING: dict[str, list[Answer]] = {
    "http/protobuf": [
        *(Answer(408), Answer(429), Answer(502), Answer(503), Answer(504), Answer(500)),
        *(Answer(fault="drop unread"), Answer(503, fault="drop in answer")),
        *(Answer(503, {"Retry-After": each}) for each in ("0", "soon", "nan", "-5", "1e9", "9" * 20)),
    ],
    "grpc": [
        *(GrpcAnswer(code=getattr(Code, each)) for each in ("UNAVAILABLE", "ABORTED", "CANCELLED", "OUT_OF_RANGE")),
        *(GrpcAnswer(code=getattr(Code, each)) for each in ("DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN")),
        GrpcAnswer(code=Code.RESOURCE_EXHAUSTED, details="larger than max", retry_delay=0.0),
        GrpcAnswer(code=Code.RESOURCE_EXHAUSTED, details="HTTP Status Code 429"),  # of a Collector, for Loki
        *(GrpcAnswer(code=Code.UNAVAILABLE, trailer=each) for each in (12_000, 40_000, 100_000)),  # gRPC has limits
        GrpcAnswer(code=Code.UNAVAILABLE, retry_delay=-5.0),
    ],
}


def test_passing_faults_lose_neither_items_nor_order(
    backend: Inbox, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A request is sent again before later ones, even with a nonsensical ``Retry-After``; one line is logged."""
    pipeline, names = start(backend), list[str]()
    for number, answer in enumerate(PASSING[backend.protocol]):
        known = len(backend.of("logs"))
        broken = answer.status == 500 or getattr(answer, "code", None) in {Code.INTERNAL, Code.UNKNOWN}
        times = 2 if broken else 5  # after a third failure of this kind the request is set aside
        backend.answer("logs", *[answer] * times)
        names += [f"event {number}.{each}" for each in range(3)]
        caplog.clear()
        assert emit(pipeline, *names[-3:]), answer
        requests = backend.of("logs")[known:]
        assert (times + 3, 1) == (len(requests), len(warnings_with(caplog, "everything is kept"))), answer
        assert 1 == len({each.body for each in requests[: times + 1]} - {b""}), answer  # b"": the body was not read
    assert names == backend.record_names()
    assert len(names) == logs(pipeline).recorded == logs(pipeline).delivered


REFUSALS: dict[str, list[tuple[Answer, str]]] = {
    "http/protobuf": [
        (Answer(401), "set OTEL_EXPORTER_OTLP_HEADERS"),
        (Answer(403), "OTEL_EXPORTER_OTLP_HEADERS"),
        (Answer(400, body=b"Client sent an HTTP request to an HTTPS server.\n"), "begin the endpoint with https://"),
        (Answer(400, body=b"<h1>400: The plain HTTP request was sent to HTTPS port</h1>"), "https://"),
        (Answer(400, body=b"unsupported compression: deflate"), "check OTEL_EXPORTER_OTLP_COMPRESSION"),
        (Answer(500, body=b"native histograms are disabled\n"), "MONITEL_DISTRIBUTIONS=percentiles"),
        (Answer(404), "to which /v1/logs is appended"),
        (Answer(405), "the endpoint must be a base URL"),
        *((Answer(each, {"Location": "https://u:p@b/?k=1"}), "'https://b/'") for each in (301, 302, 308)),
        (Answer(307, {"Location": "https://b:1/a/v1/logs"}), "'https://b:1/a'"),  # the address is that of all signals
        *((Answer(each, body=b"no tenant"), f"HTTP {each}: 'no tenant'") for each in (402, 421, 451, 507, 520)),
    ],
    "grpc": [
        (GrpcAnswer(code=Code.UNAUTHENTICATED), "set OTEL_EXPORTER_OTLP_HEADERS"),
        (GrpcAnswer(code=Code.PERMISSION_DENIED), "check OTEL_EXPORTER_OTLP_HEADERS"),
        (GrpcAnswer(code=Code.UNIMPLEMENTED, details="grpc: Decompressor is not installed"), "OTLP_COMPRESSION"),
        (GrpcAnswer(code=Code.UNIMPLEMENTED), "give the address of the endpoint with the gRPC port"),
    ],
}


def test_refusal_names_what_to_change(backend: Inbox, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, and one attempt in minutes, even if a flush asks for more."""
    for answer, hint in REFUSALS[backend.protocol]:
        caplog.clear()
        backend.requests.clear()
        answers(backend, lambda _names: answer)  # noqa: B023
        pipeline = start(backend, export_interval=0.01)
        monitel.emit("first")
        wait_until(lambda: warnings_with(caplog, "everything is kept"), "the warning")
        monitel.emit("second")
        known = len(backend.of("metrics"))
        backend.wait_until(lambda: len(backend.of("metrics")) > known + 3)  # noqa: B023
        assert not pipeline.force_flush(0.05)
        assert (1, [True]) == (len(backend.of("logs")), [hint in each for each in warnings_with(caplog, "is kept")])
        assert not pipeline.shutdown()
        assert (2, 2) == (logs(pipeline).recorded, logs(pipeline).on_disk), answer


def test_redirection_is_not_followed(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target would receive the data and the headers. What is refused goes to the disk at once."""
    make_small(monkeypatch, after_s=3600.0)
    with Receiver() as elsewhere:
        receiver.rule(lambda request: Answer(307, {"Location": f"{elsewhere.url}/v1/{request.signal}"}))
        pipeline = start(headers={"authorization": "Bearer sesame"})
        assert not emit(pipeline, "event", seconds=0.1)
        wait_until(lambda: logs(pipeline).on_disk == 1, "the disk")
        assert not pipeline.shutdown()
        assert [] == elsewhere.requests
    assert ["event"] == cat(pipeline.spool_dir).names


SUCCESSES: dict[str, list[Answer]] = {
    "http/protobuf": [
        *(Answer(200, {"Content-Type": "text/html"}, body) for body in (b"", b"\xff" * 9, b"<html>ok</html>", b"{}")),
        *(Answer(202), Answer(204, body=b""), Answer(200, {"Content-Encoding": "gzip"}, b"plain")),
        *(Answer(200, fault="drop in answer"), Answer(200, body=b"\x0a\xff\xff\xff\xff")),
    ],
    "grpc": [GrpcAnswer(body=bytes(size)) for size in (70_000, 20_000_000)],  # an error of gRPC: it is too large
}


def test_success_counts_whatever_its_body_is(backend: Inbox, start: Start, warned: Warned) -> None:
    """The page of a proxy, which is a warning, a lie about the encoding, or too much: it is not sent again."""
    pipeline = start(backend)
    for number, answer in enumerate(SUCCESSES[backend.protocol], 1):
        backend.answer("logs", answer)
        assert emit(pipeline, "event"), number
        assert (number, number) == (logs(pipeline).delivered, len(backend.of("logs")))
    assert (1 if backend.protocol == "http/protobuf" else 0) == len(warned("a page of HTML: check the endpoint"))


def test_what_is_not_http_is_a_failed_attempt(start: Start, setenv: SetEnv) -> None:
    """The request is kept, and sent again until an answer is HTTP."""
    many_headers = b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"
    contents = [b"garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46", b"", many_headers]

    def behave(peer: Peer, connection: socket) -> None:
        peer.read_request(connection)
        sent = len(peer.requests) - 1
        peer.send(connection, contents[sent] if sent < len(contents) else hostile.OK_HEAD + b"\r\n")

    with Peer(behave) as peer:
        pipeline = logs_to(start, setenv, peer.url, NEVER)
        assert emit(pipeline, "event")
        assert (6, 1) == (len(peer.requests), logs(pipeline).delivered)
        assert 1 == len({request.partition(b"\r\n\r\n")[2] for request in peer.requests})


def test_connection_that_is_closed_as_it_is_used_again_is_not_a_failure(
    start: Start, setenv: SetEnv, warned: Warned
) -> None:
    """As by a server that closes idle connections after the interval of exports."""

    def behave(peer: Peer, connection: socket) -> None:
        peer.read_request(connection)
        peer.send(connection, hostile.OK_HEAD + b"Content-Length: 0\r\n\r\n")
        peer.read_request(connection)

    with Peer(behave) as peer:
        pipeline = logs_to(start, setenv, peer.url, NEVER)
        for _ in range(3):
            assert emit(pipeline, "event")
        assert ([], 3, 5) == (warned("retried"), logs(pipeline).delivered, len(peer.requests))


def test_partial_success_is_counted_and_never_sent_again(backend: Inbox, start: Start, warned: Warned) -> None:
    """The text of the backend is logged; a number that cannot be is limited to what was sent."""
    texts = ["attribute too long", "nonsense", "prefer gzip", "x" * 100_000]
    backend.answer("logs", *(partial_success("logs", *each) for each in zip((2, 10**9, 0, -3), texts, strict=True)))
    pipeline = start(backend)
    for _ in range(4):
        for _ in range(5):
            monitel.emit("event")
        assert not pipeline.force_flush(DEADLINE)
    assert 4 == len(backend.of("logs"))
    assert (13, {"partial_success": 7}) == outcome(pipeline)
    assert 1 == len(warned("rejected 2 records: attribute too long"))
    assert 1 == len(warned("accepted a request with a message: prefer gzip"))
    assert max(map(len, warned())) < 1000


KINDS = {
    "too large": (413, Code.RESOURCE_EXHAUSTED),
    "invalid": (400, Code.INVALID_ARGUMENT),
    "broken": (500, Code.INTERNAL),
    "busy": (503, Code.UNAVAILABLE),
}


def refusal(backend: Inbox, kind: str, pause: float | None = None) -> Answer:
    """Return how a backend refuses a request; a busy one may ask for a pause of so many seconds."""
    status, code = KINDS[kind]
    if backend.protocol == "grpc":
        return GrpcAnswer(code=code, details="the reason: larger than max", retry_delay=pause)
    return Answer(status, {} if pause is None else {"Retry-After": str(pause)}, b"the reason")


@pytest.mark.parametrize(("kind", "largest"), [("too large", 3), ("invalid", 16)])
def test_event_is_set_aside_alone(backend: Inbox, start: Start, warned: Warned, kind: str, largest: int) -> None:
    """With the answer. Others of its request are delivered once: in small halves, or in few further attempts."""
    answers(backend, lambda names: refusal(backend, kind) if len(names) > largest or "poison" in names else None)
    pipeline = start(backend, export_interval=3600.0)
    names = [f"event {number}" for number in range(15)]
    for name in (*names[:11], "poison", *names[11:]):
        monitel.emit(name)
    assert not pipeline.force_flush(DEADLINE)
    assert sorted(names) == sorted(backend.record_names())
    if kind == "too large":
        assert names == backend.record_names()
    else:
        assert len(backend.of("logs")) <= 17
    assert (15, {"rejected": 1}) == outcome(pipeline)
    (kept,) = rejected_requests(Path(pipeline.spool_dir))
    assert (["poison"], True) == (kept_in_rejected(pipeline), "the reason" in kept.reason)
    assert 1 == len(warned(f"goes to {pipeline.spool_dir}"))


def test_request_that_fails_again_is_sent_in_halves(
    backend: Inbox, start: Start, monkeypatch: pytest.MonkeyPatch, warned: Warned
) -> None:
    """Large ones never arrive behind a slow network, a proxy that cuts them, or a limit of rate."""
    monkeypatch.setattr(sender, "_FEW", 4)
    answers(backend, lambda names: refusal(backend, "busy") if len(names) > 6 else None)
    pipeline, names = start(backend, export_interval=3600.0), [f"event {number}" for number in range(16)]
    with busy_encoder(pipeline):
        for name in names:
            monitel.emit(name)
    assert pipeline.force_flush(DEADLINE)
    assert (names, 1) == (backend.record_names(), len(warned("the reason", "everything is kept")))


@pytest.mark.usefixtures("clock")  # all numbers have one time
def test_request_with_merged_points_stays_whole(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, warned: Warned
) -> None:
    """Its halves would have other times, and the backend may have it. Its totals may not fit on the disk."""
    monkeypatch.setattr(sender, "_FEW", 4)
    receiver.answer("metrics", *[Answer(503)] * 3)
    pipeline = start(export_interval=3600.0)
    assert pipeline.engine is not None
    monkeypatch.setattr(pipeline.engine.box.journals["metrics"], "before_remove", Mock(side_effect=OSError))
    with busy_encoder(pipeline):
        for number in range(16):
            monitel.log({"loss": number})
    assert pipeline.force_flush(DEADLINE)
    assert (1, []) == (len({each.body for each in receiver.of("metrics")[:4]}), warned("error in the thread"))


def test_rejected_requests_have_a_limit(
    backend: Inbox, start: Start, monkeypatch: pytest.MonkeyPatch, warned: Warned, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the spool has. Beyond it they are only counted, which is logged once; the summary says how to send them."""
    monkeypatch.setattr("monitel_otlp.export.sender.MOST_REJECTED_BYTES", 2000)
    answers(backend, lambda _names: refusal(backend, "invalid"))
    pipeline = start(backend, export_interval=3600.0)
    emit(pipeline, *(f"event {number}" for number in range(10)))
    kept = kept_in_rejected(pipeline)
    assert kept == [f"event {number}" for number in range(len(kept))]
    assert 1 <= len(kept) < 10
    assert 10 == logs(pipeline).dropped["rejected"]
    assert 1 == len(warned("is full"))
    pipeline.shutdown()
    assert re.search(r"; rejected requests in .* --rejected$", capsys.readouterr().err, re.MULTILINE)


def test_backend_that_rejects_everything_gets_few_requests(backend: Inbox, start: Start) -> None:
    """A request is searched until an item and all the others are rejected; later ones are rejected whole."""
    answers(backend, lambda _names: refusal(backend, "invalid"))
    pipeline = start(backend, export_interval=3600.0)
    for number in (1, 2):
        with busy_encoder(pipeline):
            for _ in range(8):
                monitel.emit("event")
        assert not pipeline.force_flush(DEADLINE)
        assert 4 + number == len(backend.of("logs"))  # 8, 4, 2 and 1 events, and 7; then 8
    assert (0, {"rejected": 16}) == outcome(pipeline)
    assert 16 == len(kept_in_rejected(pipeline))


def test_request_that_breaks_the_backend_is_tried_three_times(backend: Inbox, start: Start) -> None:
    """Then it is set aside, so that it does not block later ones."""
    answers(backend, lambda names: refusal(backend, "broken") if "poison" in names else None)
    pipeline = start(backend)
    assert not emit(pipeline, "poison", "last")
    requests = [[each.name for each in records_of(request.message)] for request in backend.of("logs")]
    assert [*[["poison"]] * 3, ["last"]] == requests
    assert (["last"], ["poison"]) == (backend.record_names()[-1:], kept_in_rejected(pipeline))
    assert (1, {"rejected": 1}) == outcome(pipeline)


def test_refusal_after_a_lost_answer_is_unconfirmed(
    backend: Inbox, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend may have the request, and may refuse the next one, or its halves, for that reason."""
    monkeypatch.setattr(sender, "_FEW", 4)
    lost = Answer(fault="drop unanswered")
    if isinstance(backend, GrpcReceiver):
        lost = GrpcAnswer(code=Code.DEADLINE_EXCEEDED)
    backend.answer("logs", lost, lost, *[refusal(backend, "invalid")] * 2)
    pipeline = start(backend)
    for _ in range(5):
        monitel.emit("event")
    assert not pipeline.force_flush(DEADLINE)
    assert (0, {"unconfirmed": 5}) == outcome(pipeline)
    assert 4 == len(backend.of("logs"))
    assert 5 == len(kept_in_rejected(pipeline))


# Pauses


@pytest.mark.parametrize(
    ("consequence", "failures", "asked", "least", "most"),
    [
        (Consequence.RETRY, 1, None, 0.8, 1.2),
        (Consequence.RETRY, 3, 0.0, 3.2, 4.8),
        (Consequence.RETRY, 10**6, None, 24.0, 36.0),
        (Consequence.RETRY, 1, 5.0, 5.0, 5.0),
        (Consequence.RETRY, 1, 1e4, 600.0, 600.0),
        (Consequence.RETRY, 1, 1e9, 0.8, 1.2),
        (Consequence.REFUSED, 9, 1.0, 144.0, 216.0),
    ],
)
def test_pause_is_the_longer_one_of_ours_and_theirs(  # noqa: PLR0917  the columns of the table
    monkeypatch: pytest.MonkeyPatch, consequence: Consequence, failures: int, asked: float, least: float, most: float
) -> None:
    """Ours grows with each failure, and differs between ranks; theirs has a limit, and nonsense is ignored."""
    monkeypatch.undo()
    found = {sender.backoff(transport.Answer(consequence, retry_after=asked), failures) for _ in range(100)}
    assert least <= min(found) <= max(found) <= most
    assert (len(found) > 1) == (least < most)


def test_flushes_keep_the_pause(backend: Inbox, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a flush nor a backend that asks for no pause makes an attempt earlier."""
    monkeypatch.setattr(sender, "_FIRST_PAUSE", 0.2)
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.4)
    answers(backend, lambda _names: refusal(backend, "busy", 0.0))
    pipeline = start(backend)
    monitel.emit("event")
    while len(backend.of("logs")) < 4:
        assert not pipeline.force_flush(0.01)
    arrived = [each.arrived for each in backend.of("logs")]
    pauses = [later - earlier for earlier, later in pairwise(arrived)]
    assert [True] * 3 == [pause >= 0.8 * least for pause, least in zip(pauses, (0.2, 0.4, 0.4), strict=False)]


def test_exit_makes_a_last_attempt(backend: Inbox, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 3600.0)
    answers(backend, lambda _names: refusal(backend, "busy"))
    pipeline = start(backend)
    assert not emit(pipeline, "event", seconds=0.01)
    backend.wait_until(lambda: backend.of("logs"))
    assert not pipeline.force_flush(0.01)
    backend.forget_rules()
    assert not pipeline.force_flush(0.01)
    assert pipeline.shutdown()
    assert ["event"] == backend.record_names()


def test_pause_that_the_backend_asks_for_is_kept(backend: Inbox, start: Start) -> None:
    """Neither rounds nor flushes nor the exit send earlier."""
    backend.answer("logs", refusal(backend, "busy", 600.0))
    pipeline = start(backend, export_interval=0.01)
    monitel.emit("event")
    backend.wait_until(lambda: backend.of("logs"))
    known = len(backend.of("metrics"))
    for _ in range(5):
        assert not pipeline.force_flush(0.05)
    backend.wait_until(lambda: len(backend.of("metrics")) > known)
    assert not pipeline.shutdown()
    assert (1, 1) == (len(backend.of("logs")), logs(pipeline).on_disk)


# Nothing waits


def test_recording_and_flushing_do_not_wait_for_a_backend(blackhole: socket, start: Start, setenv: SetEnv) -> None:
    """While requests of all signals hang, the training loop records, closes windows, and flushes for a given time."""
    setenv(OTEL_EXPORTER_OTLP_TIMEOUT=NEVER)
    pipeline = start(endpoint=hostile.url_of(blackhole), spans=True)

    def train() -> None:
        for step in range(500):
            monitel.set_step(step)
            record_one_of_each_signal()
            if step % 100 == 0:
                assert not pipeline.force_flush(0.01)
        assert not pipeline.force_flush(0.3)

    run_together(train)
    assert {0} == {each.delivered for each in pipeline.account().values()}
    assert not pipeline.shutdown(0.6)
    assert [500] * 3 == [each.on_disk for each in pipeline.account().values()]


def record_one_of_each_signal() -> None:
    record_window("loss", [COUNT], 1)
    monitel.emit("event")
    record_ranges("range")


@pytest.mark.parametrize("faulty", ["metrics", "logs"])
def test_signals_do_not_wait_for_each_other(receiver: Receiver, start: Start, setenv: SetEnv, faulty: str) -> None:
    """The endpoint of one signal never answers: the other two are delivered, and the exit loses nothing."""
    setenv(OTEL_EXPORTER_OTLP_TIMEOUT=NEVER, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    with Peer(hostile.never_answers) as peer:
        setenv({f"OTEL_EXPORTER_OTLP_{faulty.upper()}_ENDPOINT": f"{peer.url}/v1/{faulty}"})
        pipeline = start(endpoint=None, export_interval=0.02, spans=True)
        others = {"metrics", "logs", "traces"} - {faulty}
        for number in range(1, 4):
            record_one_of_each_signal()
            wait_until(lambda: {number} == {pipeline.account()[each].delivered for each in others})  # noqa: B023
        wait_until(lambda: peer.requests, "a request that hangs")
        assert not pipeline.shutdown(0.6)
    accounts = pipeline.account()
    assert {3} == {accounts[each].delivered for each in others}
    assert (0, 3) == (accounts[faulty].delivered, accounts[faulty].on_disk)


def test_backend_that_comes_back_receives_everything_in_order(start: Start) -> None:
    for kind in (Receiver, GrpcReceiver):
        with kind() as before:
            pipeline = start(before)
            assert emit(pipeline, "first")
        names = [f"event {number}" for number in range(20)]
        assert not emit(pipeline, *names, seconds=0.0)
        with kind(before.port) as after:
            assert pipeline.force_flush(DEADLINE)
            assert names == after.record_names()
        assert (21, 21) == (logs(pipeline).recorded, logs(pipeline).delivered)


# TLS

CERTIFICATE = "OTEL_EXPORTER_OTLP_CERTIFICATE"


def test_signal_may_have_a_separate_authority(authority: Any, start: Start, setenv: SetEnv, warned: Warned) -> None:
    """OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE overrides the general variable, for logs only."""
    for name, owner in {CERTIFICATE: trustme.CA(), "OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE": authority}.items():
        owner.cert_pem.write_to_path(name)
        setenv({name: name})
    with serve("http/protobuf", authority.issue_cert("127.0.0.1")) as backend:
        pipeline = start(endpoint=backend.url)
        assert not emit(pipeline, "event", seconds=0.1)
        backend.wait_until(backend.record_names)
        wait_until(lambda: warned("metrics", CERTIFICATE), "a warning")
        pipeline.shutdown()
        assert (["event"], []) == (backend.record_names(), backend.of("metrics"))


@pytest.fixture(scope="module")
def authority() -> Any:
    return trustme.CA()


def serve(protocol: str, certificate: Any, clients: Any = None) -> Any:
    """Return a backend with TLS for all clients, or for those with a certificate of an authority."""
    if protocol == "grpc":
        pair = (certificate.private_key_pem.bytes(), b"".join(each.bytes() for each in certificate.cert_chain_pems))
        roots = None if clients is None else clients.cert_pem.bytes()
        return GrpcReceiver(credentials=grpc.ssl_server_credentials([pair], roots, clients is not None))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return Receiver(tls=context)


#: What is wrong with a certificate or its key, and a word of the warning.
CASES = {
    "client": "",
    "no client": "",
    **dict.fromkeys(("unknown", "renewed", "another host", "no TLS"), "TLS failed"),
    **dict.fromkeys(("no file", "not a certificate"), CERTIFICATE),
    "no key": "CLIENT_KEY: CLIENT_KEY: FileNotFoundError",
    "locked key": "a key with a password is not supported",
}


def lock_key() -> None:
    key = serialization.load_pem_private_key(Path("CLIENT_KEY").read_bytes(), None)
    form, password = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"sesame")
    Path("CLIENT_KEY").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, password))


SPOILED: dict[str, Callable[[], object]] = {
    "no file": Path("CERTIFICATE").unlink,
    "not a certificate": lambda: Path("CERTIFICATE").write_text("garbage"),
    "no key": Path("CLIENT_KEY").unlink,
    "locked key": lock_key,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_only_the_backend_with_the_right_certificate_receives_anything(
    *, authority: Any, start: Start, setenv: SetEnv, warned: Warned, protocol: str, case: str
) -> None:
    """Otherwise nothing is sent, one warning names the setting, and everything is kept. A renewed file is read."""
    given = {"CERTIFICATE": (trustme.CA() if case in {"unknown", "renewed"} else authority).cert_pem}
    if case in {"client", "no key", "locked key"}:
        client = authority.issue_cert("trainer@example.org")
        given |= {"CLIENT_CERTIFICATE": client.cert_chain_pems[0], "CLIENT_KEY": client.private_key_pem}
    for name, content in given.items():
        content.write_to_path(name)
        setenv({f"OTEL_EXPORTER_OTLP_{name}": name})
    if (spoil := SPOILED.get(case)) is not None:
        spoil()
    certificate = authority.issue_cert("elsewhere.example" if case == "another host" else "127.0.0.1")
    if case == "no TLS":
        backend: Any = GrpcReceiver() if protocol == "grpc" else Receiver()
    else:
        backend = serve(protocol, certificate, authority if "client" in case else None)
    with backend:
        pipeline = start(backend, endpoint=backend.url.replace("http:", "https:"))
        if case == "client":
            assert emit(pipeline, "first", "second")
            assert ["first", "second"] == backend.record_names()
            return
        assert not emit(pipeline, "first", "second", seconds=0.1)
        wait_until(lambda: warned("logs", "everything is kept"), "the warning")
        if case == "renewed":
            authority.cert_pem.write_to_path("CERTIFICATE")
        assert (case == "renewed") is pipeline.shutdown()
        assert (["first", "second"] if case == "renewed" else []) == backend.record_names()
    assert 1 == len(warned("logs", "everything is kept", CASES[case]))
    assert (0 if case == "renewed" else 2) == logs(pipeline).on_disk
