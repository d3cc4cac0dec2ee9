"""System metrics of a process and its host, beside the values that the system reports to the test."""

from __future__ import annotations

import logging
import os
import re
import resource
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.support.checks import warnings_with

import monitel
from monitel_otlp.system.metrics import CPU_MODES, HOST_METRICS, PROCESS_METRICS

if TYPE_CHECKING:
    from tests.support.inbox import Point
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

    from monitel_otlp import Pipeline

TICK = 0.02  # seconds: the kernel counts CPU time in ticks of 0.01 s
MIB = 2**20
psutil: Any = pytest.importorskip("psutil", reason="pip install opentelemetry-instrumentation-system-metrics")
instrumentation: Any = pytest.importorskip(
    "opentelemetry.instrumentation.system_metrics", reason="pip install opentelemetry-instrumentation-system-metrics"
)


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPUs of this machine."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("monitel_otlp.system.metrics._NVIDIA_DRIVER", "/nowhere")


def latest(receiver: Receiver, pipeline: Pipeline, metric: str) -> dict[tuple[Any, ...], Point]:
    """Export, and return the newest points of a metric by the values of their attributes."""
    assert pipeline.force_flush(60)
    return {tuple(point.attributes.values()): point for point in receiver.points(metric)}


def cpu_time() -> float:
    """Return the CPU time of this process, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def names(receiver: Receiver) -> set[str]:
    """Return the names of all received system metrics."""
    return {point.metric for point in receiver.all_points() if point.metric.startswith(("process.", "system.", "hw."))}


def test_cpu_time_of_the_process_is_that_of_the_system(receiver: Receiver, start: Start) -> None:
    """The sum of user and system time lies between two readings of the test, and follows the work of the process."""
    pipeline = start(system=True)
    for _ in range(2):
        goal = cpu_time() + 0.2
        while cpu_time() < goal:
            sum(range(10_000))
        before = cpu_time()
        points = latest(receiver, pipeline, "process.cpu.time")
        assert before - TICK <= sum(point.value for point in points.values()) <= cpu_time() + TICK
        assert {("user",), ("system",)} == set(points)
    point = points["user",]
    assert ("sum", True, "s", os.getpid()) == (point.kind, point.monotonic, point.unit, point.resource["process.pid"])


def test_memory_of_the_process_follows_an_allocation(receiver: Receiver, start: Start) -> None:
    """64 MiB that are written to are in the next value."""
    pipeline = start(system=True)
    before = latest(receiver, pipeline, "process.memory.usage")[()].value
    block = bytearray(os.urandom(MIB) * 64)
    found = latest(receiver, pipeline, "process.memory.usage")[()].value
    truth = psutil.Process().memory_info().rss
    assert 60 * MIB <= found - before
    assert abs(found - truth) < 8 * MIB
    assert 64 * MIB == len(block)


def test_disk_io_of_the_process_is_that_of_the_system(receiver: Receiver, start: Start) -> None:
    """The bytes lie between two readings of the test."""
    pipeline = start(system=True)
    before = psutil.Process().io_counters()
    found = latest(receiver, pipeline, "process.disk.io")
    after = psutil.Process().io_counters()
    assert before.read_bytes <= found["read",].value <= after.read_bytes
    assert before.write_bytes <= found["write",].value <= after.write_bytes


def test_cpu_time_of_the_host_has_one_series_per_mode(receiver: Receiver, start: Start) -> None:
    """All CPUs are added up, and the time of each mode lies between two readings of the test."""
    pipeline = start(system=True)
    before = psutil.cpu_times()
    found = latest(receiver, pipeline, "system.cpu.time")
    after = psutil.cpu_times()
    modes = {field: mode for field, mode in CPU_MODES.items() if hasattr(before, field)}
    assert {(mode,) for mode in modes.values()} == set(found)
    for field, mode in modes.items():
        assert getattr(before, field) <= found[mode,].value <= getattr(after, field)
    cpus = os.cpu_count() or 1
    total = sum(point.value for point in found.values())
    assert abs(total - sum(getattr(before, field) for field in modes)) < 5 * cpus


def test_memory_of_the_host_is_that_of_the_system(receiver: Receiver, start: Start) -> None:
    """Other processes change it during the test, but not by a tenth of the memory."""
    found = latest(receiver, start(system=True), "system.memory.usage")
    truth = psutil.virtual_memory()
    for state in ("used", "free", "cached"):
        assert abs(found[state,].value - getattr(truth, state)) < truth.total / 10


def test_network_io_of_the_host_includes_the_traffic_of_the_test(receiver: Receiver, start: Start) -> None:
    """The requests to the receiver go through the loopback device."""
    pipeline = start(system=True)
    before = latest(receiver, pipeline, "system.network.io")
    for _ in range(20):
        monitel.emit("large", text="x" * 20_000)
    assert pipeline.force_flush(60)
    found = latest(receiver, pipeline, "system.network.io")
    for direction in ("transmit", "receive"):
        assert 400_000 <= found["lo", direction].value - before["lo", direction].value


def test_metrics_are_the_documented_ones(receiver: Receiver, start: Start) -> None:
    """Nothing else is exported: each further metric would cost series in every process."""
    pipeline = start(system=True)
    assert pipeline.force_flush(60)
    assert {*PROCESS_METRICS, *HOST_METRICS, "system.cpu.time"} == names(receiver)


@pytest.mark.parametrize(("local_rank", "host"), [("0", True), ("1", False)])
def test_one_process_per_host_reports_the_host(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, local_rank: str, host: bool
) -> None:
    """Eight ranks would report the same values eight times."""
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert start(system=True).force_flush(10)
    found = names(receiver)
    assert (True, host) == (set(PROCESS_METRICS) <= found, "system.cpu.time" in found)


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("0", False), ("", False)])
def test_variable_turns_them_on(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    """``MONITEL_SYSTEM`` is the default of the argument."""
    monkeypatch.setenv("MONITEL_SYSTEM", value)
    assert start().force_flush(60)
    assert expected == ("process.cpu.time" in names(receiver))


def test_wrong_argument_is_refused(start: Start) -> None:
    """The error names the argument and the value."""
    with pytest.raises(TypeError, match=re.escape("system must be True or False, got 'yes'")):
        start(system="yes")


def test_launcher_reports_nothing(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of torchrun may run the same ``sitecustomize`` as the ranks."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "torch.distributed.run", "train.py"])
    assert start(system=True).force_flush(10)
    assert set() == names(receiver)


def test_missing_package_is_reported_once(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning has the command that installs it, and everything else is exported."""
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.system_metrics", None)
    pipeline = start(system=True)
    monitel.emit("epoch")
    assert pipeline.force_flush(60)
    assert (1, set()) == (len(receiver.records("epoch")), names(receiver))
    assert 1 == len(warnings_with(caplog, "pip install opentelemetry-instrumentation-system-metrics"))


