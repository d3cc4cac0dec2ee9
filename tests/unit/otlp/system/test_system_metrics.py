"""System metrics of a process and its host: which processes report them, and what happens when they fail."""

import logging
import re
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.support.checks import SetEnv, Warned
from tests.support.inbox import DEADLINE
from tests.support.nvml import FakeNvml
from tests.support.paths import ROOT
from tests.support.pipelines import Start, delivered_by
from tests.support.receiver import Receiver
from tests.support.validity.names import stored_names
from tests.unit.promises.reference_tables import code, metrics, table

import monitel

#: Name, unit and monotonicity of each metric of the reference, but those of GPUs.
DOCUMENTED = {name: each for name, each, _ in metrics("System metrics") if not name.startswith("hw.")}
psutil: Any = pytest.importorskip("psutil", reason="pip install opentelemetry-instrumentation-system-metrics")
instrumentation: Any = pytest.importorskip(
    "opentelemetry.instrumentation.system_metrics", reason="pip install opentelemetry-instrumentation-system-metrics"
)


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("monitel_otlp.system._NVIDIA_DRIVER", "/nowhere")


def names(receiver: Receiver) -> set[str]:
    return {point.metric for point in receiver.all_points() if point.metric.startswith(("process.", "system.", "hw."))}


def test_metrics_are_the_documented_ones(receiver: Receiver, start: Start) -> None:
    """With their kind, unit and attributes, and nothing else: each further one would cost series in every process."""
    assert start(system=True).force_flush(DEADLINE)
    found = {
        point.metric: (point.kind, point.unit, point.monotonic)
        for point in receiver.all_points()
        if point.metric in DOCUMENTED
    }
    units = {name: unit for name, (_, unit, _) in DOCUMENTED.items() if unit}
    assert {*DOCUMENTED} == {*found} == names(receiver)
    assert units == {name: found[name][1] for name in units}
    assert {name: each[0] for name, each in DOCUMENTED.items()} == {name: each[0] for name, each in found.items()}
    counters = {name for name, (_, _, monotonic) in DOCUMENTED.items() if monotonic}
    assert counters == {name for name, (_, _, monotonic) in found.items() if monotonic}
    rows = table("metrics-and-events.md", "name", "kind, unit", "attributes", under="System metrics")
    words = {code(name)[0]: {*code(attributes)} for name, _, attributes in rows}
    for point in receiver.all_points():
        if point.metric in DOCUMENTED and point.metric != "system.cpu.time":
            assert {*point.attributes} <= words[point.metric]
            states = {str(value) for key, value in point.attributes.items() if key != "device"}
            assert states <= words[point.metric]


def test_guide_asks_for_metrics_that_are_sent(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names that Prometheus gives them, with the modes of CPUs; memory of a GPU is divided by its limit."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert start(system=True).force_flush(DEADLINE)
    queries = re.findall(r"\? \| `(.*)` \|", (ROOT / "docs/how-to/opentelemetry.md").read_text("utf-8"))
    text = re.sub(r"by \([^)]*\)", "", " ".join(queries))
    asked, modes = re.findall(r"\b(?:process|system|hw)_\w+", text), re.findall(r'cpu_mode="(\w+)"', text)
    assert set() < {*asked} <= stored_names(each.message for each in receiver.of("metrics"))
    assert set() < {*modes} <= {point.attributes["cpu.mode"] for point in receiver.points("system.cpu.time")}
    usage, limit = (receiver.points(f"hw.gpu.memory.{name}") for name in ("usage", "limit"))
    assert [each.attributes for each in usage] == [each.attributes for each in limit] != []


def test_one_process_reports_the_host(receiver: Receiver, start: Start, setenv: SetEnv) -> None:
    """Eight ranks would report the same values eight times. The variable is the default of the argument."""
    setenv(LOCAL_RANK="1", MONITEL_SYSTEM="true")
    assert start().force_flush(DEADLINE)
    assert {name for name in DOCUMENTED if name.startswith("process.")} == names(receiver)
    setenv(LOCAL_RANK="0")
    assert start().force_flush(DEADLINE)
    assert {*DOCUMENTED} == names(receiver)


def test_processes_without_system_metrics(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, in a launcher, which may run the same ``sitecustomize`` as the ranks, and after the shutdown."""
    assert start().force_flush(DEADLINE)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "orig_argv", ["python", "-m", "torch.distributed.run", "train.py"])
        assert start(system=True).force_flush(DEADLINE)
    assert set() == names(receiver)
    assert start(system=True).shutdown()
    sent = len(receiver.points("process.cpu.time"))
    assert start().force_flush(DEADLINE)
    assert sent == len(receiver.points("process.cpu.time")) > 0
    with pytest.raises(TypeError, match=re.escape("system must be True or False, got 'yes'")):
        start(system="yes")


@pytest.mark.parametrize("failure", ["missing", "broken"])
def test_failure_is_one_warning(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, warned: Warned, failure: str
) -> None:
    """A missing package with the command that installs it; everything else is exported."""
    if failure == "missing":
        monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.system_metrics", None)
        warning = "pip install opentelemetry-instrumentation-system-metrics"
    else:
        monkeypatch.setattr(instrumentation.SystemMetricsInstrumentor, "_instrument", lambda *_, **__: 1 / 0)
        warning = "system metrics are incomplete"
    with delivered_by(start(system=True)):
        monitel.emit("epoch")
    assert (1, 1) == (len(receiver.records("epoch")), len(warned(warning)))


def test_applications_instrumentor_is_kept(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The instrumentor is a singleton. Its configuration and its metrics stay those of the application."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    theirs = instrumentation.SystemMetricsInstrumentor(config={"process.context_switches": ["voluntary"]})
    theirs.instrument(meter_provider=provider)
    try:
        for _ in range(2):  # as in a notebook
            assert start(system=True).force_flush(DEADLINE)
        assert theirs.is_instrumented_by_opentelemetry
        data: Any = reader.get_metrics_data()
        (scope,) = data.resource_metrics[0].scope_metrics
        assert ["process.context_switches"] == [metric.name for metric in scope.metrics]
    finally:
        theirs.uninstrument()
    assert "process.cpu.time" in names(receiver)
    assert [] == [each for each in caplog.records if each.levelno >= logging.WARNING]
