"""A stand-in for the module ``pynvml``, because the machines of the tests have no GPU."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GIB = 2**30


class NVMLError(Exception):
    """An error with a number, as the real one."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """GPUs 0 to 3, with a part of GPU 0. A handle is a UUID; ``failing`` has the errors, by function and UUID."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    GPUS = ("GPU-aaaa-0", "GPU-aabb-1", "GPU-cccc-2", "GPU-dddd-3")
    PART = "MIG-eeee"
    #: What each function returns for the handle with a number; the part has the number 4.
    _RESULTS: dict[str, Callable[[int], Any]] = {  # noqa: RUF012  it is constant
        "UUID": lambda number: (*FakeNvml.GPUS, FakeNvml.PART)[number],
        "Name": lambda _: "NVIDIA H200",
        "UtilizationRates": lambda number: SimpleNamespace(gpu=20 + number, memory=7),
        "MemoryInfo": lambda number: SimpleNamespace(used=(1 + number) * GIB, total=141 * GIB),
        "PowerUsage": lambda _: 650_500,
        "Temperature": lambda number: 60 + number,
    }

    def __init__(self) -> None:
        self.failing: dict[tuple[str, str], int] = {("nvmlDeviceGetIndex", self.PART): self.NVML_ERROR_NOT_SUPPORTED}
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: len(self.GPUS)
        self.nvmlDeviceGetHandleByIndex = lambda index: self._answer("HandleByIndex", self.GPUS[index])
        self.nvmlDeviceGetIndex = lambda handle: self.GPUS.index(self._answer("Index", handle))

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802  NVML's name
        if uuid not in (*self.GPUS, self.PART):
            raise NVMLError(6)
        return uuid

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind = name.removeprefix("nvmlDeviceGet")
        if kind not in self._RESULTS:
            raise AttributeError(name)
        number = (*self.GPUS, self.PART).index
        return lambda handle, *_sensor: self._RESULTS[kind](number(self._answer(kind, handle)))

    def _answer(self, kind: str, handle: str) -> str:
        if (error := self.failing.get((f"nvmlDeviceGet{kind}", handle))) is not None:
            raise NVMLError(error)
        return handle
