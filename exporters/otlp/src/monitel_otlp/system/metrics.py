"""System metrics: OpenTelemetry's SystemMetricsInstrumentor, the CPU time of the host, and GPUs."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Observation

from monitel_otel.scope import SCOPE
from monitel_otlp.system.gpus import Gpus

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

_log = logging.getLogger("monitel.otlp")

#: The metrics of the instrumentor, as its argument ``config``.
PROCESS_METRICS: dict[str, list[str] | None] = {
    "process.cpu.time": ["user", "system"],
    "process.memory.usage": None,
    "process.disk.io": ["read", "write"],
    "process.thread.count": None,
    "process.open_file_descriptor.count": None,
}
HOST_METRICS: dict[str, list[str] | None] = {
    "system.memory.usage": ["used", "free", "cached"],
    "system.disk.io": ["read", "write"],
    "system.network.io": ["transmit", "receive"],
}
#: The values of ``cpu.mode`` by the field of psutil. On Linux the sum of all modes is the time of all CPUs.
CPU_MODES = {each: each for each in ("user", "nice", "system", "idle", "iowait", "softirq", "steal")}
CPU_MODES["irq"] = "interrupt"
_NVIDIA_DRIVER = "/dev/nvidiactl"


def report_system(meter_provider: MeterProvider, *, host: bool) -> Any:
    """Create instruments for the process and its GPUs. Never raises; a warning names a package that is missing.

    Args:
        meter_provider: The provider of the instruments. They end with it.
        host: Create instruments for the host too. One process per host is enough.

    Returns:
        The SystemMetricsInstrumentor; None if it is missing.
    """
    instrumentor: Any = None
    try:
        _report_gpus(meter_provider)
        instrumentor = _report_process(meter_provider, host=host)
        if host:
            _report_cpus(meter_provider)
    except ImportError as error:
        _log.warning(
            "system metrics are off: %s; install them with: pip install opentelemetry-instrumentation-system-metrics",
            error,
        )
    except Exception:
        _log.warning("system metrics are incomplete; telemetry continues", exc_info=True)
    return instrumentor


def _report_process(meter_provider: MeterProvider, *, host: bool) -> Any:
    """Start an instrumentor. It is not the one that the application may have started, which is a singleton."""
    kind = import_module("opentelemetry.instrumentation.system_metrics").SystemMetricsInstrumentor
    instrumentor: Any = object.__new__(kind)
    instrumentor.__init__(config={**PROCESS_METRICS, **(HOST_METRICS if host else {})})
    instrumentor.instrument(meter_provider=meter_provider)
    return instrumentor


def _report_cpus(meter_provider: MeterProvider) -> None:
    """Report the time of all CPUs together. The instrumentor has eight series per CPU, of which a host may have 256."""
    psutil = import_module("psutil")

    def observe(_options: object) -> list[Observation]:
        times = psutil.cpu_times()
        return [
            Observation(getattr(times, field), {"cpu.mode": mode})
            for field, mode in CPU_MODES.items()
            if hasattr(times, field)
        ]

    meter = meter_provider.get_meter(*SCOPE)
    meter.create_observable_counter("system.cpu.time", [observe], "s", "CPU time of the host, all CPUs together")


def _report_gpus(meter_provider: MeterProvider) -> None:
    try:
        nvml = import_module("pynvml")
    except ImportError:
        if os.path.exists(_NVIDIA_DRIVER):  # noqa: PTH110  Path's own raises where it may not look
            _log.warning("GPU metrics are off: install them with: pip install nvidia-ml-py")
        return
    Gpus(nvml).observe(meter_provider.get_meter(*SCOPE))
