"""A backend that stores the good records of a request and refuses the request because of the others, as Loki does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE, Answer, Request, records_of
from tests.unit.otlp.commands.spooled_run import events_request
from tests.unit.otlp.transport.test_error_bodies import BEHIND, COLLECTOR, IGNORED, TOO_OLD, status

import monitel
from monitel_otlp.delivery.request_splitting import isolate
from monitel_otlp.transport.answer import Answer as Attempt
from monitel_otlp.transport.answer import Verdict

if TYPE_CHECKING:
    from os import PathLike

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel_otlp.messages.request import FrozenRequest


class Loki:
    """A rule for the receiver: events named ``old`` and ``behind`` are refused, the others are stored once.

    Attributes:
        stored: Numbers of the stored events.
        refused: Numbers of the refused events.
        requests: Number of requests with log records.
        wrapping: Text around the message; that of a Collector, or none.
    """

    def __init__(self, wrapping: str = "{}") -> None:
        self.stored: set[int] = set()
        self.refused: set[int] = set()
        self.requests = 0
        self.wrapping = wrapping

    def __call__(self, request: Request) -> Answer | None:
        """Store the good records, and return the answer."""
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
    """Emit an event of each kind, numbered."""
    for number, kind in enumerate(kinds):
        monitel.emit(kind, number=number)


def of(kinds: list[str], *wanted: str) -> set[int]:
    """Return the numbers of the events of some kinds."""
    return {number for number, kind in enumerate(kinds) if kind in wanted}


def set_aside(folder: str | PathLike[str]) -> set[int]:
    """Return the numbers of the events in ``rejected/``."""
    requests = [events_request([]).message().FromString(path.read_bytes()) for path in Path(folder).rglob("*.binpb")]
    return {record.attributes["number"] for request in requests for record in records_of(request)}


@pytest.mark.parametrize("wrapping", ["{}", COLLECTOR], ids=["loki", "collector"])
@pytest.mark.parametrize("bad", [{3: "old"}, {3: "behind", 40: "behind"}, {3: "old", 4: "behind", 30: "old"}], ids=str)
def test_stored_records_are_not_counted_as_dropped(
    receiver: Receiver, start: Start, wrapping: str, bad: dict[int, str]
) -> None:
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
    assert loki.requests <= 17


@pytest.mark.parametrize("seed", range(5))
def test_account_is_exact_for_any_records(receiver: Receiver, start: Start, seed: int) -> None:
    """The account agrees with the backend, even if there are more bad records than attempts to find them."""
    rng = random.Random(seed)
    loki = Loki(rng.choice(["{}", COLLECTOR]))
    receiver.rule(loki)
    pipeline = start(export_interval=3600.0)
    kinds = rng.choices(["good", "old", "behind"], [rng.random(), rng.random(), rng.random()], k=rng.randint(1, 200))
    emit(kinds)
    pipeline.force_flush(DEADLINE)
    account = pipeline.account()["logs"]
    assert (len(loki.stored), len(loki.refused)) == (account.delivered, sum(account.dropped.values()))
    assert of(kinds, "good") == loki.stored
    assert loki.refused <= set_aside(pipeline.spool_dir)


def test_request_without_a_good_record_is_not_split(receiver: Receiver, start: Start) -> None:
    """The backend reports that it has stored nothing, so there is nothing to find."""
    loki = Loki()
    receiver.rule(loki)
    pipeline = start(export_interval=3600.0)
    emit(["old"] * 42)
    assert not pipeline.force_flush(DEADLINE)
    assert (1, {"rejected": 42}) == (loki.requests, pipeline.dropped)


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


def test_parts_are_searched_while_the_backend_reports_stored_records() -> None:
    """Bad records in both halves are found, one request each with its reason, without the good records beside them."""
    bad = {"event 1", "event 14"}

    def send(part: FrozenRequest) -> Attempt:
        names = {record.name for record in records_of(part.message())}
        if not names & bad:
            return Attempt(Verdict.DELIVERED)
        return Attempt(Verdict.REJECTED, " and ".join(sorted(names & bad)), rejected=len(names & bad))

    found = isolate(events_request(range(16)), send, Attempt(Verdict.REJECTED, rejected=2))
    assert [{"event 1"}, {"event 14"}] == [
        {each.name for each in records_of(part.message())} for part, _ in found.rejected
    ]
    assert ["event 1", "event 14"] == [refusal.reason for _, refusal in found.rejected]
    assert (14, 0, []) == (found.delivered, found.left_out, found.unsent)
