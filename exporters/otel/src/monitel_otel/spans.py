"""Conversion of ranges to spans of an application's TracerProvider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current
from opentelemetry.trace import INVALID_SPAN, Status, StatusCode, get_current_span, set_span_in_context

from monitel.attributes import escape_surrogates
from monitel_otel.periods import Opened, Period
from monitel_otel.range_attributes import RangeAttributes
from monitel_otel.ranges import Ranges
from monitel_otel.records import count_failure
from monitel_otel.scope import SCOPE

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from monitel.profiler.ranges import Range


class _Started(Opened):
    """A range whose span has been started.

    Attributes:
        span: The span.
        outside: The context in which the span was started.
    """

    __slots__ = ("outside", "span")

    def __init__(self, period: Period, around: Span, span: Span, outside: Context) -> None:
        super().__init__(period, around, kept=bool(span.get_span_context().trace_flags.sampled))
        self.span = span
        self.outside = outside


class Spans(Ranges[_Started]):
    """Starts a span when a range begins and ends it when the range ends, in the thread that runs the range.

    Spans have the times of their ranges. No context is attached: a span that the application starts inside a range is
    a child of the application's current span. The fold of a step, with the ranges beyond its budget, is written after
    the step, or at the end.
    """

    def __init__(self, tracer_provider: TracerProvider, **options: Any) -> None:
        super().__init__(**options)
        self._tracer = tracer_provider.get_tracer(*SCOPE)
        self._attributes = RangeAttributes()

    def context(self) -> Context | None:
        """Return the context of the innermost running range, for log records; None: use the current context."""
        opened = self.innermost()
        return None if opened is None else set_span_in_context(opened.span)

    def close(self) -> None:
        """Stop exporting new ranges, and write the folds. Idempotent."""
        super().close()
        self._write_folds(last=True)

    def _start(self, began: Range, period: Period, parent: _Started | None, around: Span) -> _Started:
        outside = get_current() if parent is None else set_span_in_context(parent.span)
        name = escape_surrogates(began.name) or "unnamed"
        attributes = self._attributes.of(began)
        span: Span = INVALID_SPAN
        try:
            span = self._tracer.start_span(name, outside, attributes=attributes, start_time=began.start_ns)
        except Exception:
            count_failure()
        return _Started(period, around, span, outside)

    def _end(self, ended: Range, opened: _Started, end_ns: int) -> None:
        if ended.args is not None:
            opened.span.set_attributes(self._attributes.of_args(ended.name, ended.args))
        if ended.error_type is not None:
            opened.span.set_attribute("error.type", escape_surrogates(ended.error_type))
            opened.span.set_status(Status(StatusCode.ERROR))
        try:
            opened.span.end(end_ns)
        except Exception:
            count_failure()

    def _period_started(self) -> None:
        self._write_folds()

    def _write_folds(self, *, last: bool = False) -> None:
        for period in self._ended_periods(last=last):
            fold = period.take_folded()
            if fold is None or not isinstance(period.first, _Started):
                continue
            first = period.first
            has_parent = get_current_span(first.outside).get_span_context().is_valid
            context = first.outside if has_parent else set_span_in_context(first.span)
            attributes: dict[str, Any] = dict(fold.attributes)
            if period.step is not None:
                attributes["training.step"] = period.step
            span = self._tracer.start_span(fold.name, context, attributes=attributes, start_time=fold.start_ns)
            span.end(fold.end_ns)
