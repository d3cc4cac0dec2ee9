"""Events that torch code logs just before a flush of an exporter, the end of its block, or the exit are exported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.receiver import Receiver

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")
pytest.importorskip("monitel_otlp", reason="sends to a backend: monitel-otlp is not installed")

from opentelemetry.metrics import NoOpMeterProvider  # noqa: E402
from opentelemetry.sdk._logs import LoggerProvider  # noqa: E402
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]  # noqa: E402
    EventAccumulator,
)

import monitel.torch  # noqa: E402
import monitel_otel  # noqa: E402  after the checks
import monitel_otlp  # noqa: E402
import monitel_tensorboard  # noqa: E402
from monitel.torch import instrumentation  # noqa: E402
from monitel.torch.poller import Poller  # noqa: E402

pytestmark = pytest.mark.torch

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
OTHERS: dict[str, Any] = {"waits": False, "compilation": False, "stuck_after": None}
_DEADLINE = 60.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A backend that accepts everything."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def _polling_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the polling thread wait for an hour: only flushes poll."""
    monkeypatch.setattr(instrumentation, "Poller", lambda functions: Poller(functions, seconds=3600.0))


def log() -> None:
    """Log an event through torch.monitor, and close a window of a Stat of torch."""
    torch.monitor.log_event(torch.monitor.Event("checkpoint", MOMENT, {"bytes": 5}))
    torch.monitor.Stat("torch.loss", [torch.monitor.MEAN], timedelta(hours=1), 1).add(0.5)


def received(receiver: Receiver) -> tuple[list[str], list[float]]:
    """Return the names of the received records, and the points of the Stat."""
    return [each.name for each in receiver.records()], [each.value for each in receiver.points("torch.loss.mean")]


@pytest.mark.usefixtures("_polling_thread_waits")
def test_force_flush_of_a_pipeline(receiver: Receiver, tmp_path: Path) -> None:
    """The events are delivered before it returns."""
    options: dict[str, Any] = {"endpoint": receiver.url, "spool_dir": tmp_path, "export_interval": 3600.0}
    with monitel_otlp.configure(**options) as pipeline, monitel.torch.instrument(**OTHERS):
        log()
        assert pipeline.force_flush(_DEADLINE)
        assert (["checkpoint"], [0.5]) == received(receiver)


@pytest.mark.usefixtures("_polling_thread_waits")
def test_end_of_a_block_around_instrument(receiver: Receiver, tmp_path: Path) -> None:
    """The instrumentation goes on, and the events before the end are delivered."""
    with monitel_otlp.configure(endpoint=receiver.url, spool_dir=tmp_path, export_interval=3600.0):
        instrumented = monitel.torch.instrument(**OTHERS)
        log()
    assert (["checkpoint"], [0.5]) == received(receiver)
    instrumented.uninstrument()


@pytest.mark.usefixtures("_polling_thread_waits")
def test_end_of_an_installation_for_own_providers() -> None:
    """The application's LoggerProvider receives them."""
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    with monitel_otel.install(NoOpMeterProvider(), provider):
        instrumented = monitel.torch.instrument(**OTHERS)
        log()
    assert ["checkpoint"] == [each.log_record.event_name for each in exporter.get_finished_logs()]
    instrumented.uninstrument()


def scalars(folder: Path) -> list[str]:
    """Return the tags that TensorBoard reads."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [tag for tag in reader.Tags()["scalars"] if not tag.startswith("training.")]


@pytest.mark.usefixtures("_polling_thread_waits")
def test_flush_of_tensorboard(tmp_path: Path) -> None:
    """The events are written before it returns."""
    with monitel_tensorboard.install(tmp_path) as installed, monitel.torch.instrument(**OTHERS):
        log()
        assert installed.writer.flush(_DEADLINE)
        assert {"checkpoint/bytes", "torch.loss.mean"} == set(scalars(tmp_path))


EXIT = """\
import sys
from datetime import datetime
import torch, monitel, monitel.torch, monitel_otlp
def configure():
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
def instrument():
    monitel.torch.instrument(waits=False, compilation=False, stuck_after=None)
def hang(event):
    import threading
    if event.name == "checkpoint":
        threading.Event().wait()
for name in sys.argv[2].split():
    globals()[name]()
if "hang" in sys.argv:
    monitel.register_event_handler(hang)
print("ready", flush=True)
torch.monitor.log_event(torch.monitor.Event("checkpoint", datetime.now(), {"bytes": 5}))
"""


def run(folder: Path, *arguments: str) -> float:
    """Run the script, and return the seconds from its last line to its end."""
    (folder / "script.py").write_text(EXIT, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "script.py", *arguments],
        env={**os.environ, "MONITEL_RUN_EVENTS": "0"},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        began = time.monotonic()
        assert 0 == process.wait(60)
        return time.monotonic() - began


@pytest.mark.parametrize("order", ["configure instrument", "instrument configure"])
def test_exit(receiver: Receiver, tmp_path: Path, order: str) -> None:
    """Whichever was called first."""
    run(tmp_path, receiver.url, order)
    assert ["checkpoint"] == received(receiver)[0]


def test_exit_with_an_event_handler_that_hangs(receiver: Receiver, tmp_path: Path) -> None:
    """The process ends as fast as without torch, and the other handlers have received the event."""
    assert run(tmp_path, receiver.url, "configure instrument", "hang") < 10
    assert ["checkpoint"] == received(receiver)[0]
