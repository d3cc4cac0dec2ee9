"""The plain values in the entries of a journal, its names and a snapshot.

Each kind of entry (:mod:`monitel.blackbox.record`) has one form. Fields are only appended, so that a later version
reads what an earlier one has left.

========  ======================================================================================================
EVENT     a :class:`LogRecord`
WINDOW    number of the Stat's :class:`Definition`, and the window in the form of :mod:`monitel.stats.window`
NUMBERS   for each number of one ``log()`` call: number of its :class:`Definition`, time in Unix ns, value
RANGES    spans of ranges, each encoded by the exporter
SPANS     the same, of spans that the exporter has made itself
READING   metrics of the process at one moment, encoded by the exporter, the number of their points, and the number of
          the next item of the journal of metrics at that moment
========  ======================================================================================================

A snapshot has these values, each of which may be missing:

========  ======================================================================================================
doing     what the process does: ``step``, ``step_seconds`` (since it was set, or None), ``first_step`` (that the
          program has set, or None), ``made`` (number of steps that it has set), ``timed`` (number of steps with a
          duration), ``step_p50`` (their median, seconds, or None), ``waits`` (key, thread, seconds so far), ``ranges``
          (name, seconds so far), ``activity`` (name in the ledger, seconds so far), ``thread`` (that of the training;
          0 without a ledger), ``stage`` (name, whether it waits for other ranks, seconds, thread; or None), ``goodput``
          (of the run over all attempts, or None), ``member`` (rank and world size in torch.distributed, or None)
counters  name, attributes and total of each counter
before    begin of the run in Unix ns, and the counters at that time in the same form; None for the first run of a
          process, which begins with the process
pending   number of the next item of the journal of readings, and the values of those that follow if the process ends
          before it appends another one: the counters that have changed since the last reading
totals    number of the definition, count, sum, number of windows, and sum of their largest samples, of the series that
          the summary of a run needs, up to their last closed window
numbers   number of the definition, time in Unix ns and value of the last number of each series of ``log()``
event     the last event other than logged numbers, a :class:`LogRecord` in marshal format
stack     the stack of the main thread, in the form of faulthandler
exception  type, message and place (file and line, with a colon between) of the last exception that was not caught
========  ======================================================================================================
"""

from __future__ import annotations

from typing import Any, NamedTuple

STAT, NUMBER = "stat", "number"

STEP_TIME, STAGE_TIME = "training.step.duration", "training.stage.duration"
DEVICE_STAGE_TIME = "training.stage.device.duration"
#: Stats whose totals are in each snapshot: those of the summary of ``monitel run``.
REPORTED = STEP_TIME, STAGE_TIME, DEVICE_STAGE_TIME


class Definition(NamedTuple):
    """A series, as windows, numbers and readings refer to it by its number in the names."""

    kind: str  # STAT or NUMBER
    metric: str  # name of its metric
    name: str  # that the application gave it
    unit: str  # of UCUM
    description: str  # of the metric
    monotonic: bool  # its samples are never negative
    attributes: dict[str, Any]  # of every point
    suffixes: tuple[str, ...] = ()  # the aggregations of a Stat, such as "mean"


class LogRecord(NamedTuple):
    """An event, or a record of Python's logging. Times are Unix ns."""

    time_ns: int
    observed_ns: int  # time at which it was recorded
    severity: int  # OpenTelemetry's number
    name: str  # empty for a record of Python's logging
    step: int | None
    attributes: dict[str, Any]
    body: Any = None  # None for the name of the event
    trace_id: bytes = b""  # trace and span in which it was recorded; empty without one
    span_id: bytes = b""
    flags: int = 0  # of the trace
    scope: str = ""  # name of the logger; empty for an event of monitel
    severity_text: str = ""  # empty for OpenTelemetry's short name
