"""Requests that a backend does not accept as a whole: too large, with a bad item, or one that breaks the backend."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from tests.support.inbox import DEADLINE, Answer, Request, points_of

import monitel
from monitel import COUNT, VALUE, Stat
from monitel_otlp.delivery.request_splitting import split
from monitel_otlp.messages.request import LEVELS, REQUESTS, SIGNALS, FrozenRequest, count_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver


def emit(count: int, *, poison: tuple[int, ...] = ()) -> list[int]:
    """Emit numbered events, of which some are named ``poison``, and return the numbers of the others."""
    for number in range(count):
        monitel.emit("poison" if number in poison else "event", number=number)
    return [number for number in range(count) if number not in poison]


def numbers(receiver: Receiver) -> list[int]:
    """Return the numbers of the accepted records, in order of arrival."""
    return [record.attributes["number"] for record in receiver.records()]


def test_poisoned_window_is_the_only_one_lost(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """If the backend refuses NaN, the other windows of the request arrive, and totals stay right."""
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
    counts = filter(None, receiver.values("loss.count"))  # the start point may be in another part
    assert list(range(1, 21)) == sorted(counts)


def test_requests_fit_the_default_limit_of_grpc_servers(receiver: Receiver, start: Start) -> None:
    """10 MB of events are sent in order, in requests of at most 3.5 MiB.

    Known fault: they exceed the black box, so the disk thread takes a request from memory, and the next one is sent
    first. Everything but the order of requests is strict.
    """
    pipeline = start()
    for number in range(100):
        monitel.emit("event", number=number, text="x" * 100_000)
    assert pipeline.force_flush(DEADLINE)
    assert max(len(request.body) for request in receiver.of("logs")) <= 3.5 * 2**20
    requests = [[record.attributes["number"] for record in request.records] for request in receiver.of("logs")]
    assert [[*range(each[0], each[-1] + 1)] for each in requests] == requests
    assert list(range(100)) == [number for each in sorted(requests) for number in each]
    if sorted(requests) != requests:
        pytest.xfail("known fault: requests of one signal leave out of order while the disk thread takes one of them")


def message_of(signal: str, sizes: list[list[int]]) -> Any:
    """Return a message with so many numbered records in each metric (or none) of each resource."""
    message = REQUESTS[signal]()
    resources, scopes, records = LEVELS[signal][:3]
    number = 0
    for of_resource in sizes:
        scope = getattr(getattr(message, resources).add(), scopes).add()
        scope.scope.name = "scope"
        for index, size in enumerate(of_resource):
            for _ in range(size):
                if signal != "metrics":
                    getattr(scope, records).add(flags=number)
                elif index % 2:
                    _last(scope.metrics, index).sum.data_points.add(as_int=number)
                else:
                    _last(scope.metrics, index).histogram.data_points.add(count=number)
                number += 1
    return message


def _last(metrics: Any, index: int) -> Any:
    name = str(index)
    if not metrics or metrics[-1].name != name:
        metrics.add(name=name)
    return metrics[-1]


@st.composite
def requests(draw: Callable[[st.SearchStrategy[Any]], Any]) -> FrozenRequest:
    """Draw a request with any weights, none, or none that fit."""
    signal = draw(st.sampled_from(SIGNALS))
    message = message_of(signal, draw(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=3)))
    records = count_records(message, LEVELS[signal])
    form = draw(st.sampled_from(["weights", "one each", "none", "proportion", "damaged"]))
    weights = array("I", draw(st.lists(st.integers(0, 3), min_size=records, max_size=records)))
    items = {"weights": sum(weights), "one each": records, "none": 0}.get(form, draw(st.integers(0, 40)))
    kept = weights.tobytes() if form in {"weights", "damaged"} else b""
    synthetic = weights.count(0) if form == "weights" and signal == "traces" else 0
    if not records:
        items = 0
    return FrozenRequest(signal, message.SerializeToString(), items, 7, kept, synthetic)


def parts_of(request: FrozenRequest) -> Iterator[FrozenRequest]:
    """Split a request until nothing can be split."""
    halves = split(request)
    if halves is None:
        yield request
    else:
        for half in halves:
            yield from parts_of(half)
