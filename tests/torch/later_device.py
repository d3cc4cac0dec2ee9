"""A torch device that executes nothing before a test asks for it, and counts every call that waits.

The device is a PrivateUse1 backend in Python, torch's extension point, so the code under test gets real tensors with
``device="later"``, and streams and events like those of CUDA. Each operation is queued in the current stream. Call
:func:`start` first.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_numbers = count()
_PRIVATE_USE_1 = 20  # c10::DeviceType


def _index(device: Any) -> int:
    return int(device if isinstance(device, int) else device.index)


class Stream(torch.Stream):  # type: ignore[misc]  # torch is untyped for mypy
    """A queue of operations, executed in order."""

    def __new__(cls, device: Any = None) -> Stream:  # noqa: PYI034  documented in the class
        index = later.current_device() if device is None else _index(device)
        made: Stream = super().__new__(cls, stream_id=next(_numbers), device_index=index, device_type=_PRIVATE_USE_1)
        return made

    def __init__(self, _device: object = None) -> None:
        self.operations: deque[Callable[[], bool]] = deque()  # each returns whether it is complete
        later.streams.append(self)

    def put(self, operation: Callable[[], object]) -> None:
        def done() -> bool:
            operation()
            return True

        self.operations.append(done)

    def wait_event(self, event: Event) -> None:
        """Have later operations wait for the latest recording of an event."""
        number = event.number
        self.operations.append(lambda: number in event.reached)

    def run(self) -> bool:
        """Execute operations until one waits; return whether any was executed."""
        before = len(self.operations)
        while self.operations and self.operations[0]():
            self.operations.popleft()
        return len(self.operations) < before


class Event:
    """A marker in a stream, with the device's time at which the stream has reached it."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.timing = enable_timing
        self.index = -1  # of the device, from the first record() on
        self.number = -1  # of the latest record()
        self.reached = {-1: 0.0}  # the time of each recording

    def record(self, stream: Stream) -> None:
        """Put the marker at the end of a stream, which is on the device of the first one."""
        if later.failure is not None:
            raise later.failure
        if self.index not in {-1, stream.device_index}:
            raise RuntimeError(f"an event of device {self.index} cannot be recorded on device {stream.device_index}")
        self.index = stream.device_index
        later.used.add(self.index)
        number = self.number = next(_numbers)
        stream.put(lambda: self.reached.update({number: later.clock_ms}))

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two recordings that were reached."""
        if not (self.timing and end.timing and self.number in self.reached and end.number in end.reached):
            raise RuntimeError("an event has not been reached, or has no time")
        if self.index != end.index:
            raise RuntimeError("the events are on different devices")
        later.used.add(later.current_device())
        return end.reached[end.number] - self.reached[self.number]

    def query(self) -> bool:
        """Return whether the stream has reached the marker."""
        later.queries += 1
        later.used.add(later.current_device())
        if later.answers:
            later.run()
        if later.failure is not None:
            raise later.failure
        return self.number in self.reached


class Later:
    """``torch.later``. Each thread has a current device, and on each device a current stream."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self._default: dict[int, Stream] = {}
        self._lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        self.syncs = self.queries = 0
        self._launches: Counter[int] = Counter()  # by thread
        self.capturing = False
        self.failure: Exception | None = None
        self.recorded: list[tuple[int, Any]] = []  # addresses of memory that a stream uses, with the stream
        self.clock_ms = 0.0  # the device's time, which work() advances
        self.answers = False  # whether a query executes all operations first
        self.used: set[int] = set()  # devices; on a GPU the first use takes half a gigabyte of its memory
        self.place: int | None = None  # the device on which work() is queued, instead of the current one
        self.first = 0  # the current device of a new thread
        self._thread = threading.local()  # the current device and streams of each thread
        for stream in self.streams:
            stream.operations.clear()

    def run(self) -> None:
        with self._lock, torch.inference_mode():  # which may change the memory of any tensor
            while sum(stream.run() for stream in reversed(self.streams)):  # in reverse, to run a stream ahead of others
                pass

    def launch(self, operation: Callable[[], object]) -> None:
        if self.failure is not None:
            raise self.failure
        self._launches[threading.get_ident()] += 1
        self.current_stream(self.place).put(operation)

    @property
    def launches(self) -> int:
        """The number of operations that this thread has queued; the thread that fetches numbers queues some, too."""
        return self._launches[threading.get_ident()]

    def work(self, milliseconds: float) -> None:
        """Queue an operation in the current stream that takes so long."""

        def take() -> None:
            self.clock_ms += milliseconds

        self.launch(take)

    def current_stream(self, device: Any = None) -> Any:
        """Return the current stream of this thread on a device; by default all threads have the same one."""
        index = self.current_device() if device is None else _index(device)
        if index not in self._default:
            self._default[index] = Stream(index)
        return getattr(self._thread, "streams", self._default).get(index, self._default[index])

    def _choose(self, stream: Stream) -> None:
        self._thread.streams = {**getattr(self._thread, "streams", {}), stream.device_index: stream}
        if stream.device_index != self.current_device():
            self._thread.device = stream.device_index
            self.used.add(stream.device_index)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Make a stream, and its device, the current ones within a block. Both changes use the device, as in CUDA."""
        outer, previous = self.current_stream(), self.current_stream(stream.device_index)
        self._choose(stream)
        try:
            yield
        finally:
            self._choose(previous)
            self._choose(outer)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Make a device the current one within a block. Returning to the previous one does not use that."""
        previous = self.current_device()
        self._thread.device = _index(device)
        try:
            yield
        finally:
            self._thread.device = previous

    def is_current_stream_capturing(self) -> bool:
        if self.failure is not None:  # CUDA reports it at each call
            raise self.failure
        return self.capturing

    # The following methods are called by torch. Tensors are on the first device.

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return getattr(self._thread, "device", self.first)

    def device_count(self) -> int:
        return 2

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return []

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing."""


later = Later()
later.Stream, later.Event = Stream, Event  # type: ignore[attr-defined]  # as class attributes they would hide the classes
later.current_stream(0)


@cache
def start() -> None:
    """Register the device with torch for the rest of the process. Some of torch's listings then include it."""
    _setup_privateuseone_for_python_backend("later", later)


