"""A backend that stores the good records of a request and refuses the request because of the others, as Loki does."""

import marshal
from os import PathLike
from pathlib import Path
from random import Random

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs
from tests.support import inbox
from tests.support.inbox import DEADLINE, Answer, records_of
from tests.support.pipelines import Start
from tests.support.receiver import Receiver
from tests.support.spools import rejected_in

import monitel
from monitel.blackbox.record import EVENT
from monitel_otlp.messages.request import Request
from monitel_otlp.transport.answer import count_rejected

TOO_OLD = "entry for stream '{service_name=\"a\"}' has timestamp too old: 2026-10-13T17:50:06Z, oldest acceptable ..."
TOO_NEW = "entry for stream '{service_name=\"a\"}' has timestamp too new: 2026-11-25T17:50:06Z"
TOO_LONG = (
    "max entry size '262144' bytes exceeded for stream '{service_name=\"c\"}' while adding an entry with length "
    "'300000' bytes"
)
TOO_LARGE = "stream '{service_name=\"a\"}' has structured metadata too large: '70055' bytes, limit: '65536' ..."
TOO_MANY = "stream '{service_name=\"a\"}' has too many structured metadata labels: '302', limit: '256'. Please see ..."
BEHIND = (
    "entry with timestamp 2026-10-28 17:50:06.95338661 +0000 UTC ignored, reason: 'entry too far behind, entry "
    "timestamp is: 2026-10-28T17:50:06Z, oldest acceptable timestamp is: 2026-11-21T17:50:06Z',\n"
)
IGNORED = "user 'fake', total ignored: {} out of {} for stream: {{service_name=\"b\"}}"
COLLECTOR = (
    "Permanent error: rpc error: code = InvalidArgument desc = error exporting items, request to "
    "http://127.0.0.1:22291/otlp/v1/logs responded with HTTP Status Code 400, Message={}, Details=[]"
)


def status(message: str) -> bytes:
    return bytes(Status(message=message).SerializeToString())


class Loki:
    """Refuses events named ``old`` and ``behind``, and stores the others once; ``wrapping`` is around its message."""

    def __init__(self, wrapping: str = "{}") -> None:
        self.stored: set[int] = set()
        self.refused: set[int] = set()
        self.requests = 0
        self.wrapping = wrapping

    def __call__(self, request: inbox.Request) -> Answer | None:
        if request.signal != "logs":
            return None
        self.requests += 1
        found = [(record.name, record.attributes["number"]) for record in records_of(request.message)]
        old, behind, good = ([number for kind, number in found if kind == name] for name in ("old", "behind", "good"))
        self.stored.update(good)
        self.refused.update(old, behind)
        if behind:  # the ingester's text replaces that of the distributor
            text = 10 * BEHIND + IGNORED.format(len(behind), len(behind) + len(good))
        elif old:
            text = f"{len(old)} errors like: {TOO_OLD}" if len(old) > 1 else TOO_OLD
        else:
            return None
        return Answer(400, {"Content-Type": "application/octet-stream"}, status(self.wrapping.format(text)))


def emit(kinds: list[str]) -> None:
    for number, kind in enumerate(kinds):
        monitel.emit(kind, number=number)


def of(kinds: list[str], *wanted: str) -> set[int]:
    return {number for number, kind in enumerate(kinds) if kind in wanted}


def set_aside(folder: str | PathLike[str]) -> set[int]:
    return {record.attributes["number"] for request in rejected_in(Path(folder)) for record in records_of(request)}


@pytest.mark.parametrize(
    ("wrapping", "bad"), [("{}", {3: "behind", 40: "behind"}), (COLLECTOR, {3: "old", 4: "behind", 30: "old"})]
)
def test_stored_records_are_delivered(receiver: Receiver, start: Start, wrapping: str, bad: dict[int, str]) -> None:
    """Only the refused records are dropped, and they are found by halving; the others count as delivered, once."""
    loki = Loki(wrapping)
    receiver.rule(loki)
    pipeline = start(export_interval=3600.0)
    kinds = [bad.get(number, "good") for number in range(42)]
    emit(kinds)
    assert not pipeline.force_flush(DEADLINE)
    account = pipeline.account()["logs"]
    assert (42, 42 - len(bad), {"rejected": len(bad)}) == (account.recorded, account.delivered, account.dropped)
    assert of(kinds, "good") == loki.stored
    assert of(kinds, "old", "behind") == loki.refused
    assert loki.refused <= set_aside(pipeline.spool_dir)
    assert len(set_aside(pipeline.spool_dir)) <= 3 * len(bad)
    assert loki.requests <= 23


