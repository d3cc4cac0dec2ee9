"""Splitting of requests, and the search for the part of a request that a backend rejects."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from monitel_otlp.messages.request import LEVELS, FrozenRequest, count_records, record_lists
from monitel_otlp.transport.answer import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.transport.answer import Answer

_ATTEMPTS = 16
_BAD = {Verdict.REJECTED, Verdict.FAILED}


def split(request: FrozenRequest) -> tuple[FrozenRequest, FrozenRequest] | None:
    """Split a request into two halves of its records, in order. Return None if it has only one record.

    An item belongs to the half with its last point, so the items of a half are the sum of its weights.
    """
    levels = LEVELS[request.signal]
    first: Any = request.message()
    second: Any = request.message()
    weights = _weights(request, count_records(first, levels))
    records = len(weights)
    if records < 2:  # noqa: PLR2004  two halves
        return None
    half = records // 2
    _keep(first, levels, 0, half)
    _keep(second, levels, half, records)
    synthetic = min(request.synthetic, weights[:half].count(0))
    return (
        _frozen(request, first, weights[:half], synthetic),
        _frozen(request, second, weights[half:], request.synthetic - synthetic),
    )


def estimate_rejected(request: FrozenRequest, rejected: int) -> int:
    """Return the number of items that a partial success has lost.

    The number is exact for log records and spans. For metrics it is an estimate, because the backend counts points: the
    rejected points divided by the average points per item, start points included, rounded up, and at most all items.
    Points after the last item are ignored, because they belong to the pipeline itself or to instruments.

    Args:
        request: The accepted request.
        rejected: Number of points, log records or spans that the backend has rejected.
    """
    if rejected <= 0 or not request.items:
        return 0
    if request.signal != "metrics":
        return min(request.items, rejected)
    weights = _weights(request, count_records(request.message(), LEVELS["metrics"]))
    while weights and not weights[-1]:
        weights.pop()
    return min(request.items, -(-rejected * request.items // max(len(weights), 1)))


@dataclass
class Isolated:
    """The outcome for a rejected request.

    ``delivered``, ``left_out`` and the items of the parts add up to the request's items.

    Attributes:
        delivered: Items of accepted parts, and items of rejected parts that the backend reports to have stored.
        left_out: Items of accepted parts that a partial success has lost; see :func:`estimate_rejected`.
        synthetic: Synthetic spans of accepted parts.
        rejected: Rejected parts, each with the last answer to it; see :func:`without_stored`.
        unsent: Parts without a final answer, in order.
    """

    delivered: int = 0
    left_out: int = 0
    synthetic: int = 0
    rejected: list[tuple[FrozenRequest, Answer]] = field(default_factory=list)
    unsent: list[FrozenRequest] = field(default_factory=list)


def without_stored(request: FrozenRequest, rejected: int) -> FrozenRequest:
    """Return a rejected request whose items are only those that the backend has not stored.

    Args:
        request: The rejected request.
        rejected: Number of rejected records, of which the backend has stored the others; 0 if it has stored none.
    """
    return replace(request, items=estimate_rejected(request, rejected) or request.items)


def isolate(request: FrozenRequest, send: Callable[[FrozenRequest], Answer | None], answer: Answer) -> Isolated:
    """Send the halves of a rejected request, and the halves of rejected halves, with at most 16 attempts.

    If both halves of the request are rejected, the whole request counts as rejected, unless the backend reports that it
    has stored some of its records. A part is not split if the backend reports that it has stored none of its records.

    Args:
        request: The rejected request.
        send: Makes one attempt. It returns None if there is no time left.
        answer: The answer to the request.
    """
    found = Isolated()
    suspects = [(request, answer)]
    attempts = 0
    while suspects:
        suspect, refusal = suspects.pop(0)
        is_all_bad = 0 < suspect.items <= refusal.rejected
        halves = split(suspect) if attempts + 2 <= _ATTEMPTS and not is_all_bad else None
        if halves is None:
            part = without_stored(suspect, refusal.rejected)
            found.delivered += suspect.items - part.items
            found.rejected.append((part, refusal))
            continue
        bad = []
        for half in halves:
            attempts += 1
            outcome = send(half)
            if outcome is not None and outcome.verdict in _BAD:
                bad.append((half, outcome))
            elif outcome is not None and outcome.verdict is Verdict.DELIVERED:
                left_out = estimate_rejected(half, outcome.rejected)
                found.left_out += left_out
                found.delivered += half.items - left_out
                found.synthetic += half.synthetic
            else:
                found.unsent.append(half)
        if suspect is request and not answer.rejected and len(bad) == len(halves):
            found.rejected.append((request, answer))
        else:
            suspects += bad
    return found


def _weights(request: FrozenRequest, records: int) -> array[int]:
    """Return the number of items that end with each record.

    Without weights the items are spread evenly: one for each record, none at all, or a fraction in a request of a
    version without weights.
    """
    weights = array("I")
    if len(request.weights) == records * weights.itemsize:
        weights.frombytes(request.weights)
        if sum(weights) == request.items:
            return weights
    ends = [record * request.items // records for record in range(records + 1)] if records else [0]
    return array("I", (end - begin for begin, end in pairwise(ends)))


def _keep(message: Any, levels: tuple[str, ...], begin: int, end: int) -> None:
    """Keep only the records from ``begin`` to ``end``, and remove empty messages around them."""
    position = 0
    for records in record_lists(message, levels):
        low, high = max(0, begin - position), max(0, end - position)
        position += len(records)
        del records[high:]
        del records[:low]
    _prune(message, levels)


def _prune(message: Any, levels: tuple[str, ...]) -> None:
    level, *deeper = levels
    if not deeper or level == "data_points":
        return
    children = getattr(message, level)
    for each in children:
        _prune(each, tuple(deeper))
    for index in reversed(range(len(children))):
        if not any(len(records) for records in record_lists(children[index], tuple(deeper))):
            del children[index]


def _frozen(request: FrozenRequest, message: Any, weights: array[int], synthetic: int) -> FrozenRequest:
    items = sum(weights)
    plain = items == 0 or all(weight == 1 for weight in weights)
    return FrozenRequest(
        request.signal,
        message.SerializeToString(),
        items,
        request.created_ns,
        b"" if plain else weights.tobytes(),
        synthetic,
        request.idle,
    )
