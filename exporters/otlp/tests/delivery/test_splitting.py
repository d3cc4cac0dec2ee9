"""A request that a backend does not take as a whole: too large, poisoned, or one that breaks the backend."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monitel
from monitel import COUNT, VALUE, Stat
from monitel_otlp.delivery.request_splitting import estimate_rejected, isolate, split
from monitel_otlp.leaves import LEVELS, count_leaves
from monitel_otlp.request import REQUESTS, SIGNALS, FrozenRequest
from monitel_otlp.transport.answer import Answer as Attempt
from monitel_otlp.transport.answer import Verdict

from .inbox import DEADLINE, Answer, Request, points_of, records_of
from .test_faults import dropped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    assert not pipeline.force_flush(DEADLINE)
    assert expected == sorted(numbers(receiver))
    assert [7] == set_aside(pipeline, receiver)


def test_a_poisoned_record_is_found(receiver: Receiver, start: Start) -> None:
    """Of a hundred records in one request ninety-nine arrive, with at most 16 further attempts; one is counted."""
    pipeline = start()
    receiver.rule(refuse_poison)
    expected = emit(100, poison=(70,))
    assert not pipeline.force_flush(DEADLINE)
    assert expected == sorted(numbers(receiver))
    assert [70] == set_aside(pipeline, receiver)
    assert len(receiver.of("logs")) <= 17
    assert {"logs": 1} == dropped(receiver, pipeline, "rejected")


def test_where_both_halves_are_rejected_all_of_it_is(receiver: Receiver, start: Start) -> None:
    """The backend likes nothing of this: it is not asked a hundred times."""
    pipeline = start()
    receiver.rule(lambda request: Answer(400) if request.signal == "logs" else None)
    emit(100)
    assert not pipeline.force_flush(DEADLINE)
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
    assert not pipeline.force_flush(DEADLINE)
    assert [1] == numbers(receiver)
    assert [0, 0] == set_aside(pipeline, receiver)
    assert {"logs": 2} == dropped(receiver, pipeline, "rejected")
    assert "panic" in next(Path(pipeline.spool_dir).glob("rejected/*.txt")).read_text()


def test_a_rejection_after_a_lost_answer_is_counted_as_unconfirmed(receiver: Receiver, start: Start) -> None:
    """The backend may have taken it the first time, and refuse the repetition for that."""
    pipeline = start()
    receiver.answer("logs", Answer(fault="drop unanswered"), Answer(400, body=b"duplicate"))
    emit(5)
    assert not pipeline.force_flush(DEADLINE)
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


def message_of(signal: str, sizes: list[list[int]]) -> Any:
    """Return a message with so many numbered leaves in each metric (or none) of each resource."""
    message = REQUESTS[signal]()
    resources, scopes, leaves = LEVELS[signal][:3]
    number = 0
    for of_resource in sizes:
        scope = getattr(getattr(message, resources).add(), scopes).add()
        scope.scope.name = "scope"
        for index, size in enumerate(of_resource):
            for _ in range(size):
                if signal != "metrics":
                    getattr(scope, leaves).add(flags=number)
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


def leaves_in(request: FrozenRequest) -> list[int]:
    """Return the numbers of a request's leaves, in order."""
    message: Any = request.message()
    resources, scopes, leaves = LEVELS[request.signal][:3]
    found: list[Any] = []
    for resource in getattr(message, resources):
        for scope in getattr(resource, scopes):
            for leaf in getattr(scope, leaves):
                if request.signal == "metrics":
                    found += [each.as_int for each in leaf.sum.data_points]
                    found += [each.count for each in leaf.histogram.data_points]
                else:
                    found.append(leaf.flags)
    return found


@st.composite
def requests(draw: Callable[[st.SearchStrategy[Any]], Any]) -> FrozenRequest:
    """Draw a request with any weights, none, or none that fit."""
    signal = draw(st.sampled_from(SIGNALS))
    message = message_of(signal, draw(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=3)))
    leaves = count_leaves(message, LEVELS[signal])
    form = draw(st.sampled_from(["weights", "one each", "none", "proportion", "damaged"]))
    weights = array("I", draw(st.lists(st.integers(0, 3), min_size=leaves, max_size=leaves)))
    items = {"weights": sum(weights), "one each": leaves, "none": 0}.get(form, draw(st.integers(0, 40)))
    kept = weights.tobytes() if form in {"weights", "damaged"} else b""
    synthetic = weights.count(0) if form == "weights" and signal == "traces" else 0
    if not leaves:
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


