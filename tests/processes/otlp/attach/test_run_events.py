"""Run events of an application that exports through its OpenTelemetry providers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

ATTACH = """\
from opentelemetry._logs import set_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

exporter = monitel_otlp.LogExporter(endpoint=sys.argv[1])
provider = LoggerProvider()
provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
set_logger_provider(provider)
"""


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run events are off in other tests."""
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")


def test_run_starts_with_the_first_event(receiver: Receiver, train: Run) -> None:
    """The run ends before the application's providers do."""
    train(ATTACH + "monitel.emit('event')\nsys.exit(3)\n", receiver.url, returncode=3)
    assert {"event", "run.started", "run.ended"} == set(receiver.record_names())
    assert ["failed"] == [record.attributes["run.status"] for record in receiver.records("run.ended")]


def test_process_that_records_nothing_has_no_run(receiver: Receiver, train: Run) -> None:
    """A launcher, or another program with the same environment variables."""
    train(ATTACH, receiver.url)
    assert [] == receiver.record_names()
