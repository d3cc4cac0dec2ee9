"""System metrics: OpenTelemetry's SystemMetricsInstrumentor, the CPU time of the host, and NVIDIA GPUs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Observation

from monitel.process.failures import warn_once
from monitel_otel.scope import SCOPE

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from monitel_otlp.pipeline import Pipeline

_log = logging.getLogger("monitel.otlp")

#: The metrics of the instrumentor, as its argument ``config``.
_PROCESS_METRICS: dict[str, list[str] | None] = {
    "process.cpu.time": ["user", "system"],
    "process.memory.usage": None,
    "process.disk.io": ["read", "write"],
    "process.thread.count": None,
    "process.open_file_descriptor.count": None,
}
_HOST_METRICS: dict[str, list[str] | None] = {
    "system.memory.usage": ["used", "free", "cached"],
    "system.disk.io": ["read", "write"],
    "system.network.io": ["transmit", "receive"],
}
#: The values of ``cpu.mode`` by the field of psutil. On Linux the sum of all modes is the time of all CPUs.
_CPU_MODES = {each: each for each in ("user", "nice", "system", "idle", "iowait", "softirq", "steal")}
_CPU_MODES["irq"] = "interrupt"
_NVIDIA_DRIVER = "/dev/nvidiactl"
#: Metrics of a GPU: kind, name, unit, description, and what reads the value from the module ``pynvml``.
_GPU_METRICS: dict[tuple[str, str, str, str], Callable[[Any, Any], float]] = {
    ("gauge", "hw.gpu.utilization", "1", "Fraction of time in which a kernel ran"): (
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    ),
    ("up_down_counter", "hw.gpu.memory.usage", "By", "GPU memory in use"): (
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used
    ),
    ("up_down_counter", "hw.gpu.memory.limit", "By", "Size of the GPU memory"): (
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total
    ),
    ("gauge", "hw.power", "W", "Power draw"): lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ("gauge", "hw.temperature", "Cel", "Temperature"): (
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    ),
}


def report_system(pipeline: Pipeline, *, host: bool) -> None:
    """Create instruments for the process, its GPUs and, if ``host``, the host. Never raises."""
    try:
        meter = pipeline.meter_provider.get_meter(*SCOPE)
        _report_gpus(meter)
        kind = import_module("opentelemetry.instrumentation.system_metrics").SystemMetricsInstrumentor
        instrumentor: Any = object.__new__(kind)  # not the one of the application, which is a singleton
        instrumentor.__init__(config={**_PROCESS_METRICS, **(_HOST_METRICS if host else {})})
        instrumentor.instrument(meter_provider=pipeline.meter_provider)
        pipeline.at_end.append(instrumentor.uninstrument)
        if host:  # the instrumentor has eight series per CPU, of which a host may have 256
            observe = partial(_observe_cpus, import_module("psutil"))
            description = "CPU time of the host, all CPUs together"
            meter.create_observable_counter("system.cpu.time", [observe], "s", description)
    except ImportError as error:
        _log.warning(
            "system metrics are off: %s; install them with: pip install opentelemetry-instrumentation-system-metrics",
            error,
        )
    except Exception:
        _log.warning("system metrics are incomplete; telemetry continues", exc_info=True)


def _observe_cpus(psutil: Any, _options: object) -> list[Observation]:
    times = psutil.cpu_times()._asdict()
    return [Observation(times[field], {"cpu.mode": mode}) for field, mode in _CPU_MODES.items() if field in times]


def _report_gpus(meter: Meter) -> None:
    try:
        nvml = import_module("pynvml")
    except ImportError:
        if os.path.exists(_NVIDIA_DRIVER):  # noqa: PTH110  Path's own raises where it may not look
            _log.warning("GPU metrics are off: install them with: pip install nvidia-ml-py")
        return
    gpus = _Gpus(nvml)
    for (kind, name, unit, description), read in _GPU_METRICS.items():
        more = {"hw.gpu.task": "general"} if name == "hw.gpu.utilization" else {}
        create = getattr(meter, f"create_observable_{kind}")
        create(name, [partial(gpus.observe, read, more)], unit, description)


class _Gpus:
    """The NVIDIA GPUs of this process.

    They are looked up when they are first read, because a program may set CUDA_VISIBLE_DEVICES after ``configure()``.
    NVML is never shut down, because this may hang with a broken driver.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._found: list[tuple[Any, dict[str, str]]] | None = None  # handles and attributes

    def observe(self, read: Callable[[Any, Any], float], more: dict[str, str], _options: object) -> list[Observation]:
        if self._found is None:
            self._found = self._look_up()
        found = []
        for handle, attributes in self._found:
            try:
                found.append(Observation(read(self._nvml, handle), {**attributes, **more}))
            except self._nvml.NVMLError as error:
                self._warn(error)
        return found

    def _look_up(self) -> list[tuple[Any, dict[str, str]]]:
        """Return the GPUs that CUDA_VISIBLE_DEVICES names by index or UUID; CUDA ignores what follows a wrong entry."""
        nvml, given, found = self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES"), []
        try:
            nvml.nvmlInit()
            indices = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            _log.info("NVML reports no GPUs: %s", error)  # e.g. there is no driver
            return []
        for entry in indices if given is None else map(str.strip, given.split(",")):
            if entry not in indices and not entry.startswith(("GPU-", "MIG-")):
                break
            try:
                by_index = entry in indices
                handle = (
                    nvml.nvmlDeviceGetHandleByIndex(int(entry)) if by_index else nvml.nvmlDeviceGetHandleByUUID(entry)
                )
                found.append((handle, self._describe(handle)))
            except nvml.NVMLError as error:
                self._warn(error)
        return found

    def _describe(self, handle: Any) -> dict[str, str]:
        nvml = self._nvml
        uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        attributes = {"hw.id": uuid, "hw.type": "gpu", "hw.vendor": "NVIDIA", "hw.model": model}
        with suppress(nvml.NVMLError):  # a part of a GPU has no index
            attributes["hw.name"] = f"GPU {nvml.nvmlDeviceGetIndex(handle)}"
        return attributes

    def _warn(self, error: Any) -> None:
        if getattr(error, "value", None) != self._nvml.NVML_ERROR_NOT_SUPPORTED:
            warn_once(_log, "a GPU cannot be read: %s (further failures are not logged)", error)
