"""Queue of ranges that become spans: ids are assigned at the start of a range, and it is queued at its end."""

from __future__ import annotations

import logging
import marshal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision
from opentelemetry.trace import INVALID_SPAN

from monitel.attributes import escape_surrogates
from monitel.blackbox.record import RANGES, SPANS
from monitel.process.failures import warn_once
from monitel.process.os_threads import RLock
from monitel.profiler import ranges
from monitel.profiler.ranges import Range, Track
from monitel_otel.ranges import Opened, Period, Ranges
from monitel_otel.spans import attributes_of_args, of_track
from monitel_otlp._compat import span_limits
from monitel_otlp.messages.attributes import Limits, write_attributes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Span

    from monitel.blackbox.journal import Journal
    from monitel_otlp.traces.step_traces import StepIds, StepTraces

_log = logging.getLogger("monitel.otlp")

_LIMIT = 100_000  # ranges in the queue
_PER_RECORD = 200
_MOST_OWN = 4  # attributes: step, thread (two), unfinished
_INTERNAL = SpanMessage.SPAN_KIND_INTERNAL
_ERROR = Status.STATUS_CODE_ERROR
_LOCAL = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_REMOTE = _LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
_ROOT, _RANK = "training.step", "training.rank"


@dataclass(frozen=True)
class SpanSettings:
    """The span settings of configure()."""

    budget: int | None = None  # spans per step; None for the default
    every: int = 1  # spans are made in every n-th step
    step_traces: StepTraces | None = None  # the ids that all ranks share; without them each outermost range is a trace
    by_step: bool = True

    def for_forked_child(self) -> SpanSettings:
        """Return the settings of a forked child, which has no steps, and the same rank as its parent."""
        return SpanSettings(self.budget, self.every, None, by_step=False)


class Identified(Opened):
    """An open range with its ids: it is a span, or part of a trace that is not sampled."""

    __slots__ = ("parent_id", "remote", "span_id", "trace_id")

    def __init__(  # noqa: PLR0917  called for each range: keywords would make it 10 % slower
        self,
        period: Period,
        around: Span,
        kept: bool,
        trace_id: bytes,
        span_id: bytes,
        parent_id: bytes = b"",
        remote: bool = False,
    ) -> None:
        self.period, self.around, self.kept = period, around, kept
        self.trace_id, self.span_id, self.parent_id, self.remote = trace_id, span_id, parent_id, remote


class Ended(NamedTuple):
    ids: Identified
    name: str
    start_ns: int
    end_ns: int
    range: Range | None
    args: Any


def _own(step: int | None, track: Track, unfinished: bool) -> dict[str, Any]:
    of_step = {} if step is None else {"training.step": step}
    return {**of_step, **of_track(track), **({"monitel.unfinished": True} if unfinished else {})}


@lru_cache(maxsize=256)
def _own_fields(step: int | None, track: Track, unfinished: bool) -> bytes:
    """Return the attributes of a range itself as the begin of a serialized span."""
    span = SpanMessage()
    write_attributes(span.attributes, _own(step, track, unfinished))
    content: bytes = span.SerializeToString()
    return content


