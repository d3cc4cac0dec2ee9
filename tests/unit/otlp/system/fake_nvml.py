"""A stand-in for the module ``pynvml``, because the machines of the tests have no GPU."""

from collections.abc import Callable
from types import SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    """An error with a number, as the real one."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """GPUs 0 to 3, with a part of GPU 0. A handle is a UUID, as bytes: old versions return bytes.

    Attributes:
        failing: Functions that raise, by the function and the UUID, with the number of the error.
        on_init: Called by ``nvmlInit``.
    """

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    GPUS = (b"GPU-aaaa-0", b"GPU-aabb-1", b"GPU-cccc-2", b"GPU-dddd-3")
    PART = b"MIG-eeee"

    def __init__(self) -> None:
        self.failing: dict[tuple[str, bytes], int] = {}
        self.on_init: Callable[[], object] = lambda: None

    def nvmlInit(self) -> None:  # noqa: N802  NVML's name, as all below
        self.on_init()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.GPUS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> bytes:  # noqa: N802
        return self._answer("nvmlDeviceGetHandleByIndex", self.GPUS[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> bytes:  # noqa: N802
        if uuid.encode() != self.PART:
            raise NVMLError(6)
        return self.PART

    def nvmlDeviceGetUUID(self, handle: bytes) -> bytes:  # noqa: N802
        return self._answer("nvmlDeviceGetUUID", handle)

    def nvmlDeviceGetName(self, handle: bytes) -> str:  # noqa: N802
        self._answer("nvmlDeviceGetName", handle)
        return "NVIDIA H200"

    def nvmlDeviceGetIndex(self, handle: bytes) -> int:  # noqa: N802
        if handle == self.PART:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return self.GPUS.index(handle)

    def nvmlDeviceGetUtilizationRates(self, handle: bytes) -> SimpleNamespace:  # noqa: N802
        self._answer("nvmlDeviceGetUtilizationRates", handle)
        return SimpleNamespace(gpu=20 + self._number(handle), memory=7)

    def nvmlDeviceGetMemoryInfo(self, handle: bytes) -> SimpleNamespace:  # noqa: N802
        self._answer("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(used=(1 + self._number(handle)) * GIB, total=141 * GIB)

    def nvmlDeviceGetPowerUsage(self, handle: bytes) -> int:  # noqa: N802
        self._answer("nvmlDeviceGetPowerUsage", handle)
        return 650_500

    def nvmlDeviceGetTemperature(self, handle: bytes, sensor: int) -> int:  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        self._answer("nvmlDeviceGetTemperature", handle)
        return 60 + self._number(handle)

    def _answer(self, function: str, handle: bytes) -> bytes:
        if (error := self.failing.get((function, handle))) is not None:
            raise NVMLError(error)
        return handle

    def _number(self, handle: bytes) -> int:
        return (*self.GPUS, self.PART).index(handle)
