"""Conversion of ranges to spans of an application's TracerProvider, and the attributes of every range's span."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current
from opentelemetry.trace import INVALID_SPAN, Status, StatusCode, get_current_span, set_span_in_context

from monitel.attributes import attribute_name, checked_value, escape_surrogates, items_of, text_of
from monitel.process.failures import ignored, warn_once
from monitel_otel.log_records import count_failure
from monitel_otel.ranges import Opened, Period, Ranges
from monitel_otel.scope import SCOPE

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from monitel.profiler.ranges import Range, Track

    Scalar = str | bool | int | float
    Attribute = Scalar | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]

_log = logging.getLogger("monitel.otel")

_OWN = frozenset({"training.step", "thread.id", "thread.name"})


class _Started(Opened):
    """A range whose span has been started, in the context ``outside``."""

    __slots__ = ("outside", "span")

    def __init__(self, period: Period, around: Span, span: Span, outside: Context) -> None:
        super().__init__(period, around, kept=bool(span.get_span_context().trace_flags.sampled))
        self.span = span
        self.outside = outside


class Spans(Ranges[_Started]):
    """Starts a span when a range begins and ends it when the range ends, in the thread that runs the range.

    No context is attached: a span that the application starts inside a range is a child of its current span.
    """

    def __init__(self, tracer_provider: TracerProvider, **options: Any) -> None:
        super().__init__(**options)
        self._tracer = tracer_provider.get_tracer(*SCOPE)
        self._is_closed = False
        self._process = os.getpid()

    def context(self) -> Context | None:
        """Return the context of the innermost running range, for log records; None: use the current context."""
        opened = self.innermost()
        return None if opened is None else set_span_in_context(opened.span)

    def close(self) -> None:
        """Stop exporting new ranges, and write the folds, unless they are those of the parent process. Idempotent."""
        super().close()
        self._is_closed = True
        if os.getpid() == self._process:
            self._write_folds(last=True)

    def _start(self, began: Range, period: Period, parent: _Started | None, around: Span) -> _Started:
        outside = get_current() if parent is None else set_span_in_context(parent.span)
        name = escape_surrogates(began.name) or "unnamed"
        step: dict[str, Attribute] = {} if began.step is None else {"training.step": began.step}
        span = self._start_span(name, outside, {**step, **of_track(began.track)}, began.start_ns)
        return _Started(period, around, span, outside)

    def _end(self, ended: Range, opened: _Started, end_ns: int) -> None:
        try:
            if ended.args is not None:
                opened.span.set_attributes(attributes_of_args(ended.name, ended.args))
            if ended.error_type is not None:
                opened.span.set_attribute("error.type", escape_surrogates(ended.error_type))
                opened.span.set_status(Status(StatusCode.ERROR))
            opened.span.end(end_ns)
        except Exception:
            count_failure()

    def _finish(self, ended: Range, opened: _Started, end_ns: int) -> None:
        if os.getpid() == self._process:  # else it ends in the parent, too
            super()._finish(ended, opened, end_ns)
            if self._is_closed:
                self._write_fold(opened.period)

    def _period_started(self) -> None:
        self._write_folds()

    def _write_folds(self, *, last: bool = False) -> None:
        for period in self._ended_periods(last=last):
            self._write_fold(period)

    def _write_fold(self, period: Period) -> None:
        fold, first = period.take_folded(), period.first
        if fold is None or not isinstance(first, _Started):
            return
        has_parent = get_current_span(first.outside).get_span_context().is_valid
        context = first.outside if has_parent else set_span_in_context(first.span)
        step = {} if period.step is None else {"training.step": period.step}
        span = self._start_span(fold.name, context, {**fold.attributes, **step}, fold.start_ns)
        try:
            span.end(fold.end_ns)
        except Exception:
            count_failure()

    def _start_span(self, name: str, context: Context, attributes: dict[str, Attribute], start_ns: int) -> Span:
        """Start a span; if the provider fails, return one that records nothing."""
        try:
            return self._tracer.start_span(name, context, attributes=attributes, start_time=start_ns)
        except Exception:
            count_failure()
            return INVALID_SPAN


def attributes_of_args(name: str, args: Any) -> dict[str, Attribute]:
    """Return the arguments of a range as attributes: a str as ``args``, a mapping as one attribute per item.

    Unsuitable arguments are left out, with one warning for each name of a range.
    """
    if args is None:
        return {}
    if type(args) is str:
        return {"args": escape_surrogates(args)}
    attributes: dict[str, Attribute] = {}
    warn = partial(_warn_once, name)
    for key, value in items_of(args, warn) if issubclass(type(args), Mapping) else [("args", args)]:
        text, attribute = attribute_name(text_of(key)), None
        with ignored:  # it is of another type, or its class raises
            attribute = _attribute(text, value)
        if text and text not in _OWN and attribute is not None:
            attributes[text] = attribute
        else:
            warn(text_of(key))
    return attributes


def _warn_once(name: str, key: object, _value: object = None) -> None:
    warn_once(_log, "range %r: argument %r cannot be an attribute and is left out", name, key, key=name)


def of_track(track: Track) -> dict[str, Attribute]:
    return {"thread.id": track.thread_id, "thread.name": escape_surrogates(track.thread_name)}


def _attribute(name: str, value: Any) -> Attribute:
    """Return a value that OpenTelemetry can represent. Never reads a tensor, which may be on a device."""
    if isinstance(value, str):
        return escape_surrogates(value)
    if not isinstance(value, (list, tuple)):
        return checked_value(name, value)
    items: Any = [escape_surrogates(each) if isinstance(each, str) else checked_value(name, each) for each in value]
    kinds = {type(each) for each in items}
    if kinds == {int, float}:
        return [float(each) for each in items]
    if len(kinds) > 1:
        raise TypeError(f"{name}: a list of several types")
    return items  # type: ignore[no-any-return]  # of one of the types
