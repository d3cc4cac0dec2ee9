"""Make two requests of one, and find what a backend rejects in one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monitel_otlp.request import FrozenRequest
from monitel_otlp.transport.http import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp.transport.http import Answer

#: From a request down to what can be told apart: metric points, log records, spans.
_LEVELS = {
    "metrics": ("resource_metrics", "scope_metrics", "metrics", "data_points"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "traces": ("resource_spans", "scope_spans", "spans"),
}
_ATTEMPTS = 16
_BAD = {Verdict.REJECTED, Verdict.FAILED}


def split(request: FrozenRequest) -> tuple[FrozenRequest, FrozenRequest] | None:
    """Two requests with half of the points, records or spans each, in order; None where there is only one.

    ``items`` is shared out in proportion, so that no count is lost.
    """
    levels = _LEVELS[request.signal]
    first: Any = request.message()
    second: Any = request.message()
    leaves = sum(len(each) for each in _leaf_lists(first, levels))
    if leaves < 2:  # noqa: PLR2004  two halves
        return None
    half = leaves // 2
    _keep(first, levels, 0, half)
    _keep(second, levels, half, leaves)
    items = request.items * half // leaves
    return _frozen(request, first, items), _frozen(request, second, request.items - items)


@dataclass
class Isolated:
    """What became of a request that was rejected as a whole.

    Attributes:
        delivered: Items that were taken after all.
        rejected: The parts that were not.
        unsent: Parts that could not be tried to the end, in order.
    """

    delivered: int = 0
    rejected: list[FrozenRequest] = field(default_factory=list)
    unsent: list[FrozenRequest] = field(default_factory=list)


def isolate(request: FrozenRequest, send: Callable[[FrozenRequest], Answer | None]) -> Isolated:
    """Send a rejected request in halves, and rejected halves in halves, with at most 16 attempts.

    Where both first halves are rejected, all of it is: the backend does not like any of this.

    Args:
        request: What was rejected.
        send: Makes one attempt; None when there is no time for another.
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
        verdicts = []
        for half in halves:
            attempts += 1
            answer = send(half)
            verdicts.append(answer.verdict if answer else Verdict.RETRY)
            if verdicts[-1] is Verdict.DELIVERED:
                found.delivered += half.items
            elif verdicts[-1] not in _BAD:
                found.unsent.append(half)
        bad = [half for half, verdict in zip(halves, verdicts, strict=True) if verdict in _BAD]
        if suspect is request and len(bad) == len(halves):
            found.rejected.append(request)
        else:
            suspects += bad
    return found


def _leaf_lists(message: Any, levels: tuple[str, ...]) -> Iterator[Any]:
    """The repeated fields at the bottom, in order."""
    level, *deeper = levels
    if level == "data_points":
        kind = message.WhichOneof("data")
        if kind is not None:
            yield getattr(message, kind).data_points
        return
    if not deeper:
        yield getattr(message, level)
        return
    for each in getattr(message, level):
        yield from _leaf_lists(each, tuple(deeper))


def _keep(message: Any, levels: tuple[str, ...], begin: int, end: int) -> None:
    """Cut the leaves down to those from ``begin`` to ``end``, and what is empty then."""
    position = 0
    for leaves in _leaf_lists(message, levels):
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
        if not any(len(leaves) for leaves in _leaf_lists(children[index], tuple(deeper))):
            del children[index]


def _frozen(request: FrozenRequest, message: Any, items: int) -> FrozenRequest:
    return FrozenRequest(request.signal, message.SerializeToString(), items, request.created_ns)
