"""Split a request in two, and find the part of a request that a backend rejects."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from monitel_otlp.leaves import LEVELS, count_leaves, leaf_lists
from monitel_otlp.request import FrozenRequest
from monitel_otlp.transport.answer import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.transport.answer import Answer

_ATTEMPTS = 16
_BAD = {Verdict.REJECTED, Verdict.FAILED}


def split(request: FrozenRequest) -> tuple[FrozenRequest, FrozenRequest] | None:
    """Return two requests with half of the points, records or spans each, in order; None if there is only one.

    An item goes with its last point: the items of a half are the sum of its weights.
    """
    levels = LEVELS[request.signal]
    first: Any = request.message()
    second: Any = request.message()
    weights = _weights(request, count_leaves(first, levels))
    leaves = len(weights)
    if leaves < 2:  # noqa: PLR2004  two halves
        return None
    half = leaves // 2
    _keep(first, levels, 0, half)
    _keep(second, levels, half, leaves)
    synthetic = min(request.synthetic, weights[:half].count(0))
    return (
        _frozen(request, first, weights[:half], synthetic),
        _frozen(request, second, weights[half:], request.synthetic - synthetic),
    )


def estimate_rejected(request: FrozenRequest, rejected: int) -> int:
    """Return how many items a partial success lost.

    Exact for log records and spans. For metrics an estimate, since the backend counts points: as many items as have
    that many points on average, rounded up, and at most all of them. Points behind the last item are not counted:
    those are of the pipeline itself, or of instruments.

    Args:
        request: The accepted request.
        rejected: Points, log records or spans that the backend left out.
    """
    if rejected <= 0 or not request.items:
        return 0
    if request.signal != "metrics":
        return min(request.items, rejected)
    weights = _weights(request, count_leaves(request.message(), LEVELS["metrics"]))
    while weights and not weights[-1]:
        weights.pop()
    return min(request.items, -(-rejected * request.items // max(len(weights), 1)))


@dataclass
class Isolated:
    """The outcome for a request that was rejected as a whole.

    ``delivered``, ``left_out`` and the items of the parts add up to the request's items.

    Attributes:
        delivered: Items that were accepted after all.
        left_out: Items of accepted parts that the backend left out (partial success); see :func:`estimate_rejected`.
        synthetic: Synthetic spans of accepted parts.
        rejected: Parts that were not accepted.
        unsent: Parts that could not be tried to the end, in order.
    """

    delivered: int = 0
    left_out: int = 0
    synthetic: int = 0
    rejected: list[FrozenRequest] = field(default_factory=list)
    unsent: list[FrozenRequest] = field(default_factory=list)


def isolate(request: FrozenRequest, send: Callable[[FrozenRequest], Answer | None]) -> Isolated:
    """Send a rejected request in halves, and rejected halves in halves, with at most 16 attempts.

    If both first halves are rejected, the whole request counts as rejected.

    Args:
        request: The rejected request.
        send: Makes one attempt; None if there is no time for another.
    """
    found = Isolated()
    suspects = [request]
    attempts = 0
    while suspects:
        suspect = suspects.pop(0)
        halves = split(suspect) if attempts + 2 <= _ATTEMPTS else None
        if halves is None:
            found.rejected.append(suspect)
            continue
        bad = []
        for half in halves:
            attempts += 1
            answer = send(half)
            if answer is not None and answer.verdict in _BAD:
                bad.append(half)
            elif answer is not None and answer.verdict is Verdict.DELIVERED:
                left_out = estimate_rejected(half, answer.rejected)
                found.left_out += left_out
                found.delivered += half.items - left_out
                found.synthetic += half.synthetic
            else:
                found.unsent.append(half)
        if suspect is request and len(bad) == len(halves):
            found.rejected.append(request)
        else:
            suspects += bad
    return found


def _weights(request: FrozenRequest, leaves: int) -> array[int]:
    """Return the number of items that end with each leaf.

    Without weights the items are spread evenly: one for each leaf, none for any, or a proportion in a request of a
    version that wrote no weights.
    """
    weights = array("I")
    if len(request.weights) == leaves * weights.itemsize:
        weights.frombytes(request.weights)
        if sum(weights) == request.items:
            return weights
    ends = [leaf * request.items // leaves for leaf in range(leaves + 1)] if leaves else [0]
    return array("I", (end - begin for begin, end in pairwise(ends)))


def _keep(message: Any, levels: tuple[str, ...], begin: int, end: int) -> None:
    """Cut the leaves down to those from ``begin`` to ``end``, and remove what is empty then."""
    position = 0
    for leaves in leaf_lists(message, levels):
        low, high = max(0, begin - position), max(0, end - position)
        position += len(leaves)
        del leaves[high:]
        del leaves[:low]
    _prune(message, levels)


def _prune(message: Any, levels: tuple[str, ...]) -> None:
    level, *deeper = levels
    if not deeper or level == "data_points":
        return
    children = getattr(message, level)
    for each in children:
        _prune(each, tuple(deeper))
    for index in reversed(range(len(children))):
        if not any(len(leaves) for leaves in leaf_lists(children[index], tuple(deeper))):
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
