"""Utilisation, memory, power and temperature of the NVIDIA GPUs that the process can see, read through NVML."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.metrics import Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter

_log = logging.getLogger("monitel.otlp")


class _Gpu(NamedTuple):
    handle: Any
    attributes: dict[str, str]


class Gpus:
    """The NVIDIA GPUs of this process, with an instrument for each measurement.

    They are looked up when they are first read, because a program may set CUDA_VISIBLE_DEVICES after ``configure()``.
    NVML is never shut down, because this may hang with a broken driver.

    Args:
        nvml: The module ``pynvml``.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._found: list[_Gpu] | None = None
        self._failed = False

    def observe(self, meter: Meter) -> None:
        """Create the instruments."""
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo
        meter.create_observable_gauge(
            "hw.gpu.utilization",
            [self._callback(lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100, task="general")],
            "1",
            "Fraction of time in which a kernel ran",
        )
        meter.create_observable_up_down_counter(
            "hw.gpu.memory.usage", [self._callback(lambda gpu: memory(gpu).used)], "By", "GPU memory in use"
        )
        meter.create_observable_up_down_counter(
            "hw.gpu.memory.limit", [self._callback(lambda gpu: memory(gpu).total)], "By", "Size of the GPU memory"
        )
        meter.create_observable_gauge(
            "hw.power", [self._callback(lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000)], "W", "Power draw"
        )
        meter.create_observable_gauge(
            "hw.temperature",
            [self._callback(lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))],
            "Cel",
            "Temperature",
        )

    def _callback(self, read: Callable[[Any], float], task: str = "") -> Callable[[object], list[Observation]]:
        more = {"hw.gpu.task": task} if task else {}

        def observe(_options: object) -> list[Observation]:
            found = []
            for gpu in self._gpus():
                try:
                    found.append(Observation(read(gpu.handle), {**gpu.attributes, **more}))
                except self._nvml.NVMLError as error:  # the other GPUs are still read
                    self._warn_once(error)
            return found

        return observe

    def _gpus(self) -> list[_Gpu]:
        if self._found is None:
            self._found = []
            try:
                self._nvml.nvmlInit()
                self._found = self._visible(self._all())
            except self._nvml.NVMLError as error:
                _log.info("NVML reports no GPUs: %s", error)  # e.g. there is no driver
        return self._found

    def _all(self) -> list[_Gpu | None]:
        """Return each GPU of the host; None for a GPU that has failed."""
        nvml = self._nvml
        gpus: list[_Gpu | None] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(self._describe(nvml.nvmlDeviceGetHandleByIndex(index)))
            except nvml.NVMLError as error:
                gpus.append(None)
                self._warn_once(error)
        return gpus

    def _visible(self, gpus: list[_Gpu | None]) -> list[_Gpu]:
        """Return the GPUs that CUDA_VISIBLE_DEVICES names; CUDA ignores what follows a wrong entry."""
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        if given is None:
            return [gpu for gpu in gpus if gpu is not None]
        visible: list[_Gpu] = []
        for entry in map(str.strip, given.split(",")):
            named = self._named(entry, gpus)
            if len(named) != 1 or named[0] in visible:
                break
            visible += [gpu for gpu in named if gpu is not None]
        return visible

    def _named(self, entry: str, gpus: list[_Gpu | None]) -> list[_Gpu | None]:
        """Return the GPUs that an index, the UUID of a part of a GPU, or the beginning of a UUID names."""
        if entry.isdecimal():
            return gpus[int(entry) : int(entry) + 1]
        if entry.startswith("MIG-"):
            try:
                return [self._describe(self._nvml.nvmlDeviceGetHandleByUUID(entry))]
            except self._nvml.NVMLError:
                return []
        return [gpu for gpu in gpus if entry and gpu is not None and gpu.attributes["hw.id"].startswith(entry)]

    def _describe(self, handle: Any) -> _Gpu:
        nvml = self._nvml
        attributes = {
            "hw.id": _text(nvml.nvmlDeviceGetUUID(handle)),
            "hw.type": "gpu",
            "hw.vendor": "NVIDIA",
            "hw.model": _text(nvml.nvmlDeviceGetName(handle)),
        }
        with suppress(nvml.NVMLError):  # a part of a GPU has no index
            attributes["hw.name"] = f"GPU {nvml.nvmlDeviceGetIndex(handle)}"
        return _Gpu(handle, attributes)

    def _warn_once(self, error: Any) -> None:
        unsupported = getattr(error, "value", None) == self._nvml.NVML_ERROR_NOT_SUPPORTED
        if not unsupported and not self._failed:
            self._failed = True
            _log.warning("a GPU cannot be read: %s (further failures are not logged)", error)


def _text(value: str | bytes) -> str:
    """Return a text of NVML, which old versions of the module return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
