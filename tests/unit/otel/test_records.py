"""Conversion of events to log records of an application's LoggerProvider."""

from __future__ import annotations

import datetime as dt
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

import monitel
from monitel import Event, Severity
from monitel_otel import SCHEMA_URL, timestamp_ns

if TYPE_CHECKING:
    from tests.unit.otel.conftest import Backend

pytestmark = pytest.mark.usefixtures("installed")

NAIVE = dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1)  # noqa: DTZ001  hypothesis adds the zone
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
MOMENT = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, dt.timezone.utc)
MOMENT_NS = 1_772_366_400_123_456_000


@pytest.mark.parametrize("severity", list(Severity))
def test_event_becomes_a_log_record(backend: Backend, severity: Severity) -> None:
    """A record has name, time in ns, severity and data; the body is the name; it is observed when it was logged."""
    data: dict[str, Any] = {"loss": 3.5, "rank": 2, "ok": False, "why": "learning rate", "nan": float("inf")}
    before = time.time_ns()
    monitel.log_event(Event("loss.spike", MOMENT, data, severity=severity))
    (record,) = backend.records()
    assert ("loss.spike", MOMENT_NS, "loss.spike", severity.name) == (
        record.event_name,
        record.timestamp,
        record.body,
        record.severity_text,
    )
    assert int(severity) == record.severity_number.value
    assert data == dict(record.attributes)
    assert isinstance(record.attributes["ok"], bool)
    assert before <= record.observed_timestamp <= time.time_ns()


def test_default_severity_is_info(backend: Backend) -> None:
    """OpenTelemetry demands this of events."""
    monitel.emit("epoch")
    assert [9] == [record.severity_number.value for record in backend.records()]


def test_scope_is_monitel(backend: Backend) -> None:
    """The scope has the version of monitel and the schema of its conventions."""
    monitel.emit("epoch")
    (exported,) = backend.exporter.get_finished_logs()
    scope: Any = exported.instrumentation_scope
    assert ("monitel", monitel.__version__, SCHEMA_URL) == (scope.name, scope.version, scope.schema_url)


def test_training_step_is_an_attribute(backend: Backend) -> None:
    """The step is that of the logging, or absent; an item of the event's data with its name takes precedence."""
    monitel.emit("before")
    monitel.set_step(7)
    monitel.emit("at")
    monitel.log_event(Event("own", MOMENT, {"training.step": 3}))
    expected: list[dict[str, Any]] = [{}, {"training.step": 7}, {"training.step": 3}]
    assert expected == [dict(record.attributes) for record in backend.records()]


def test_record_belongs_to_the_current_span(backend: Backend) -> None:
    """Trace and span id are those of the current context."""
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("step") as span:
        monitel.emit("inside")
    monitel.emit("outside")
    inside, outside = backend.records()
    context = span.get_span_context()
    assert (context.trace_id, context.span_id, context.trace_flags) == (
        inside.trace_id,
        inside.span_id,
        inside.trace_flags,
    )
    assert (0, 0) == (outside.trace_id or 0, outside.span_id or 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [("x", [1, 2]), ("x", None), ("x", b"bytes"), ("x", object()), ("x", 2**63), ("x", 1j), ("", 1), (5, 1)],
)
def test_unsuitable_data_is_left_out_and_logged_once(
    backend: Backend, caplog: pytest.LogCaptureFixture, key: Any, value: Any
) -> None:
    """Unchecked items of ``event.data`` do not affect other items."""
    for _ in range(3):
        event = Event("odd", MOMENT, {"good": 1})
        event.data[key] = value
        monitel.log_event(event)
    assert [{"good": 1}] * 3 == [dict(record.attributes) for record in backend.records()]
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert 1 == len(messages)
    assert "'odd'" in messages[0]
    assert repr(key) in messages[0]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_every_int_of_64_bits_is_kept(backend: Backend, value: int) -> None:
    """The smallest and the largest int of 64 bits are exact."""
    monitel.emit("epoch", number=value)
    assert [value] == [record.attributes["number"] for record in backend.records()]


def test_windows_never_become_records(backend: Backend) -> None:
    """Windows are metrics; an event that only has the name of a Stat's events is a record."""
    stat = monitel.Stat("loss", [monitel.MEAN], 60.0)
    stat.add(1)
    stat.flush()
    monitel.log_event(Event(monitel.STAT_EVENT, MOMENT, {"theirs.mean": 1.0}))
    assert [(monitel.STAT_EVENT, {"theirs.mean": 1.0})] == [
        (record.event_name, dict(record.attributes)) for record in backend.records()
    ]


@given(
    st.datetimes(*NAIVE, timezones=st.just(dt.timezone.utc)),
    st.integers(-14 * 60, 14 * 60),
)
def test_timestamps_are_exact(moment: dt.datetime, minutes: int) -> None:
    """Timestamps are exact to the microsecond, in any zone."""
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(minutes=minutes)))
    assert (moment - EPOCH) // dt.timedelta(microseconds=1) * 1000 == timestamp_ns(elsewhere)


@pytest.mark.parametrize("fold", [0, 1])
def test_naive_timestamp_is_local_time(monkeypatch: pytest.MonkeyPatch, fold: int) -> None:
    """This is as in torch, even in the hour that is repeated when the clock is set back."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        naive = dt.datetime(2026, 10, 25, 2, 30, fold=fold)  # noqa: DTZ001  that is the point
        expected = dt.datetime(2026, 10, 25, fold, 30, tzinfo=dt.timezone.utc)
        assert int(expected.timestamp()) * 10**9 == timestamp_ns(naive)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (dt.datetime.min, 0),  # noqa: DTZ901  naive ones are taken too
        (dt.datetime.min.replace(tzinfo=dt.timezone.utc), 0),
        (dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc), 0),
        (EPOCH, 0),
        (EPOCH + dt.timedelta(microseconds=1), 1000),
        (dt.datetime.max.replace(tzinfo=dt.timezone.utc), 2**64 - 1),
    ],
)
def test_years_outside_the_protocol_are_limited(backend: Backend, moment: dt.datetime, expected: int) -> None:
    """The event has the earliest or the latest possible time."""
    monitel.log_event(Event("odd", moment, {}))
    assert [expected] == [record.timestamp for record in backend.records()]


def test_latest_naive_year_is_limited(backend: Backend) -> None:
    """This is so even if the C library cannot convert that year."""
    monitel.log_event(Event("odd", dt.datetime.max, {}))  # noqa: DTZ901  naive
    assert [2**64 - 1] == [record.timestamp for record in backend.records()]
