"""Accounts of exporters in the application's OpenTelemetry providers: each item is counted once."""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from tests.support.inbox import DEADLINE
from tests.support.pipelines import check_accounts
from tests.support.producers import checked_continuously, run_together
from tests.support.spools import folders, last_line, load

import monitel
import monitel_otlp.attach
import monitel_otlp.logs.application_events
from monitel import COUNT, Stat
from monitel_otlp import LogExporter, MetricExporter, SpanExporter
from monitel_otlp._compat import LogRecordExportResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

    from monitel_otlp import Account


class Application:
    """An application with its OpenTelemetry providers, and monitel's exporters in some of them."""

    def __init__(self, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.arguments = arguments
        self.logs = LoggerProvider()
        self.traces = TracerProvider()
        self.metrics: MeterProvider | None = None
        self.pipeline = monitel_otlp.attach._attach(**arguments)
        monkeypatch.setattr(monitel_otlp.logs.application_events, "get_logger_provider", lambda: self.logs)

    def account(self, signal: str) -> Account:
        """Return the account of a signal."""
        return self.pipeline.account()[signal]

    def export_logs(self, processor: type[Any] = SimpleLogRecordProcessor) -> None:
        """Add the exporter to the LoggerProvider."""
        self.logs.add_log_record_processor(processor(LogExporter(**self.arguments)))

    def export_spans(self, processor: type[Any] = SimpleSpanProcessor) -> None:
        """Add the exporter to the TracerProvider."""
        self.traces.add_span_processor(processor(SpanExporter(**self.arguments)))

    def export_metrics(self) -> None:
        """Add the exporter to a reader of a new MeterProvider."""
        reader = PeriodicExportingMetricReader(MetricExporter(**self.arguments), export_interval_millis=3_600_000)
        self.metrics = MeterProvider([reader])
        self.metrics.get_meter("mine").create_counter("mine").add(1)  # a reader does not export without a value

    def log(self, count: int) -> None:
        """Emit log records of the application."""
        logger = self.logs.get_logger("mine")
        for number in range(count):
            logger.emit(body=f"{number}")

    def span(self, count: int) -> None:
        """End spans of the application."""
        tracer = self.traces.get_tracer("mine")
        for number in range(count):
            tracer.start_span(f"span {number}").end()

    def close(self) -> None:
        """Shut the providers down."""
        self.logs.shutdown()
        self.traces.shutdown()
        if self.metrics is not None:
            self.metrics.shutdown()


@pytest.fixture
def application(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    """An application whose exporters send to the receiver; its providers are shut down at the end of the test."""
    monkeypatch.setattr(monitel_otlp.attach, "_attached", None)
    monkeypatch.setattr(monitel_otlp.attach, "_hand_over_at_exit", lambda _pipeline, **_: None)
    application = Application({"endpoint": receiver.url, "spool_dir": tmp_path / "spool"}, monkeypatch)
    yield application
    application.close()
    application.pipeline.shutdown()


def windows(count: int) -> None:
    """Close windows of one Stat."""
    stat = Stat("loss", [COUNT], 60.0)
    for _ in range(count):
        stat.add(1)
        stat.flush()


def events(count: int) -> None:
    """Emit events."""
    for number in range(count):
        monitel.emit("event", number=number)


@pytest.mark.parametrize("processor", [SimpleLogRecordProcessor, BatchLogRecordProcessor])
def test_events_returned_by_the_application_are_counted_once(
    receiver: Receiver, application: Application, processor: type[Any]
) -> None:
    """The handler records an event; the exporter that receives the same event does not record it again."""
    application.export_logs(processor)
    events(20)
    application.log(7)
    application.pipeline.force_flush(DEADLINE)
    assert application.logs.force_flush()
    assert application.pipeline.force_flush(DEADLINE)
    account = application.account("logs")
    assert (27, 27, 0) == (account.recorded, account.delivered, account.waiting)
    assert 27 == len(receiver.records())


def test_event_handed_to_a_provider_without_our_exporter_is_delivered(
    receiver: Receiver, application: Application
) -> None:
    """Without monitel's exporter the application's provider is the destination."""
    events(5)
    assert application.pipeline.force_flush(DEADLINE)
    account = application.account("logs")
    assert (5, 5) == (account.recorded, account.delivered)
    assert [] == receiver.records()


def test_windows_without_a_reader_wait_until_exit(receiver: Receiver, application: Application) -> None:
    """If no reader collects windows, a flush is not complete, and the shutdown drops them with the reason ``exit``."""
    application.export_logs()
    windows(3)
    assert not application.pipeline.force_flush(0.5)
    assert 3 == application.account("metrics").waiting
    assert not application.pipeline.shutdown()
    account = application.account("metrics")
    assert (3, 0, {"exit": 3}) == (account.recorded, account.waiting, dict(account.dropped))
    assert [] == receiver.of("metrics")


def test_windows_are_delivered_by_the_applications_reader(receiver: Receiver, application: Application) -> None:
    """Windows wait until the reader collects, and count as delivered when the backend has acknowledged them."""
    application.export_metrics()
    assert application.metrics is not None
    windows(3)
    assert 3 == application.account("metrics").waiting
    assert application.metrics.force_flush()
    assert application.pipeline.force_flush(DEADLINE)
    account = application.account("metrics")
    assert (3, 3) == (account.recorded, account.delivered)
    assert 3 == receiver.values("loss.count")[-1]


@pytest.mark.parametrize("processor", [SimpleSpanProcessor, BatchSpanProcessor])
def test_spans_of_the_application_are_counted(
    receiver: Receiver, application: Application, processor: type[Any]
) -> None:
    """Each span is recorded when the exporter receives it."""
    application.export_spans(processor)
    application.span(9)
    assert application.traces.force_flush()
    assert application.pipeline.force_flush(DEADLINE)
    account = application.account("traces")
    assert (9, 9, 9) == (account.recorded, account.delivered, len(receiver.spans()))


class _Raises(LogRecordProcessor):
    """A processor of the application that fails."""

    def on_emit(self, log_record: Any) -> None:
        """Raise."""
        if log_record.log_record.event_name == "event":
            raise RuntimeError("a fault of the application")

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing."""
        return True


class _Swallows(_Raises):
    """A processor that does not pass records on."""

    def on_emit(self, log_record: Any) -> None:
        """Do nothing."""


def test_processor_that_raises_loses_only_its_events(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """Later events are emitted; failures are counted, and logged once."""
    application.logs.add_log_record_processor(_Raises())
    events(12)
    monitel.emit("another")
    assert not application.pipeline.force_flush(DEADLINE)
    account = application.account("logs")
    assert (13, 1, {"application": 12}) == (account.recorded, account.delivered, dict(account.dropped))
    assert 1 == len([each for each in caplog.records if "LoggerProvider failed" in each.getMessage()])


@pytest.mark.parametrize("ours_first", [True, False])
def test_processor_that_raises_beside_our_exporter(
    receiver: Receiver, application: Application, *, ours_first: bool
) -> None:
    """An event that the exporter received before the failure is delivered; others are dropped at exit."""
    if ours_first:
        application.export_logs()
    application.logs.add_log_record_processor(_Raises())
    if not ours_first:
        application.export_logs()
    events(12)
    application.pipeline.force_flush(1.0)
    application.pipeline.shutdown()
    account = application.account("logs")
    expected = (12, {}) if ours_first else (0, {"exit": 12})
    assert expected == (account.delivered, dict(account.dropped))
    assert account.delivered == len(receiver.records())


def test_events_that_do_not_return_are_dropped_at_exit(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter in another provider than the global one receives no events."""
    application.export_logs()
    elsewhere = LoggerProvider()
    elsewhere.add_log_record_processor(_Swallows())
    monkeypatch.setattr(monitel_otlp.logs.application_events, "get_logger_provider", lambda: elsewhere)
    events(4)
    assert not application.pipeline.force_flush(1.0)
    assert 4 == application.account("logs").waiting
    assert not application.pipeline.shutdown()
    assert {"exit": 4} == dict(application.account("logs").dropped)


def test_export_after_the_end_fails(receiver: Receiver, application: Application) -> None:
    """The exporters return FAILURE, and the account does not change."""
    logs, spans = LogExporter(**application.arguments), SpanExporter(**application.arguments)
    application.pipeline.shutdown()
    before = application.pipeline.account()
    assert LogRecordExportResult.FAILURE is logs.export([])
    assert SpanExportResult.FAILURE is spans.export([])
    assert before == application.pipeline.account()
    assert [] == receiver.requests


def test_accounts_add_up_while_all_exporters_work(receiver: Receiver, application: Application) -> None:
    """Processors, reader, handler and encoder count concurrently, and each item is counted once."""
    application.export_logs(BatchLogRecordProcessor)
    application.export_spans()
    application.export_metrics()
    assert application.metrics is not None
    work: list[Callable[[], object]] = [
        partial(application.log, 150),
        partial(application.span, 150),
        partial(windows, 150),
        partial(events, 150),
        *([application.metrics.force_flush, application.logs.force_flush] * 3),
    ]
    with checked_continuously(application.pipeline):
        run_together(*work)
        application.pipeline.force_flush(5)
        application.logs.force_flush()
        application.metrics.force_flush()
    assert application.pipeline.force_flush(DEADLINE), application.pipeline.account()
    accounts = application.pipeline.account()
    assert {"metrics": 150, "logs": 300, "traces": 150} == {name: each.delivered for name, each in accounts.items()}
    assert (300, 150) == (len(receiver.records()), len(receiver.spans()))
    assert 150 == receiver.values("loss.count")[-1]
    check_accounts(application.pipeline)


SCRIPT = """\
import logging, monitel
from monitel import COUNT
from opentelemetry import _logs, trace

loss = monitel.stat("loss", [COUNT], 60.0)
for number in range(5):
    loss.add(1)
    loss.flush()
    monitel.emit("epoch")
    _logs.get_logger("mine").emit(body="mine")
    trace.get_tracer("mine").start_span("mine").end()
"""


def test_last_line_counts_what_arrived_without_code(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """With three variables and no code, the last line has the numbers of windows, records and spans that arrived."""
    if find_spec("opentelemetry.distro") is None:
        pytest.skip("pip install opentelemetry-distro opentelemetry-instrumentation")
    (tmp_path / "train.py").write_text(SCRIPT)
    names = ("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_TRACES_EXPORTER")
    env = {**dict.fromkeys(names, "monitel"), "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    program = Path(sys.executable).with_name("opentelemetry-instrument")
    ended = run(program, sys.executable, tmp_path / "train.py", env=env)
    assert (10, 5, 5) == (len(receiver.records()), len(receiver.spans()), receiver.values("loss.count")[-1])
    assert "exported 5 windows and numbers, 10 events, 5 spans" in ended.stderr
    assert (None, None) == (last_line(ended.stderr).dropped, last_line(ended.stderr).spooled)


PROVIDERS_FIRST = """
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
logs, traces = LoggerProvider(), TracerProvider()
_logs.set_logger_provider(logs)
trace.set_tracer_provider(traces)
from monitel_otlp import LogExporter, MetricExporter, SpanExporter
logs.add_log_record_processor(BatchLogRecordProcessor(LogExporter(spool_dir="spool")))
traces.add_span_processor(BatchSpanProcessor(SpanExporter(spool_dir="spool")))
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(MetricExporter(spool_dir="spool"))]))
Stat("loss", [COUNT], 60.0).add(1)
monitel.emit("event")
trace.get_tracer("mine").start_span("span").end()
"""


def test_providers_created_before_the_exporters_lose_nothing(run: Run, tmp_path: Path) -> None:
    """Such a provider shuts down after the exporters' end, which therefore asks for its items."""
    ended = run("-c", f"import monitel\nfrom monitel import COUNT, Stat{PROVIDERS_FIRST}")
    requests = [request for folder in folders(tmp_path / "spool") for request in load(folder)]
    assert {"metrics", "logs", "traces"} == {request.signal for request in requests}
    assert last_line(ended.stderr).dropped is None
