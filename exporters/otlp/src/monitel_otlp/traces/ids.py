"""Ids of traces and spans: random ones, and those that all ranks of a job can work out by themselves."""

from __future__ import annotations

import logging
from hashlib import blake2b
from itertools import count
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_log = logging.getLogger("monitel.otlp")

_TRACE_BYTES, _SPAN_BYTES = 16, 8


class RandomIds:
    """Ids from a generator of their own.

    The one of :mod:`random` is the user's: to draw from it would change what a seeded run does, and ranks that are
    seeded alike would have the same ids.
    """

    def __init__(self) -> None:
        self._bits = Random().getrandbits  # noqa: S311  no secret: it is to be different, not hard to guess

    def trace(self) -> bytes:
        """An id for a trace."""
        return (self._bits(128) or 1).to_bytes(_TRACE_BYTES, "big")

    def span(self) -> bytes:
        """An id for a span."""
        return (self._bits(64) or 1).to_bytes(_SPAN_BYTES, "big")


class StepTraces:
    """One trace a training step, of which every rank knows the ids without asking another.

    Args:
        attributes: ``training.run.id``, ``training.attempt`` and ``training.rank`` as the resource has them. Without a
            run id each process has one of its own, and traces of its own.
    """

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        run = attributes.get("training.run.id")
        if run == "none":  # torchrun's default
            _log.warning(
                "step_traces: the run id is 'none', so every run has the same trace ids; "
                "give each its own: torchrun --rdzv-id, or training.run.id in OTEL_RESOURCE_ATTRIBUTES"
            )
        self._run = str(uuid4() if run is None else run)
        self._attempt = attributes.get("training.attempt", 0)
        self.rank = attributes.get("training.rank", 0)
        self._latest = -1
        self._repeated: list[tuple[int, int]] = []  # stretches of steps, each done once more

    def of(self, step: int, *, now: bool = True) -> StepIds:
        """The ids of a step. One that the process goes back to, or over again, has another trace each time.

        Args:
            step: The training step.
            now: The process is at that step; else it is beyond it already.
        """
        if now:
            if step <= self._latest:
                self._repeated.append((step, self._latest))
            self._latest = step
        before = sum(first <= step <= last for first, last in self._repeated)
        words = [self._run, str(self._attempt), str(step), *([str(before)] if before else [])]
        return StepIds(_hash(_TRACE_BYTES, *(word.encode() for word in words)), self.rank)


class StepIds:
    """The ids of one step's trace.

    Attributes:
        trace_id: Of the trace.
        root_id: Of the span of the whole step, which rank zero sends.
        rank_id: Of this rank's part, below it.
    """

    __slots__ = ("_ordinals", "rank_id", "root_id", "trace_id")

    def __init__(self, trace_id: bytes, rank: int) -> None:
        self.trace_id = trace_id
        self.root_id = _hash(_SPAN_BYTES, trace_id)
        self.rank_id = _hash(_SPAN_BYTES, trace_id, str(rank).encode())
        self._ordinals: dict[tuple[bytes, str], Iterator[int]] = {}

    def span(self, parent_id: bytes, name: str) -> bytes:
        """The id of the next span of this name in that parent."""
        ordinals = self._ordinals.get((parent_id, name)) or self._ordinals.setdefault((parent_id, name), count())
        return _hash(_SPAN_BYTES, parent_id, name.encode(errors="backslashreplace"), b"%d" % next(ordinals))


def _hash(size: int, *words: bytes) -> bytes:
    return blake2b(b"\0".join(words), digest_size=size).digest()
