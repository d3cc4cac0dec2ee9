"""One trace per training step: ids that every rank of a job computes alike, and a budget of spans for all ranks."""

from __future__ import annotations

import logging
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING
from uuid import uuid4

from monitel.process.launcher import is_rank_zero
from monitel.process.os_threads import RLock
from monitel_otel.ranges import BUDGET

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_log = logging.getLogger("monitel.otlp")

#: Tempo's default for ``max_bytes_per_trace``. Tempo drops the spans beyond it, and reports success to the sender.
TRACE_LIMIT_BYTES = 5_000_000

_FILLED_BYTES = 4_500_000
_SPAN_BYTES = 250  # a range with some attributes; without any it has about 160
_RANK_BYTES = 3_000  # the resource in two requests, the span of the rank, the span of the folded ranges
_REQUEST_BYTES = 900  # the resource in a further request
_STEPS = 8

_TRACE_BYTES, _ID_BYTES = 16, 8
_TOO_LONG = 10  # digits of a number that is not a world size


class StepTraces:
    """One trace per training step. Every rank computes the same ids from the resource, without communication.

    Without a run id each process uses a random one, so that its traces are separate. ``budget`` is the span budget that
    the application has set, ``interval`` the seconds between two requests; ``alone`` if no other rank exports.
    """

    def __init__(
        self, attributes: Mapping[str, Any], *, alone: bool = False, budget: int | None = None, interval: float = 5.0
    ) -> None:
        run = attributes.get("training.run.id")
        if run is None and not alone and _number(attributes.get("training.world_size")) > 1:
            _log.warning(
                "step_traces: there is no run id, so each rank has separate traces; "
                "set one with torchrun --rdzv-id, or as training.run.id in OTEL_RESOURCE_ATTRIBUTES"
            )
        self._run = str(uuid4() if run is None else run)
        self._attempt = attributes.get("training.attempt", 0)
        # If it is unknown and not 0, the ids of its span are random.
        self.rank = attributes.get("training.rank", 0 if is_rank_zero(attributes) else None)
        self._rank_name = str(uuid4() if self.rank is None else self.rank)
        self._ranks = 1 if alone or run is None else _number(attributes.get("training.world_size"))
        self._budget = budget
        self._interval_ns = interval * 1e9
        self._lengths_ns: deque[float] = deque([0.0], maxlen=_STEPS)
        self._began: tuple[int, int] | None = None
        self._latest = -1
        self._repeated: list[tuple[int, int]] = []  # first and last step of each repeated section

    def of(self, step: int, began_ns: int | None) -> tuple[StepIds, int]:
        """Return the ids of a step, and its budget. A step that the process repeats has a new trace each time.

        It began now, at ``began_ns``, or is already over if that is None. Its length is assumed to be the longest of
        the last eight. Call it in one thread at a time.
        """
        if began_ns is not None:
            if step <= self._latest:
                self._repeated.append((step, self._latest))
            self._latest = step
            if self._began is not None and step > self._began[0]:
                self._lengths_ns.append((began_ns - self._began[1]) / (step - self._began[0]))
            self._began = step, began_ns
        before = sum(first <= step <= last for first, last in self._repeated)
        words = [self._run, str(self._attempt), str(step), *([str(before)] if before else [])]
        ids = StepIds(_hash(_TRACE_BYTES, *(word.encode() for word in words)), self._rank_name)
        return ids, self._budget or budget_of_rank(self._ranks, max(self._lengths_ns) / self._interval_ns)

    def warn_if_too_large(self) -> None:
        """Log a warning if the trace of a step, in which each rank uses its budget, may exceed Tempo's limit."""
        default = budget_of_rank(self._ranks)
        size = self._ranks * (_RANK_BYTES + (default if self._budget is None else self._budget) * _SPAN_BYTES)
        if size > TRACE_LIMIT_BYTES:
            remedy = f", or omit the budget of {self._budget} spans, which is then {default}"
            _log.warning(
                "step_traces: the trace of a step of %d ranks may have %.1f MB, and Tempo drops what exceeds "
                "max_bytes_per_trace (by default %.0f MB) without an error: raise it%s",
                *(self._ranks, size / 1e6, TRACE_LIMIT_BYTES / 1e6, "" if self._budget is None else remedy),
            )


def budget_of_rank(ranks: int, intervals: float = 0.0) -> int:
    """Return the default span budget of a rank, at least 1, for a step that takes so many export intervals.

    Each interval takes a request, with the resource, unless the spans are fewer.
    """
    left = _FILLED_BYTES / max(1, ranks) - _RANK_BYTES
    many = (left - intervals * _REQUEST_BYTES) / _SPAN_BYTES
    few = (left + _REQUEST_BYTES) / (_SPAN_BYTES + _REQUEST_BYTES)  # each in a separate request
    return max(1, min(BUDGET, int(max(many, few))))


class StepIds:
    """The ids of the trace of one step: its root span, which rank zero exports, and below it the span of this rank."""

    __slots__ = ("_lock", "_ordinals", "rank_id", "root_id", "trace_id")

    def __init__(self, trace_id: bytes, rank: str) -> None:
        self.trace_id = trace_id
        self.root_id = _hash(_ID_BYTES, trace_id)
        self.rank_id = _hash(_ID_BYTES, trace_id, rank.encode())
        self._lock = RLock()  # two spans must not get one id
        self._ordinals: dict[tuple[bytes, str], int] = {}

    def span(self, parent_id: bytes, name: str) -> bytes:
        """Return the id of the next span with this name and this parent."""
        key = parent_id, name
        with self._lock:
            ordinal = self._ordinals.get(key, 0)
            self._ordinals[key] = ordinal + 1
        return _hash(_ID_BYTES, parent_id, name.encode(errors="backslashreplace"), b"%d" % ordinal)


def _number(world_size: Any) -> int:
    """Return the number of ranks; 1 if it is unknown. A variable may have set it as text."""
    text = str(world_size)
    return int(text) if text.isdecimal() and len(text) < _TOO_LONG else 1


def _hash(size: int, *words: bytes) -> bytes:
    return blake2b(b"\0".join(words), digest_size=size).digest()
