"""install() and uninstall(): providers, lifetime, and dependencies."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import monitel
import monitel_otel
from monitel import COUNT, Stat

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.otel.conftest import Backend

    from monitel.testing import ManualClock
    from monitel_otel import Installation


def add_one(stat: Stat) -> None:
    """Close a window with one sample."""
    stat.add(1)
    stat.flush()


def test_uninstall(backend: Backend, installed: Installation, clock: ManualClock) -> None:
    """Afterwards nothing is written, and a collection closes no windows. Idempotent."""
    stat = Stat("loss", [COUNT], 60.0)
    add_one(stat)
    installed.uninstall()
    installed.uninstall()
    add_one(stat)
    monitel.emit("late")
    stat.add(1)
    clock.advance(60)
    assert 1 == backend.values()["loss.count"]
    assert (1, []) == (stat.count, backend.records())


def test_uninstall_keeps_other_handlers(backend: Backend, installed: Installation) -> None:
    """Other handlers, registered before or after, still receive all events."""
    with monitel.testing.capture_events() as events:
        installed.uninstall()
        monitel.emit("late")
    assert ["late"] == [event.name for event in events]
    assert [] == backend.records()


def test_installed_again(backend: Backend, installed: Installation) -> None:
    """After a second installation with the same providers, counts continue."""
    stat = Stat("loss", [COUNT], 60.0)
    add_one(stat)
    installed.uninstall()
    with monitel_otel.install(backend.meter_provider, backend.logger_provider):
        add_one(stat)
        monitel.emit("epoch")
    assert 2 == backend.values()["loss.count"]
    assert ["epoch"] == [record.event_name for record in backend.records()]


def test_leaving_with_closes_open_windows(backend: Backend) -> None:
    """Open windows are written, then the handler is unregistered."""
    with monitel_otel.install(backend.meter_provider, backend.logger_provider) as installation:
        stat = Stat("loss", [COUNT], 60.0)
        stat.add(1)
    assert 1 == backend.values()["loss.count"]
    add_one(stat)
    assert 1 == backend.values()["loss.count"]
    installation.uninstall()


def test_leaving_with_an_exception(backend: Backend) -> None:
    """The handler is unregistered, and the exception is not suppressed."""
    installation = monitel_otel.install(backend.meter_provider, backend.logger_provider)
    with pytest.raises(RuntimeError, match="training failed"), installation:
        raise RuntimeError("training failed")
    monitel.emit("late")
    assert [] == backend.records()


GLOBALS = """\
import sys
import monitel, monitel_otel
from opentelemetry import metrics
from opentelemetry._logs import set_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader, exporter = InMemoryMetricReader(), InMemoryLogRecordExporter()

def set_providers():
    metrics.set_meter_provider(MeterProvider([reader]))
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    set_logger_provider(provider)

if sys.argv[1] == "before":
    set_providers()
installation = monitel_otel.install()
if sys.argv[1] == "after":
    set_providers()
stat = monitel.Stat("loss", [monitel.SUM], 60.0)
stat.add(5)
stat.flush()
monitel.emit("epoch")
data = reader.get_metrics_data()
for metric in data.resource_metrics[0].scope_metrics[0].metrics:
    print(metric.name, metric.data.data_points[0].value)
print([each.log_record.event_name for each in exporter.get_finished_logs()])
"""

NO_SDK = """\
import sys
import monitel, monitel_otel

with monitel_otel.install():
    stat = monitel.Stat("loss", monitel.aggregation.TORCHS, 60.0)
    for number in range(3):
        stat.add(number)
        stat.flush()
    monitel.emit("epoch")
print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""


def run(script: str, tmp_path: Path, *arguments: str) -> str:
    """Run a script that prints nothing to stderr, and return its output."""
    path = tmp_path / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


@pytest.mark.parametrize("when", ["before", "after"])
def test_global_providers_are_the_default(tmp_path: Path, when: str) -> None:
    """This is so even if the application sets them later, as frameworks do."""
    output = run(GLOBALS, tmp_path, when).splitlines()
    assert {"loss.sum 5.0", "monitel.windows 1", "['epoch']"} <= set(output)


def test_api_without_an_sdk(tmp_path: Path) -> None:
    """Without an SDK, nothing is exported and nothing is logged, so that a library may install monitel_otel."""
    assert "[]\n" == run(NO_SDK, tmp_path)