class _Step(Period):
    """A step that is a trace. Its ranges have no parents outside, and its span ends with the last range."""

    __slots__ = ("end_ns", "ids", "sampled", "start_ns")

    def __init__(self, step: int, ids: StepIds, budget: int, *, sampled: bool) -> None:
        super().__init__(step, budget=budget)
        self.ids = ids
        self.sampled = sampled
        self.start_ns = self.end_ns = 0

    def extend(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = min(self.start_ns or start_ns, start_ns)
        self.end_ns = max(self.end_ns, end_ns)


class QueuedSpans(Ranges[Identified]):
    """Queues ended ranges, in the thread that runs them, for the writer of the record.

    When the queue is full the oldest range is dropped and counted. ``first`` is called in the caller's thread when a
    range is queued or folded, until it returns True; ``sampler`` decides about traces that begin here.
    """

    def __init__(self, settings: SpanSettings, *, first: Callable[[], bool], sampler: Sampler = DEFAULT_ON) -> None:
        self._traces = settings.step_traces
        self.sampler = sampler
        super().__init__(budget=settings.budget, every=settings.every, by_step=settings.by_step)
        self._queue: deque[Ended] = deque()
        self._dropping = RLock()
        self.dropped = self.folded = 0
        # Drawing from the global generator would change a seeded run, and ranks with one seed would get the same ids.
        self._bits = Random().getrandbits  # noqa: S311  not a secret: ids must differ, and may be guessed
        self._first: Callable[[], bool] | None = first
        limits = span_limits()
        self._limits = Limits("range", limits.max_span_attributes, limits.max_span_attribute_length)

    @property
    def waiting(self) -> int:
        """The number of ranges in the queue, and in folded spans that are not complete yet."""
        return len(self._queue) + sum(period.folded for period in self._periods.copy())

    def open_ranges(self) -> list[tuple[str, float]]:
        """Return name and seconds so far of each range that is open now, the outermost first."""
        now_ns = ranges.now()
        return [(each.name, (now_ns - each.monotonic_start_ns) / 1e9) for each in self._open.copy()]

    def flush(
        self, traces: Journal, steps: Journal, *, last: bool = False, begin: Callable[[], object] = lambda: None
    ) -> None:
        """Append the ranges that have ended, and the spans of ended steps; with ``last`` of all, also of open ranges.

        ``begin`` is called before the first one. One thread at a time may call this.
        """
        ranges.synchronize()
        if last:
            self._close_open_ranges()
        if self._queue:
            begin()
        for _ in range(0, len(self._queue), _PER_RECORD):  # a thread may end ranges as fast as they are taken
            with traces.lock:  # a range is queued, or in the journal
                if not (taken := self._take(_PER_RECORD)):
                    break
                self._append(traces, RANGES, [(each, None) for each in taken])
        with traces.lock:
            finished = self._finished(last=last)
            self.folded += sum(attributes.get("monitel.folded.count", 0) for _, attributes in finished)
        for at in range(0, len(finished), _PER_RECORD):
            self._append(steps, SPANS, finished[at : at + _PER_RECORD])

    def _take(self, most: int) -> list[Ended]:
        found: list[Ended] = []
        with suppress(IndexError):
            while len(found) < most:
                ended = self._queue.popleft()
                if isinstance(ended.ids.period, _Step):
                    ended.ids.period.extend(ended.start_ns, ended.end_ns)
                found.append(ended)
        return found

    def _append(self, journal: Journal, kind: int, ended: Sequence[tuple[Ended, Any]]) -> None:
        """Append spans. The first one that cannot be recorded is logged."""
        spans = list[bytes]()
        for each in ended:
            try:
                spans.append(self._encode(*each))
            except Exception:
                warn_once(_log, "a range cannot be recorded (further ones are only counted)", exc_info=True)
                journal.lose("encoding")
        if spans:
            journal.append(kind, marshal.dumps(spans, 2), len(spans))

    def _encode(self, ended: Ended, attributes: Mapping[str, Any] | None = None) -> bytes:
        """Return a range, or a fold or step with ``attributes``, as a serialized span.

        The messages are filled directly: the SDK's span classes and their encoder take three times as long.
        """
        ids, name, start_ns, end_ns, found, args = ended
        span = SpanMessage()
        span.trace_id = ids.trace_id
        span.span_id = ids.span_id
        span.parent_span_id = ids.parent_id
        span.flags = _REMOTE if ids.remote else _LOCAL
        span.name = (name if type(name) is str and name.isascii() else escape_surrogates(name)) or "unnamed"
        span.kind = _INTERNAL
        span.start_time_unix_nano = start_ns
        span.end_time_unix_nano = end_ns
        more: dict[str, Any] = {} if args is None else attributes_of_args(name, args)
        own: tuple[Any, ...] = ()
        if found is not None:
            own = found.step, found.track, found.end_ns != end_ns
            if found.error_type is not None:
                span.status.code = _ERROR
                more = {**more, "error.type": escape_surrogates(found.error_type)}
        if attributes is not None:
            more = {**more, **attributes}
        if self._limits.exceeded(len(more) + _MOST_OWN):
            more = {**(_own(*own) if own else {}), **more}
            if dropped := self._limits.apply(name, more):
                span.dropped_attributes_count = dropped
            own = ()
        if more:
            write_attributes(span.attributes, more)
        content: bytes = span.SerializeToString()
        return _own_fields(*own) + content if own else content

    def _finished(self, *, last: bool) -> list[tuple[Ended, Mapping[str, Any]]]:
        """Return the spans that the pipeline makes for ended steps, with attributes: folded spans and step spans."""
        found: list[tuple[Ended, Mapping[str, Any]]] = []
        for period in self._ended_periods(last=last):
            attributes: dict[str, Any] = {} if period.step is None else {"training.step": period.step}
            fold = period.take_folded()
            if fold is not None and isinstance(period.first, Identified):
                if isinstance(period, _Step):
                    period.extend(fold.start_ns, fold.end_ns)
                ended = Ended(self._beside(period.first), fold.name, fold.start_ns, fold.end_ns, None, None)
                found.append((ended, {**fold.attributes, **attributes}))
            if isinstance(period, _Step) and period.start_ns:
                found += [(ended, attributes | more) for ended, more in self._step_spans(period)]
        return found

    def _close_open_ranges(self) -> None:
        still_open = self._open.copy()
        now_ns = ranges.now()  # one end for all, so that each is within its parent
        for running in still_open:
            opened = self._open.pop(running, None)
            if opened is not None:
                end_ns = running.start_ns - running.monotonic_start_ns + now_ns
                self._finish(running, opened, max(running.start_ns, end_ns))

    def _step_spans(self, period: _Step) -> list[tuple[Ended, dict[str, Any]]]:
        assert self._traces is not None
        ids, rank = period.ids, self._traces.rank
        own = Identified(period, INVALID_SPAN, True, ids.trace_id, ids.rank_id, ids.root_id, rank != 0)
        attributes = {} if rank is None else {"training.rank": rank}
        spans = [(Ended(own, _RANK, period.start_ns, period.end_ns, None, None), attributes)]
        if rank == 0:
            root = Identified(period, INVALID_SPAN, True, ids.trace_id, ids.root_id)
            spans.append((Ended(root, _ROOT, period.start_ns, period.end_ns, None, None), {}))
        return spans

    def _beside(self, first: Identified) -> Identified:
        """Return the ids of a span beside the first span of a step, or below it if that is the root."""
        parent_id = first.parent_id or first.span_id
        return Identified(first.period, first.around, True, first.trace_id, self._span_id(), parent_id)

    def _span_id(self) -> bytes:
        return (self._bits(64) or 1).to_bytes(8, "big")

    def _new_period(self, step: int | None, until_ns: int | None, *, now: bool) -> Period:
        if step is None or self._traces is None:
            return super()._new_period(step, until_ns, now=now)
        ids = self._traces.of(step, now=now)
        return _Step(step, ids, self._traces.budget, sampled=self._sampled(ids.trace_id, _ROOT))

    def _is_unsampled(self, period: Period, around: Span) -> bool:
        return not period.sampled if isinstance(period, _Step) else super()._is_unsampled(period, around)

    def _parent(self, outer: Range, period: Period, around: Span) -> Identified | None:
        if not isinstance(period, _Step):
            return super()._parent(outer, period, around)
        opened = self._nearest(outer)
        return opened if opened is not None and opened.period is period else None

    def _start(self, began: Range, period: Period, parent: Identified | None, around: Span) -> Identified:
        if isinstance(period, _Step):
            ids = period.ids
            parent_id = ids.rank_id if parent is None else parent.span_id
            return Identified(period, around, True, ids.trace_id, ids.span(parent_id, began.name), parent_id)
        span_id = self._span_id()
        if parent is not None:
            return Identified(period, around, True, parent.trace_id, span_id, parent.span_id)
        context = around.get_span_context()
        if context.is_valid:
            trace_id, parent_id = context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
            return Identified(period, around, True, trace_id, span_id, parent_id, context.is_remote)
        trace_id = (self._bits(128) or 1).to_bytes(16, "big")
        return Identified(period, around, self._sampled(trace_id, began.name), trace_id, span_id)

    def _end(self, ended: Range, opened: Identified, end_ns: int) -> None:
        args = ended.args
        if args is not None and type(args) is not str:
            args = _copied(args)  # the caller may change it later
        queue = self._queue
        queue.append(Ended(opened, ended.name, ended.start_ns, end_ns, ended, args))
        if len(queue) > _LIMIT:
            with self._dropping, suppress(IndexError):
                queue.popleft()
                self.dropped += 1

    def _finish(self, ended: Range, opened: Identified, end_ns: int) -> None:
        super()._finish(ended, opened, end_ns)
        if (first := self._first) is not None and self.waiting and first():
            self._first = None

    def _sampled(self, trace_id: bytes, name: str) -> bool:
        if self.sampler is DEFAULT_ON:
            return True
        decision = self.sampler.should_sample(None, int.from_bytes(trace_id, "big"), name).decision
        return decision is Decision.RECORD_AND_SAMPLE


def _copied(args: Any) -> Any:
    try:
        return dict(args) if isinstance(args, Mapping) else args
    except Exception:  # a custom mapping that raises: the range still becomes a span
        return None
