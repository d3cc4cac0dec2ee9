"""Span budget of step traces: it falls with the number of ranks, so that a trace store accepts the whole trace."""

from __future__ import annotations

import logging
from collections import deque

from monitel_otel.periods import BUDGET

_log = logging.getLogger("monitel.otlp")

#: Tempo's default for ``max_bytes_per_trace``. Tempo drops the spans beyond it, and reports success to the sender.
TRACE_LIMIT_BYTES = 5_000_000

_FILLED_BYTES = 4_500_000
_SPAN_BYTES = 250  # a range with some attributes; without any it has about 160
_RANK_BYTES = 3_000  # the resource in two requests, the span of the rank, the span of the folded ranges
_REQUEST_BYTES = 900  # the resource in a further request
_STEPS = 8


class StepBudget:
    """The span budget of a rank in each step. Use it from one thread at a time.

    Args:
        given: The span budget that the application has set; None: the default, see :func:`budget_of_rank`.
        ranks: The number of ranks that share the trace of a step.
        interval: Seconds between two requests.
    """

    def __init__(self, given: int | None, ranks: int, interval: float) -> None:
        self._given = given
        self._ranks = ranks
        self._interval_ns = interval * 1e9
        self._lengths_ns: deque[float] = deque([0.0], maxlen=_STEPS)
        self._began: tuple[int, int] | None = None

    def next(self, step: int, now_ns: int) -> int:
        """Return the budget of a step that begins now. Its length is assumed to be the longest of the last eight."""
        if self._began is not None and step > self._began[0]:
            self._lengths_ns.append((now_ns - self._began[1]) / (step - self._began[0]))
        self._began = step, now_ns
        return self.current()

    def current(self) -> int:
        """Return the budget of the current step."""
        if self._given is not None:
            return self._given
        return budget_of_rank(self._ranks, max(self._lengths_ns) / self._interval_ns)


def budget_of_rank(ranks: int, intervals: float = 0.0) -> int:
    """Return the default span budget of a rank, at least 1.

    Args:
        ranks: The number of ranks that share the trace of a step.
        intervals: The length of a step in export intervals. Each takes a request, with the resource, unless the spans
            are fewer.

    Example:
        >>> [budget_of_rank(ranks) for ranks in (1, 16, 64, 1024)]
        [1000, 1000, 269, 5]
        >>> [budget_of_rank(ranks, intervals=6) for ranks in (1, 16, 64, 1024)]
        [1000, 1000, 247, 1]
    """
    left = _FILLED_BYTES / max(1, ranks) - _RANK_BYTES
    many = (left - intervals * _REQUEST_BYTES) / _SPAN_BYTES
    few = (left + _REQUEST_BYTES) / (_SPAN_BYTES + _REQUEST_BYTES)  # each in a separate request
    return max(1, min(BUDGET, int(max(many, few))))


def trace_bytes(ranks: int, budget: int) -> int:
    """Return the estimated size of the trace of a step in which each rank uses its whole budget."""
    return ranks * (_RANK_BYTES + budget * _SPAN_BYTES)


def warn_if_too_large(ranks: int, budget: int | None) -> None:
    """Log a warning if the trace of a step may exceed Tempo's default limit.

    Args:
        ranks: The number of ranks that share the trace.
        budget: The span budget that the application has set; None: the default.
    """
    size = trace_bytes(ranks, budget_of_rank(ranks) if budget is None else budget)
    if size <= TRACE_LIMIT_BYTES:
        return
    _log.warning(
        "step_traces: the trace of a step of %d ranks may have %.1f MB, and Tempo drops what exceeds "
        "max_bytes_per_trace (by default %.0f MB) without an error: raise it%s",
        ranks,
        size / 1e6,
        TRACE_LIMIT_BYTES / 1e6,
        "" if budget is None else f", or omit span_budget={budget}, which is then {budget_of_rank(ranks)}",
    )