@contextmanager
def idle() -> Iterator[Later]:
    """Provide the device without operations."""
    start()
    later.reset()
    yield later
    later.reset()
    # Memory that a real device may still use is kept until the end of the process, with the Stats of its numbers.
    getattr(sys.modules.get("monitel.torch.devices"), "_abandoned", []).clear()


class LaterTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor on the device. Its numbers are in ``host``."""

    host: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # as for Parameter

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> LaterTensor:  # noqa: PYI034  documented in the class
        with torch.inference_mode(host.is_inference()):  # a view is an inference tensor if its base is
            made: LaterTensor = torch._C._acc.create_empty_tensor(list(host.shape), host.dtype)
        made.__class__ = LaterTensor
        return made

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host


def on_later(value: Any, dtype: Any = None) -> LaterTensor:
    """Return a tensor on the device with this value, without a queued operation."""
    return LaterTensor(torch.tensor(value, dtype=dtype))


def _cat(tensors: Any, dim: int = 0) -> LaterTensor:
    joined = LaterTensor(torch.full([len(tensors)], torch.nan, dtype=tensors[0].dtype))
    later.launch(lambda: joined.host.copy_(torch.cat([each.host for each in tensors], dim)))
    return joined


def _fill(tensor: LaterTensor, value: float) -> LaterTensor:
    later.launch(lambda: tensor.host.fill_(value))
    return tensor


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """Copy within the device, or between the device and the host."""
    there, here = (each.host if isinstance(each, LaterTensor) else each for each in (source, target))
    later.launch(lambda: here.copy_(there))
    if not non_blocking:
        _wait()
    return target


def _item(tensor: LaterTensor) -> Any:
    _wait()
    return tensor.host.item()


def _wait() -> None:
    """Wait for the device, which telemetry must never do."""
    later.syncs += 1
    later.run()


OPERATIONS: dict[str, Callable[..., Any]] = {
    "empty.memory_format": lambda size, dtype=None, **_: LaterTensor(torch.full(size, torch.nan, dtype=dtype)),
    "empty_strided": lambda size, _stride, dtype=None, **_: LaterTensor(torch.full(size, torch.nan, dtype=dtype)),
    "cat": _cat,
    "detach": lambda tensor: LaterTensor(tensor.host),
    "view": lambda tensor, size: LaterTensor(tensor.host.view(size)),
    "fill_.Scalar": _fill,
    "record_stream": lambda tensor, stream: later.recorded.append((tensor.host.data_ptr(), stream)),
    "_copy_from": _copy_from,
    "_local_scalar_dense": _item,
}
for _name, _operation in OPERATIONS.items():
    torch.library.impl(f"aten::{_name}", "privateuseone")(_operation)
