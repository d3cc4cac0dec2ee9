"""A device for torch that does nothing before it is told to: what waits for it is seen, and counted.

It is torch's own extension point, a PrivateUse1 backend in Python, so that the code under test meets real tensors, of
``device="later"``, with streams and events as CUDA has them. Each operation is put at the end of the current stream.
Call :func:`start` first.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = count()
_PRIVATE_USE_1 = 20  # c10::DeviceType


class Stream(torch.Stream):  # type: ignore[misc]  # torch is not there for mypy
    """Operations in the order in which they are to be done."""

    def __new__(cls, _device: object = None) -> Stream:  # noqa: D102, PYI034  the class says it
        made: Stream = super().__new__(cls, stream_id=next(_numbers), device_index=0, device_type=_PRIVATE_USE_1)
        return made

    def __init__(self, _device: object = None) -> None:
        self.operations: deque[Callable[[], bool]] = deque()  # each says whether it is done
        later.streams.append(self)

    def put(self, operation: Callable[[], object]) -> None:
        """Do this when all before it is done."""

        def done() -> bool:
            operation()
            return True

        self.operations.append(done)

    def wait_event(self, event: Event) -> None:
        """What comes after this waits for the event, as it is recorded now."""
        number = event.number
        self.operations.append(lambda: number in event.reached)

    def run(self) -> bool:
        """Do what can be done; tells whether that was anything."""
        before = len(self.operations)
        while self.operations and self.operations[0]():
            self.operations.popleft()
        return len(self.operations) < before


class Event:
    """A place in a stream."""

    def __init__(self) -> None:
        self.number = -1  # of the latest record()
        self.reached = {-1}

    def record(self, stream: Stream) -> None:
        """Be at the end of a stream."""
        number = self.number = next(_numbers)
        stream.put(lambda: self.reached.add(number))

    def query(self) -> bool:
        """Whether the stream has come there."""
        later.queries += 1
        if later.answers:
            later.run()
        if later.failure is not None:
            raise later.failure
        return self.number in self.reached


class Later:
    """``torch.later``."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self._lock = threading.RLock()
        self._current = threading.local()
        self.reset()

    def reset(self) -> None:
        """Forget what was put, and all counts."""
        self.syncs = self.queries = self.launches = 0
        self.capturing = False
        self.failure: Exception | None = None
        self.recorded: list[tuple[int, Any]] = []  # whose memory a stream uses
        self.answers = False  # whether all is done by the time somebody asks
        for stream in self.streams:
            stream.operations.clear()

    def run(self) -> None:
        """Have the device do all that it was given."""
        with self._lock:
            while sum(stream.run() for stream in reversed(self.streams)):  # each is ahead of those it does not wait for
                pass

    def launch(self, operation: Callable[[], object]) -> None:
        """Put an operation into the current stream."""
        if self.failure is not None:
            raise self.failure
        self.launches += 1
        self.current.put(operation)

    @property
    def current(self) -> Any:
        """The stream that this thread's operations go into; at first all threads' is the same."""
        return getattr(self._current, "stream", self.streams[0])

    def current_stream(self, _device: object = None) -> Any:
        """The same, as torch's modules call it."""
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Make it the current one."""
        previous = self.current
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = previous

    def is_current_stream_capturing(self) -> bool:
        """Whether a graph is being captured."""
        return self.capturing

    def is_available(self) -> bool:
        """It is there: torch asks."""
        return True

    def is_initialized(self) -> bool:
        """It is ready: torch asks."""
        return True

    def current_device(self) -> int:
        """There is one: torch asks."""
        return 0

    def device_count(self) -> int:
        """There is one: torch asks."""
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It has no random numbers: torch tells."""


later = Later()
later.Stream, later.Event = Stream, Event  # type: ignore[attr-defined]  # in the class they would hide the names
Stream()


@cache
def start() -> None:
    """Make it known to torch, for the rest of the process: some of torch's own listings show it then."""
    _setup_privateuseone_for_python_backend("later", later)


class LaterTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor whose numbers are on the device, which is where ``host`` is."""

    host: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # as Parameter: what Python sees is the device's alone

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> LaterTensor:  # noqa: D102, PYI034  the class says it
        with torch.inference_mode(host.is_inference()):  # a view is what its base is
            made: LaterTensor = torch._C._acc.create_empty_tensor(list(host.shape), host.dtype)
        made.__class__ = LaterTensor
        return made

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host


def on_later(value: Any, dtype: Any = None) -> LaterTensor:
    """A tensor on the device, with this value already."""
    return LaterTensor(torch.tensor(value, dtype=dtype))


def _implements(name: str) -> Callable[[Any], Any]:
    register: Callable[[Any], Any] = torch.library.impl(f"aten::{name}", "privateuseone")
    return register


@_implements("empty.memory_format")
def _empty(size: Any, dtype: Any = None, **_: Any) -> LaterTensor:
    return LaterTensor(torch.full(size, torch.nan, dtype=dtype))


@_implements("detach")
def _detach(tensor: LaterTensor) -> LaterTensor:
    return LaterTensor(tensor.host)


@_implements("select.int")
def _select(tensor: LaterTensor, dim: int, index: int) -> LaterTensor:
    return LaterTensor(tensor.host.select(dim, index))


@_implements("slice.Tensor")
def _slice(tensor: LaterTensor, *place: Any) -> LaterTensor:
    return LaterTensor(torch.ops.aten.slice(tensor.host, *place))


@_implements("view")
def _view(tensor: LaterTensor, size: Any) -> LaterTensor:
    return LaterTensor(tensor.host.view(size))


@_implements("fill_.Scalar")
def _fill(tensor: LaterTensor, value: float) -> LaterTensor:
    later.launch(lambda: tensor.host.fill_(value))
    return tensor


@_implements("record_stream")
def _record_stream(tensor: LaterTensor, stream: Any) -> None:
    later.recorded.append((tensor.host.data_ptr(), stream))


@_implements("_copy_from")
def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """Copy within the device, or between it and the host."""
    there, here = (each.host if isinstance(each, LaterTensor) else each for each in (source, target))
    later.launch(lambda: here.copy_(there))
    if not non_blocking:
        _wait()
    return target


@_implements("_local_scalar_dense")
def _item(tensor: LaterTensor) -> Any:
    _wait()
    return tensor.host.item()


def _wait() -> None:
    """What telemetry must never do."""
    later.syncs += 1
    later.run()