def test_failure_of_the_instrumentor_is_reported(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``configure()`` does not raise."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("no /proc")

    monkeypatch.setattr(instrumentation.SystemMetricsInstrumentor, "_instrument", fail)
    monitel.emit("epoch")
    pipeline = start(system=True)
    monitel.emit("epoch")
    assert pipeline.force_flush(60)
    assert 1 == len(receiver.records("epoch"))
    assert 1 == len(warnings_with(caplog, "system metrics are incomplete"))


def test_instrumentor_of_the_application_is_not_changed(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The instrumentor is a singleton. Its configuration and its metrics stay those of the application."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    theirs = instrumentation.SystemMetricsInstrumentor(config={"process.context_switches": ["voluntary"]})
    theirs.instrument(meter_provider=provider)
    try:
        for _ in range(2):  # as in a notebook
            assert start(system=True).force_flush(10)
        assert theirs.is_instrumented_by_opentelemetry
        data: Any = reader.get_metrics_data()
        (scope,) = data.resource_metrics[0].scope_metrics
        assert ["process.context_switches"] == [metric.name for metric in scope.metrics]
    finally:
        theirs.uninstrument()
    assert "process.cpu.time" in names(receiver)
    assert [] == [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_nothing_is_reported_after_the_shutdown(receiver: Receiver, start: Start) -> None:
    """The instruments end with the pipeline; a later pipeline without them has none."""
    first = start(system=True)
    assert first.shutdown()
    sent = len(receiver.points("process.cpu.time"))
    second = start()
    assert first.force_flush(60)
    assert second.force_flush(60)
    assert sent == len(receiver.points("process.cpu.time")) > 0


def test_forked_child_reports_nothing(receiver: Receiver, train: Run) -> None:
    """The callbacks would report the parent's process under the child's instance."""
    script = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", system=True)
assert pipeline.force_flush(60)
if (pid := os.fork()) == 0:
    monitel.emit("child")
    monitel.log({"loss": 0.5})
    assert pipeline.force_flush(60)
    sys.exit()
assert os.waitpid(pid, 0) == (pid, 0)
"""
    train(script, receiver.url)
    (child,) = [each.resource["process.pid"] for each in receiver.records("child")]
    found = {point.resource["process.pid"] for point in receiver.all_points() if point.metric == "process.cpu.time"}
    assert 1 == len(found)
    assert child not in found
    assert child in {point.resource["process.pid"] for point in receiver.points("loss")}
