"""Metrics of NVIDIA GPUs, with a stand-in for the module ``pynvml``: the machines of the tests have no GPU."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.checks import SetEnv, Warned
from tests.support.inbox import DEADLINE
from tests.support.nvml import GIB, FakeNvml
from tests.support.pipelines import Start, delivered_by
from tests.support.receiver import Receiver

pytest.importorskip(
    "opentelemetry.instrumentation.system_metrics", reason="pip install opentelemetry-instrumentation-system-metrics"
)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def values(receiver: Receiver, metric: str) -> dict[str, Any]:
    return {point.attributes["hw.id"]: point.value for point in receiver.points(metric)}


@pytest.mark.usefixtures("nvml")
def test_metrics_have_the_names_of_the_semantic_conventions(receiver: Receiver, start: Start) -> None:
    """Kind, unit, attributes and value of each metric of one GPU."""
    assert start(system=True).force_flush(DEADLINE)
    found = {
        point.metric: (point.kind, point.unit, point.value, point.attributes)
        for point in receiver.all_points()
        if point.attributes.get("hw.id") == "GPU-cccc-2"
    }
    gpu = {
        "hw.id": "GPU-cccc-2",
        "hw.type": "gpu",
        "hw.vendor": "NVIDIA",
        "hw.model": "NVIDIA H200",
        "hw.name": "GPU 2",
    }
    assert found == {
        "hw.gpu.utilization": ("gauge", "1", 0.22, {**gpu, "hw.gpu.task": "general"}),
        "hw.gpu.memory.usage": ("sum", "By", 3 * GIB, gpu),
        "hw.gpu.memory.limit": ("sum", "By", 141 * GIB, gpu),
        "hw.power": ("gauge", "W", 650.5, gpu),
        "hw.temperature": ("gauge", "Cel", 62, gpu),
    }
    assert not receiver.points("hw.gpu.memory.usage")[0].monotonic


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, "0 1 2 3"),
        (" 3 , 1", "1 3"),
        ("GPU-dddd-3,GPU-aabb-1", "1 3"),
        ("1,7,0", "1"),
        ("MIG-eeee", "part"),
        ("", ""),
    ],
)
def test_only_visible_gpus_are_reported(
    receiver: Receiver, start: Start, setenv: SetEnv, visible: str | None, expected: str
) -> None:
    """CUDA_VISIBLE_DEVICES has indices or UUIDs; CUDA ignores what follows a wrong entry."""
    with delivered_by(start(system=True)):
        if visible is not None:
            setenv(CUDA_VISIBLE_DEVICES=visible)  # after configure(), but before the GPUs are used
    uuids = dict(zip(["0", "1", "2", "3", "part"], [*FakeNvml.GPUS, FakeNvml.PART], strict=True))
    assert {uuids[name] for name in expected.split()} == {*values(receiver, "hw.gpu.memory.usage")}


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("nvmlDeviceGetUtilizationRates", FakeNvml.NVML_ERROR_NOT_SUPPORTED),
        ("nvmlDeviceGetHandleByIndex", FakeNvml.NVML_ERROR_GPU_IS_LOST),
        ("nvmlDeviceGetMemoryInfo", FakeNvml.NVML_ERROR_GPU_IS_LOST),
    ],
)
def test_measurement_that_fails_is_left_out(
    *, receiver: Receiver, start: Start, nvml: FakeNvml, warned: Warned, function: str, error: int
) -> None:
    """One warning about a GPU that is lost, however often, and none if something is not supported, as by a part."""
    nvml.failing[function, "GPU-aabb-1"] = error
    pipeline = start(system=True)
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    is_lost = error == FakeNvml.NVML_ERROR_GPU_IS_LOST
    usage, utilization = (values(receiver, f"hw.gpu.{name}") for name in ("memory.usage", "utilization"))
    assert {"GPU-aaaa-0": GIB, "GPU-cccc-2": 3 * GIB, "GPU-dddd-3": 4 * GIB}.items() <= usage.items()
    assert {"GPU-aaaa-0": 0.2, "GPU-cccc-2": 0.22, "GPU-dddd-3": 0.23}.items() <= utilization.items()
    assert is_lost == ("GPU-aabb-1" not in usage)
    assert ("GPU-aabb-1" in utilization) == (function == "nvmlDeviceGetMemoryInfo")
    expected = ["a GPU cannot be read: error 15 (further failures are not logged)"] * is_lost
    assert expected == warned("GPU")


@pytest.mark.parametrize("driver", [True, False])
def test_missing_module_is_reported_where_there_is_a_driver(
    start: Start, monkeypatch: pytest.MonkeyPatch, warned: Warned, tmp_path: Path, driver: bool
) -> None:
    """The warning has the command that installs it."""
    path = tmp_path / "nvidiactl"
    if driver:
        path.touch()
    monkeypatch.setattr("monitel_otlp.system._NVIDIA_DRIVER", str(path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    start(system=True)
    assert driver == bool(warned("pip install nvidia-ml-py"))
