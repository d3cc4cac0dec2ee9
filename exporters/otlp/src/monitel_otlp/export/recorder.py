"""The parts of the record that only a backend needs: records of Python's logging, ranges, and the ids of traces."""

from __future__ import annotations

import logging
import marshal
from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current
from opentelemetry.trace import get_current_span

from monitel.blackbox import recorder
from monitel.blackbox.record import EVENT, RANGES, SPANS
from monitel_otel.names import describe
from monitel_otlp.traces.mapping import RangeMapping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.blackbox.box import Box
    from monitel.blackbox.forms import LogRecord
    from monitel.blackbox.journal import Journal
    from monitel_otlp.metrics.series import SeriesTable
    from monitel_otlp.traces.span_queue import QueuedSpans

_log = logging.getLogger("monitel.otlp")

_RANGES_PER_RECORD = 200


class Recorder(recorder.Recorder):
    """Also appends ranges and records of Python's logging.

    Args:
        box: The box.
        table: The series of the pipeline.
        ranges: The ranges that become spans; None without them.

    Attributes:
        folded: Number of ranges that are part of a complete folded span.
    """

    def __init__(self, box: Box, table: SeriesTable, ranges: QueuedSpans | None = None) -> None:
        super().__init__(box, table, *(() if ranges is None else (ranges.open_ranges,)))
        self._traces, self._steps = box.journals["traces"], box.journals["steps"]
        self._ranges = ranges
        self._range_mapping = RangeMapping()
        self.folded = 0

    def record(self, record: LogRecord) -> None:
        """Append a record of Python's logging."""
        if self.is_idle:
            self.begin()
        trace_id, span_id, flags = self._ids() or (b"", b"", 0)
        complete = record._replace(trace_id=trace_id, span_id=span_id, flags=flags)
        try:
            payload = marshal.dumps(tuple(complete), 2)
        except ValueError:
            self.lose("logs", 1)
        else:
            self._logs.append(EVENT, payload)

    def flush_ranges(self, *, last: bool = False) -> None:
        """Append the ranges that have ended, and the spans of ended steps; in one thread at a time.

        Args:
            last: Treat all ranges and steps as ended.
        """
        ranges = self._ranges
        if ranges is None:
            return
        ranges.prepare(last=last)
        if self.is_idle and ranges.queued:
            self.begin()
        for _ in range(0, ranges.queued, _RANGES_PER_RECORD):  # a thread may end ranges as fast as they are taken
            with self._traces.lock:  # a range is queued, or in the journal
                taken = ranges.take(_RANGES_PER_RECORD)
                if not taken:
                    break
                lost = self._append_spans(self._traces, RANGES, [(each, None) for each in taken])
                self.lost["traces"] += lost
        with self._traces.lock:
            finished = ranges.finish(last=last)
            self.folded += sum(attributes.get("monitel.folded.count", 0) for _, attributes in finished)
        for begin in range(0, len(finished), _RANGES_PER_RECORD):
            self._append_spans(self._steps, SPANS, finished[begin : begin + _RANGES_PER_RECORD])

    def _append_spans(self, journal: Journal, kind: int, ended: Sequence[tuple[Any, Any]]) -> int:
        """Append spans, and return the number of those that cannot be recorded; the first one is logged."""
        spans = list[Any]()
        for each in ended:
            try:
                spans.append(self._range_mapping.plain(*each))
            except Exception:
                if not self._failed:
                    self._failed = True
                    _log.warning("a range cannot be recorded (further ones are only counted)", exc_info=True)
        try:
            payload = self._dumps(spans)
        except ValueError:
            spans = [each for each in spans if _is_plain(each)]
            payload = self._dumps(spans)
        if spans:
            journal.append(kind, payload, len(spans))
        return len(ended) - len(spans)

    def _describe(self, noun: str, series: recorder.Series) -> str:
        first = series.definition
        if noun != "Stat":
            return first.description
        return describe(noun, first.name, series.name, first.description)

    def _ids(self) -> tuple[()] | tuple[bytes, bytes, int]:
        """Return trace id, span id and flags of the innermost open range or span; nothing without one."""
        inside = None if self._ranges is None else self._ranges.innermost()
        if inside is not None:
            return inside.trace_id, inside.span_id, 1
        if not get_current():  # an empty context, as usual
            return ()
        context = get_current_span().get_span_context()
        if not context.trace_id:
            return ()
        return context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"), int(context.trace_flags)


def _is_plain(value: Any) -> bool:
    try:
        marshal.dumps(value, 2)
    except ValueError:
        return False
    return True