@given(requests())
def test_splitting_loses_no_item(request: FrozenRequest) -> None:
    """Whatever is split, however often: each leaf is in one part, in order, and items and synthetic spans add up."""
    halves = split(request)
    assert (halves is None) == (len(leaves_in(request)) < 2)
    if halves is not None:
        assert leaves_in(request) == leaves_in(halves[0]) + leaves_in(halves[1])
        assert request.items == halves[0].items + halves[1].items
        assert request.synthetic == halves[0].synthetic + halves[1].synthetic
    parts = list(parts_of(request))
    assert leaves_in(request) == [leaf for part in parts for leaf in leaves_in(part)]
    assert request.items == sum(part.items for part in parts)
    assert request.synthetic == sum(part.synthetic for part in parts)
    assert {7} == {part.created_ns for part in parts}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_an_item_goes_with_its_last_point(weights: list[int]) -> None:
    """The parts of a request carry exactly the weights of their leaves."""
    body = message_of("metrics", [[len(weights)]]).SerializeToString()
    request = FrozenRequest("metrics", body, sum(weights), 7, array("I", weights).tobytes())
    assert weights == [part.items for part in parts_of(request)]


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_synthetic_spans_go_with_their_halves(items: list[bool]) -> None:
    """A span that the pipeline made itself is counted in the part that it is in."""
    body = message_of("traces", [[len(items)]]).SerializeToString()
    request = FrozenRequest("traces", body, sum(items), 7, array("I", items).tobytes(), len(items) - sum(items))
    assert [(int(item), int(not item)) for item in items] == [
        (part.items, part.synthetic) for part in parts_of(request)
    ]


@given(
    requests(),
    st.lists(st.tuples(st.none() | st.sampled_from(Verdict), st.integers(0, 9)), min_size=20, max_size=20),
)
def test_isolating_loses_no_item(request: FrozenRequest, answers: list[tuple[Verdict | None, int]]) -> None:
    """Whatever the backend answers to the parts, each item is delivered, left out, rejected or unsent."""
    plan = iter(answers)

    def send(_part: FrozenRequest) -> Attempt | None:
        verdict, rejected = next(plan)
        return None if verdict is None else Attempt(verdict, rejected=rejected)

    found = isolate(request, send)
    parts = [*found.rejected, *found.unsent]
    assert request.items == found.delivered + found.left_out + sum(part.items for part in parts)
    assert request.synthetic == found.synthetic + sum(part.synthetic for part in parts)
    assert len(answers) - 16 <= len(list(plan))


@pytest.mark.parametrize(
    ("signal", "items", "leaves", "rejected", "expected"),
    [
        ("metrics", 4, 24, 0, 0),
        ("metrics", 4, 24, 1, 1),
        ("metrics", 4, 24, 6, 1),
        ("metrics", 4, 24, 7, 2),
        ("metrics", 4, 24, 24, 4),
        ("metrics", 4, 24, 99, 4),
        ("metrics", 0, 24, 3, 0),
        ("metrics", 4, 24, -1, 0),
        ("logs", 5, 5, 3, 3),
        ("logs", 5, 5, 9, 5),
        ("traces", 3, 5, 2, 2),
    ],
)
def test_rejected_points_are_counted_as_items(
    *, signal: str, items: int, leaves: int, rejected: int, expected: int
) -> None:
    """A partial success is exact for log records and spans, and rounded up to whole windows for points."""
    body = message_of(signal, [[leaves]]).SerializeToString()
    weights = array("I", [0] * (leaves - 1) + [items]).tobytes() if items != leaves else b""
    request = FrozenRequest(signal, body, items, 7, weights)
    assert expected == estimate_rejected(request, rejected)
    if not items:
        assert 0 == estimate_rejected(replace(request, weights=b""), rejected)