def test_stored_records_of_an_unconfirmed_request_are_delivered(receiver: Receiver, start: Start) -> None:
    """After an attempt without an answer the request is not split; the number in the text counts nevertheless."""
    loki = Loki()
    receiver.rule(loki)
    receiver.answer("logs", Answer(fault="drop unanswered"))
    pipeline = start(export_interval=3600.0)
    emit(["good"] * 20 + ["behind"] * 2)
    assert not pipeline.force_flush(DEADLINE)
    account = pipeline.account()["logs"]
    assert (20, {"unconfirmed": 2}) == (account.delivered, account.dropped)
    assert (1, set(range(22))) == (loki.requests, set_aside(pipeline.spool_dir))


def test_refused_records_are_counted_from_the_text_of_loki() -> None:
    """The records that are not in the total of the ingester were refused before; a text that does not fit counts 0."""
    logs, spans = Request("logs", b"", records=40), Request("traces", b"", records=1)
    counted = [
        (TOO_OLD, 1),
        (TOO_NEW, 1),
        (TOO_LONG, 1),
        (TOO_LARGE, 1),
        (f"1 errors like: {TOO_LARGE}; 2 errors like: {TOO_MANY}", 3),
        (f"30 errors like: {TOO_OLD}", 30),
        (f"1 errors like: {TOO_OLD}; 3 errors like: {TOO_NEW}; 2 errors like: {TOO_LONG}", 6),
        (f"1 errors like: {TOO_OLD}; 3 errors like: stream has 16 label names; limit 15", 0),
        (f"41 errors like: {TOO_OLD}", 0),
        (f"0 errors like: {TOO_OLD}", 0),
        (3 * BEHIND + IGNORED.format(3, 40), 3),
        (3 * BEHIND + IGNORED.format(3, 5), 38),
        (BEHIND + IGNORED.format(5, 3), 0),
        (BEHIND + IGNORED.format(3, 50), 0),
        (BEHIND + IGNORED.format("9" * 30, 40), 0),
        ("out of order sample", 0),
        ("", 0),
    ]
    for text, rejected in counted:
        for wrap in ("{}", COLLECTOR):
            assert rejected == count_rejected(logs, wrap.format(text)), text
            assert 0 == count_rejected(spans, wrap.format(text))


def test_backend_to_which_everything_is_too_large_gets_few_requests(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Halves are of no use then. Items that are too large cost no other one, even if they are the first."""
    pipeline, ids = start(), Random(1)
    receiver.rule(
        lambda request: Answer(413, {}, ids.randbytes(16).hex().encode()) if request.signal == "logs" else None
    )
    for number in range(1000):
        monitel.emit("event", number=number)
    pipeline.force_flush(DEADLINE)
    assert {"rejected": 1000} == pipeline.account()["logs"].dropped
    assert len(receiver.of("logs")) < 100
    assert 1 == caplog.text.count("a request was rejected")
    receiver.forget_rules()
    receiver.rule(lambda request: Answer(413) if len(request.body) > 20_000 else None)
    assert pipeline.engine is not None
    pipeline.engine.box.journals["logs"].append(EVENT, marshal.dumps("one that cannot be encoded", 2))
    for _ in range(4):
        monitel.emit("large", text="x" * 20_000)
    for number in range(100):
        monitel.emit("event", number=number)
    pipeline.force_flush(DEADLINE)
    account = pipeline.account()["logs"]
    assert (100, {"rejected": 1004, "encoding": 1}) == (account.delivered, account.dropped)
