"""One trace per training step: ids that every rank of a job computes alike, and a budget of spans for all ranks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from monitel.attributes import whole
from monitel.process.launcher import is_rank_zero
from monitel.process.os_threads import RLock
from monitel_otel.ranges import BUDGET

_log = logging.getLogger("monitel.otlp")

#: Tempo's default for ``max_bytes_per_trace``. Tempo drops the spans beyond it, and reports success to the sender.
TRACE_LIMIT_BYTES = 5_000_000

_FILLED_BYTES = 4_500_000
_SPAN_BYTES = 250  # a range with some attributes; without any it has about 160
_RANK_BYTES = 3_000  # the resource in two requests, the span of the rank, the span of the folded ranges

_TRACE_BYTES, _ID_BYTES = 16, 8


class StepTraces:
    """One trace per training step. Every rank computes the same ids from the resource, without communication.

    Without a run id each process uses a random one, so that its traces are separate. ``given`` is the span budget that
    the application has set; ``alone`` if no other rank exports.
    """

    def __init__(self, attributes: Mapping[str, Any], *, alone: bool, given: int | None) -> None:
        run, ranks = attributes.get("training.run.id"), whole(attributes.get("training.world_size")) or 1
        if run is None and not alone and ranks > 1:
            _log.warning(
                "step_traces: there is no run id, so each rank has separate traces; "
                "set one with torchrun --rdzv-id, or as training.run.id in OTEL_RESOURCE_ATTRIBUTES"
            )
        self._run = str(uuid4() if run is None else run)
        self._attempt = attributes.get("training.attempt", 0)
        # If it is unknown and not 0, the ids of its span are random.
        self.rank = attributes.get("training.rank", 0 if is_rank_zero(attributes) else None)
        self._rank_name = str(uuid4() if self.rank is None else self.rank)
        self._ranks = 1 if alone or run is None else ranks
        self._is_given = given is not None
        self.budget = given or budget_of_rank(self._ranks)  # of spans, in each step
        self._latest = -1
        self._repeated: list[tuple[int, int]] = []  # first and last step of each repeated section

    def of(self, step: int, *, now: bool) -> StepIds:
        """Return the ids of a step. A step that the process repeats has a new trace each time.

        It begins ``now``, or is already over. Call it in one thread at a time.
        """
        if now:
            if step <= self._latest:
                self._repeated.append((step, self._latest))
            self._latest = step
        before = sum(first <= step <= last for first, last in self._repeated)
        words = [self._run, str(self._attempt), str(step), *([str(before)] if before else [])]
        return StepIds(_hash(_TRACE_BYTES, *(word.encode() for word in words)), self._rank_name)

    def warn_if_too_large(self) -> None:
        """Log a warning if the trace of a step, in which each rank uses its budget, may exceed Tempo's limit."""
        size = self._ranks * (_RANK_BYTES + self.budget * _SPAN_BYTES)
        if size > TRACE_LIMIT_BYTES:
            remedy = f", or omit the budget of {self.budget} spans, which is then {budget_of_rank(self._ranks)}"
            _log.warning(
                "step_traces: the trace of a step of %d ranks may have %.1f MB, and Tempo drops what exceeds "
                "max_bytes_per_trace (by default %.0f MB) without an error: raise it%s",
                *(self._ranks, size / 1e6, TRACE_LIMIT_BYTES / 1e6, remedy if self._is_given else ""),
            )


def budget_of_rank(ranks: int) -> int:
    return max(1, min(BUDGET, int((_FILLED_BYTES / max(1, ranks) - _RANK_BYTES) / _SPAN_BYTES)))


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


def _hash(size: int, *words: bytes) -> bytes:
    return blake2b(b"\0".join(words), digest_size=size).digest()
