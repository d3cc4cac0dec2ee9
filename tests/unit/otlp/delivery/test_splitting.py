"""Requests that a backend does not accept as a whole: too large, with a bad item, or one that breaks the backend."""

import math

from tests.support.inbox import DEADLINE, Answer, Request, points_of
from tests.support.pipelines import Start
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, VALUE, Stat


def emit(count: int, *, poison: tuple[int, ...] = ()) -> list[int]:
    """Emit numbered events, of which some are named ``poison``, and return the numbers of the others."""
    for number in range(count):
        monitel.emit("poison" if number in poison else "event", number=number)
    return [number for number in range(count) if number not in poison]


def numbers(receiver: Receiver) -> list[int]:
    return [record.attributes["number"] for record in receiver.records()]


def test_poisoned_window_is_the_only_one_lost(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """If the backend refuses NaN, the other windows of the request arrive, once, in order, and with right totals."""
    pipeline = start()

    def refuse_nan(request: Request) -> Answer | None:
        nan = request.signal == "metrics" and any(math.isnan(point.value) for point in points_of(request.message))
        return Answer(400) if nan else None

    receiver.rule(refuse_nan)
    stat = Stat("loss", [COUNT, VALUE], 60.0)
    for value in [*range(10), math.nan, *range(11, 20)]:
        stat.add(value)
        clock.advance(60)
    assert not pipeline.force_flush(DEADLINE)
    assert {"rejected": 1} == pipeline.dropped
    assert [*range(10), *range(11, 20)] == receiver.values("loss.value")
    assert [*range(1, 11), *range(12, 21)] == receiver.values("loss.count")


def test_requests_fit_the_default_limit_of_grpc_servers(receiver: Receiver, start: Start) -> None:
    """10 MB of events are sent in order, in requests of at most 3.5 MiB."""
    pipeline = start()
    for number in range(100):
        monitel.emit("event", number=number, text="x" * 100_000)
    assert pipeline.force_flush(DEADLINE)
    assert max(len(request.body) for request in receiver.of("logs")) <= 3.5 * 2**20
    assert list(range(100)) == numbers(receiver)
