"""Ids of traces and spans: random ids, and ids that every rank of a job computes alike."""

from __future__ import annotations

import logging
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

from monitel.launcher import is_rank_zero
from monitel.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_log = logging.getLogger("monitel.otlp")

_TRACE_BYTES, _SPAN_BYTES = 16, 8
_TOO_LONG = 10  # digits of a number that is not a world size


class RandomIds:
    """Random ids from a private generator.

    The global generator of :mod:`random` belongs to the application. Drawing from it would change a seeded run, and
    ranks with the same seed would get the same ids.
    """

    def __init__(self) -> None:
        self._bits = Random().getrandbits  # noqa: S311  not a secret: ids must differ, and may be guessed

    def trace(self) -> bytes:
        """Return a random trace id."""
        return (self._bits(128) or 1).to_bytes(_TRACE_BYTES, "big")

    def span(self) -> bytes:
        """Return a random span id."""
        return (self._bits(64) or 1).to_bytes(_SPAN_BYTES, "big")


class StepTraces:
    """One trace per training step. Every rank computes the same ids, without communication.

    Args:
        attributes: ``training.run.id``, ``training.attempt``, ``training.rank`` and ``training.world_size`` of the
            resource. Without a run id each process uses a random one, so that its traces are separate.
        alone: True if no other rank exports.

    Attributes:
        rank: The rank; 0 without a launcher. None if it is unknown and not 0: then the ids of its span are random.
        ranks: The number of ranks that share a trace.
    """

    def __init__(self, attributes: Mapping[str, Any], *, alone: bool = False) -> None:
        run = attributes.get("training.run.id")
        if run is None and not alone and _number(attributes.get("training.world_size")) > 1:
            _log.warning(
                "step_traces: there is no run id, so each rank has separate traces; "
                "set one with torchrun --rdzv-id, or as training.run.id in OTEL_RESOURCE_ATTRIBUTES"
            )
        self._run = str(uuid4() if run is None else run)
        self._attempt = attributes.get("training.attempt", 0)
        self.rank = attributes.get("training.rank", 0 if is_rank_zero(attributes) else None)
        self._rank_name = str(uuid4() if self.rank is None else self.rank)
        self.ranks = 1 if alone or run is None else _number(attributes.get("training.world_size"))
        self._latest = -1
        self._repeated: list[tuple[int, int]] = []  # first and last step of each repeated section

    def of(self, step: int, *, now: bool = True) -> StepIds:
        """Return the ids of a step. A step that the process repeats has a new trace each time.

        Args:
            step: The training step.
            now: True if this is the current step, False if the process has already passed it.
        """
        if now:
            if step <= self._latest:
                self._repeated.append((step, self._latest))
            self._latest = step
        before = sum(first <= step <= last for first, last in self._repeated)
        words = [self._run, str(self._attempt), str(step), *([str(before)] if before else [])]
        return StepIds(_hash(_TRACE_BYTES, *(word.encode() for word in words)), self._rank_name)


class StepIds:
    """The ids of the trace of one step.

    Attributes:
        trace_id: Id of the trace.
        root_id: Id of the span of the whole step, which rank zero exports.
        rank_id: Id of the span of this rank, a child of the root span.
    """

    __slots__ = ("_lock", "_ordinals", "rank_id", "root_id", "trace_id")

    def __init__(self, trace_id: bytes, rank: str) -> None:
        self.trace_id = trace_id
        self.root_id = _hash(_SPAN_BYTES, trace_id)
        self.rank_id = _hash(_SPAN_BYTES, trace_id, rank.encode())
        self._lock = RLock()  # two spans must not get one id
        self._ordinals: dict[tuple[bytes, str], int] = {}

    def span(self, parent_id: bytes, name: str) -> bytes:
        """Return the id of the next span with this name and this parent."""
        key = parent_id, name
        with self._lock:
            ordinal = self._ordinals.get(key, 0)
            self._ordinals[key] = ordinal + 1
        return _hash(_SPAN_BYTES, parent_id, name.encode(errors="backslashreplace"), b"%d" % ordinal)


def _number(world_size: Any) -> int:
    """Return the number of ranks; 1 if it is unknown. A variable may have set it as text."""
    text = str(world_size)
    return int(text) if text.isdecimal() and len(text) < _TOO_LONG else 1


def _hash(size: int, *words: bytes) -> bytes:
    return blake2b(b"\0".join(words), digest_size=size).digest()
