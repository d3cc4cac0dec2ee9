"""A request that a backend does not take as a whole: too large, poisoned, or one that breaks the backend."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import monitel
from monitel import COUNT, VALUE, Stat

from .inbox import DEADLINE, Answer, Request, points_of, records_of
from .test_faults import dropped

if TYPE_CHECKING:
    from monitel_otlp import Pipeline

    from .conftest import Start
    from .receiver import Receiver


def emit(count: int, *, poison: tuple[int, ...] = ()) -> list[int]:
    """Emit numbered events, some of them by the name ``poison``; give the numbers of the others."""
    for number in range(count):
        monitel.emit("poison" if number in poison else "event", number=number)
    return [number for number in range(count) if number not in poison]


def numbers(receiver: Receiver) -> list[int]:
    """The numbers of the records that were taken, in order of arrival."""
    return [record.attributes["number"] for record in receiver.records()]


def refuse_poison(request: Request) -> Answer | None:
    """Answer 400 to whatever holds a poisoned record."""
    poisoned = request.signal == "logs" and any(record.name == "poison" for record in records_of(request.message))
    return Answer(400, body=b"poison") if poisoned else None


def set_aside(pipeline: Pipeline, receiver: Receiver) -> list[int]:
    """The numbers of the records in ``rejected/``."""
    message = type(receiver.of("logs")[0].message)
    found = [message.FromString(path.read_bytes()) for path in Path(pipeline.spool_dir).glob("rejected/*.binpb")]
    return sorted(record.attributes["number"] for request in found for record in records_of(request))


def test_what_is_too_large_is_halved_until_it_fits(receiver: Receiver, start: Start) -> None:
    """A backend that takes ten records at a time gets all of them, in order, each once."""
    pipeline = start()
    receiver.rule(
        lambda request: Answer(413)
        if request.signal == "logs" and len(list(records_of(request.message))) > 10
        else None
    )
    expected = emit(100)
    assert pipeline.force_flush(DEADLINE)
    assert expected == numbers(receiver)
    assert {} == dropped(receiver, pipeline, "rejected")


def test_one_record_that_is_too_large_alone_is_set_aside(receiver: Receiver, start: Start) -> None:
    """It cannot be halved; the queue goes on."""
    pipeline = start()
    receiver.rule(lambda request: Answer(413) if b"poison" in request.body else None)
    expected = emit(20, poison=(7,))
    assert pipeline.force_flush(DEADLINE)
    assert expected == sorted(numbers(receiver))
    assert [7] == set_aside(pipeline, receiver)


def test_a_poisoned_record_is_found(receiver: Receiver, start: Start) -> None:
    """Of a hundred records in one request ninety-nine arrive, with at most 16 further attempts; one is counted."""
    pipeline = start()
    receiver.rule(refuse_poison)
    expected = emit(100, poison=(70,))
    assert pipeline.force_flush(DEADLINE)
    assert expected == sorted(numbers(receiver))
    assert [70] == set_aside(pipeline, receiver)
    assert len(receiver.of("logs")) <= 17
    assert {"logs": 1} == dropped(receiver, pipeline, "rejected")


def test_where_both_halves_are_rejected_all_of_it_is(receiver: Receiver, start: Start) -> None:
    """The backend likes nothing of this: it is not asked a hundred times."""
    pipeline = start()
    receiver.rule(lambda request: Answer(400) if request.signal == "logs" else None)
    emit(100)
    assert pipeline.force_flush(DEADLINE)
    assert 3 == len(receiver.of("logs"))
    assert list(range(100)) == set_aside(pipeline, receiver)
    assert {"logs": 100} == dropped(receiver, pipeline, "rejected")


def test_a_poisoned_window_costs_its_neighbours_nothing(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """A backend that refuses NaN: the other windows of the request arrive, and totals stay right."""
    pipeline = start()

    def refuse_nan(request: Request) -> Answer | None:
        nan = request.signal == "metrics" and any(math.isnan(point.value) for point in points_of(request.message))
        return Answer(400) if nan else None

    receiver.rule(refuse_nan)
    stat = Stat("loss", [COUNT, VALUE], 60.0)
    for value in [*range(10), math.nan, *range(11, 20)]:
        stat.add(value)
        clock.advance(60)
    assert pipeline.force_flush(DEADLINE)
    assert [*range(10), *range(11, 20)] == sorted(receiver.values("loss.value"))
    assert list(range(1, 21)) == sorted(receiver.values("loss.count"))


def test_a_request_that_breaks_the_backend_is_tried_three_times(receiver: Receiver, start: Start) -> None:
    """Then it is set aside, so that it does not block what comes after it."""
    pipeline = start()
    receiver.rule(lambda request: Answer(500, body=b"panic") if b"poison" in request.body else None)
    emit(1, poison=(0,))
    assert not pipeline.force_flush(0.1)
    emit(2, poison=(0,))
    assert pipeline.force_flush(DEADLINE)
    assert [1] == numbers(receiver)
    assert [0, 0] == set_aside(pipeline, receiver)
    assert {"logs": 2} == dropped(receiver, pipeline, "rejected")
    assert "panic" in next(Path(pipeline.spool_dir).glob("rejected/*.txt")).read_text()


def test_a_rejection_after_a_lost_answer_is_counted_as_unconfirmed(receiver: Receiver, start: Start) -> None:
    """The backend may have taken it the first time, and refuse the repetition for that."""
    pipeline = start()
    receiver.answer("logs", Answer(fault="drop unanswered"), Answer(400, body=b"duplicate"))
    emit(5)
    assert pipeline.force_flush(DEADLINE)
    assert ({"logs": 5}, {}) == tuple(dropped(receiver, pipeline, reason) for reason in ("unconfirmed", "rejected"))
    assert list(range(5)) == set_aside(pipeline, receiver)


def test_no_request_is_larger_than_grpc_servers_take(receiver: Receiver, start: Start) -> None:
    """10 MB of events go in requests of 3.5 MiB at most, in order."""
    pipeline = start()
    for number in range(100):
        monitel.emit("event", number=number, text="x" * 100_000)
    assert pipeline.force_flush(DEADLINE)
    assert list(range(100)) == numbers(receiver)
    assert max(len(request.body) for request in receiver.of("logs")) <= 3.5 * 2**20
