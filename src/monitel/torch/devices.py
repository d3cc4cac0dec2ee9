"""Numbers that devices deliver later, the thread that fetches them, and captures of graphs, during which it may not."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monitel.process.failures import call_each, warn_once
from monitel.process.os_threads import Event, RLock, get_ident
from monitel.process.worker import Worker
from monitel.stats.definition import COUNT
from monitel.torch.hooks import Missing, Patch, Source, find
from monitel.torch.recording import GuardedStat

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT_S = 300.0  #: How long a device may take for a value before all that it owes are given up.
_GRAPHS = (("cuda", "CUDAGraph"), ("xpu", "XPUGraph"), ("mtia", "MTIAGraph"), ("accelerator", "Graph"))

#: Memory and events of values that were given up, and of a forked child's parent. The device may still write to them,
#: and freeing them after a failure aborts the process.
_abandoned: list[object] = []

ROOM = 8192  #: Numbers of a device that may be pending; each takes 512 bytes of its memory.
_MANY = 512  # staged numbers that are fetched without waiting for the next poll
_log = logging.getLogger("monitel.torch")
_POLL_S = 1.0
_WAITING_POLL_S = 0.001  # while a caller waits
_WAIT_S = 2.0  # how long a flush waits for pending numbers
_REQUIRED = ("Event", "Stream", "current_stream", "device", "stream")  # names in the module of a device
_REASONS = {
    "capture": "they were added during a graph capture; add the graph's output after replay() instead",
    "full": "the device is too far behind",
    "failed": "the device failed",
    "timeout": "the device has not delivered them for 5 minutes",
    "exit": "the device had not delivered them when instrumentation ended",
}


class Owner(Protocol):
    """A Stat with pending samples, or a pending event."""

    def _log_resolved(self) -> None:
        """Log whatever is complete."""


class Pending(Protocol):
    """A sample or event detail whose number is not known yet."""

    def resolve(self, value: float | None) -> Owner:
        """Set the number, None if it is lost, and return the owner, whose ``_log_resolved()`` the caller then calls."""


class CaptureGuard(Source):
    """Keeps device calls of other threads out of graph captures, which they would invalidate, and with them the job.

    See pytorch/pytorch#104555. A starting capture waits a few microseconds for a call in progress.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = RLock()
        self._running = 0

    def install(self) -> None:
        """Wrap the methods of torch's graph classes, which torch.cuda.graph() and the compiler use, too."""
        for module, name in _GRAPHS:
            graph = getattr(getattr(torch, module, None), name, None)
            if hasattr(graph, "capture_begin") and hasattr(graph, "capture_end"):
                self.hook(Patch(graph, "capture_begin", self._begin))
                self.hook(Patch(graph, "capture_end", self._end))

    @property
    def is_capturing(self) -> bool:
        """True while any capture is in progress. Takes no lock, so a signal handler may read it."""
        return self._running > 0

    @contextmanager
    def device_calls(self) -> Iterator[bool]:
        """Yield whether device calls are allowed. While they are, no capture starts before the block ends."""
        with self._lock:
            yield not self._running

    def _begin(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._count(1)
        try:
            return original(*args, **kwargs)
        except BaseException:
            self._count(-1)
            raise

    def _end(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._running = max(0, self._running + change)  # a capture may have started before install()


class Batch:
    """Values that a device delivers together. Until then it may use the memory that the batch keeps."""

    sent = math.inf  # monotonic seconds; infinity while the batch is open
    pending: Sequence[Pending]

    def has_arrived(self) -> bool:
        raise NotImplementedError

    def values(self) -> Sequence[float]:
        raise NotImplementedError


class DeviceQueue:
    """Batches that one device delivers later, in order. Any thread may add values; one thread calls ``advance()``."""

    def __init__(self, captures: CaptureGuard, lost: Callable[..., None], wake: Callable[[], None]) -> None:
        self.settled = 0  # values that were delivered or given up, and logged
        self._arrived = 0  # the same, and those that are being logged
        self._batches: deque[Batch] = deque()
        self._captures = captures
        self._lost = lost
        self._wake = wake  # has the thread call advance() now
        self._lock = RLock()  # of the batches; held briefly, never while waiting for the device
        self._device: torch.device | None = None
        self._module: Any = None  # torch's module of that device, such as torch.cuda

    @property
    def opened(self) -> int:
        """Number of values that were added so far."""
        with self._lock:
            return self._arrived + sum(len(batch.pending) for batch in self._batches)

    def is_capturing(self) -> bool:
        """Return whether operations on the current stream are recorded into a graph instead of executed."""
        check = getattr(self._module, "is_current_stream_capturing", None)
        return check is not None and check()

    def advance(self) -> bool:
        """Deliver what has arrived; return whether anything has."""
        owners: list[Owner] = []
        reason: tuple[object, ...] = ()
        before = self._arrived
        with self._captures.device_calls() as allowed:
            if allowed and self._batches:
                try:
                    with self._module.device(self._device):  # else this thread would use the first device, too
                        while self._batches and self._is_sent(self._batches[0]) and self._batches[0].has_arrived():
                            owners += self._deliver(self._batches[0])
                except Exception as error:  # the device has failed; the job is about to notice
                    reason = "failed", error
        arrived = self._arrived > before
        if not reason and self._batches and time.monotonic() > self._batches[0].sent + TIMEOUT_S:
            reason = ("timeout",)
        if reason:
            owners += self._give_up(*reason)
        self._settle(owners)
        return arrived

    def abandon(self) -> None:
        """Give up all that is pending as lost, when the thread has ended."""
        self._settle(self._give_up("exit"))

    def _is_sent(self, _batch: Batch) -> bool:
        """Return whether the device was asked for a batch; an open one is sent now."""
        return True

    def _deliver(self, batch: Batch) -> list[Owner]:
        values = batch.values()
        with self._lock:
            self._batches.popleft()
            self._arrived += len(values)
        return [pending.resolve(value) for pending, value in zip(batch.pending, values, strict=True)]

    def _give_up(self, *reason: object) -> list[Owner]:
        with self._lock:
            batches, self._batches = self._batches, deque()
            pending = [each for batch in batches for each in batch.pending]
            self._arrived += len(pending)
        _abandoned.append(batches)
        if pending:
            self._lost(len(pending), *reason)
        return [each.resolve(None) for each in pending]

    def _settle(self, owners: list[Owner]) -> None:
        """Have each owner log whatever is complete, once."""
        try:
            call_each(lambda owner: owner._log_resolved(), list(dict.fromkeys(owners)))
        finally:
            self.settled = self._arrived


class _Numbers(Batch):
    """Numbers that are staged, then copied to the host."""

    def __init__(self) -> None:
        self.entries: list[tuple[Tensor, Pending]] = []  # one element each, on the device
        self.streams: dict[Any, None] = {}  # on which the numbers are computed
        self.on_host: Any = None
        self.copied: Any = None  # event

    @property
    def pending(self) -> Sequence[Pending]:  # type: ignore[override]
        return [pending for _, pending in self.entries]

    def has_arrived(self) -> bool:
        return bool(self.copied.query())

    def values(self) -> Sequence[float]:
        values: list[float] = self.on_host.tolist()
        return values


class StagedNumbers(DeviceQueue):
    """Copies numbers on their device when they are put, and fetches all of them by one copy on a separate stream.

    A poll sends what was staged if no copy is under way, and reads a complete copy: later changes have no effect.
    """

    def __init__(
        self, device: torch.device, captures: CaptureGuard, lost: Callable[..., None], wake: Callable[[], None]
    ) -> None:
        super().__init__(captures, lost, wake)
        self._device = device
        self._module = torch.get_device_module(device)
        self._copying: Any = None  # stream
        self._put = 0

    def put(self, number: Tensor, pending: Pending) -> None:
        """Stage a tensor of one element, by one launch on the current stream; in a capture it is lost."""
        loss: tuple[object, ...] = ()
        try:
            if self.is_capturing():
                loss = ("capture",)
            elif self._put - self._arrived >= ROOM:
                loss = ("full",)
            else:
                stream = self._module.current_stream(self._device)
                copy = number.detach().reshape(1).to(torch.float64, non_blocking=True, copy=True)
                number.record_stream(stream)  # keeps its memory from being reused before the copy
        except Exception as error:
            loss = "failed", error
        except BaseException:
            pending.resolve(None)
            raise
        if loss:
            pending.resolve(None)
            self._lost(1, *loss)
            return
        with self._lock:
            if not self._batches or self._batches[-1].sent < math.inf:
                self._batches.append(_Numbers())
            staged: Any = self._batches[-1]
            staged.streams[stream] = None
            staged.entries.append((copy, pending))  # at once: a signal handler may add a sample, too
            self._put += 1
        if len(staged.entries) % _MANY == 0:
            self._wake()

    def _is_sent(self, batch: Any) -> bool:
        with self._lock:
            sent, batch.sent = batch.sent < math.inf, min(batch.sent, time.monotonic())
        if not sent:
            module, numbers = self._module, [number for number, _ in batch.entries]
            if self._copying is None:
                self._copying = module.Stream(self._device)
            for stream in batch.streams:
                written = module.Event()
                written.record(stream)
                self._copying.wait_event(written)
            with module.stream(self._copying), torch.inference_mode(False):
                batch.on_host = _pinned(len(numbers))
                batch.on_host.copy_(torch.cat(numbers), non_blocking=True)
                batch.copied = module.Event()
                batch.copied.record(self._copying)
        return bool(sent)


def _pinned(numbers: int) -> Tensor:
    try:
        return torch.empty(numbers, dtype=torch.float64, device="cpu", pin_memory=True)
    except RuntimeError:  # no pinned memory: the copy, and so the thread that fetches, waits for the device
        return torch.empty(numbers, dtype=torch.float64, device="cpu")


class Fetcher(Source):
    """The queues of the devices, and the daemon thread that serves them. Both are created on first use."""

    def __init__(self, window_size: float) -> None:
        self.captures = CaptureGuard()
        self.needs = (self.captures,)
        self._is_plain = _plain_tensor_check()
        about: Any = {"unit": "{tensor}", "description": "Tensors whose values were lost", "monotonic": True}
        self._lost = GuardedStat("training.tensors.lost", [COUNT], window_size, **about)
        self._start_empty()

    def reset(self) -> None:
        """Drop all queues in a forked child: the parent fetches the numbers in them."""
        _abandoned.append(self._queues)
        self._start_empty()

    def _start_empty(self) -> None:
        self._numbers: dict[torch.device, StagedNumbers | None] = {}
        self._queues: list[DeviceQueue] = []
        self._lock = RLock()
        self._worker = Worker("monitel-torch-devices", self._run, first=_POLL_S)
        self._serving = 0  # identity of the thread
        self._responsive = True  # False after wait() has timed out, until a device delivers again

    def end(self) -> None:
        """Wait for pending numbers as a flush does, and give up the rest."""
        self.wait()
        self._worker.stop()
        with suppress(RuntimeError):  # an event handler has called this, in the thread itself
            self._worker.join(time.monotonic() + _WAIT_S)
        queues, self._queues, self._numbers = self._queues, [], {}
        for queue in queues:
            queue.abandon()
        self._lost.flush()

    remove = end

    def read(self, tensor: torch.Tensor, pending: Pending) -> None:
        """Resolve ``pending`` with a number of torch's, or None, as in a graph capture. Never raises."""
        value = None
        try:
            staged = self.queue_of(tensor)
            if staged is None:
                value = tensor.item() if self._is_plain(tensor) else None
            elif not staged.is_capturing():
                staged.put(tensor, pending)
                return
        except Exception as error:
            self.count_lost(1, "failed", error)
        pending.resolve(value)

    def queue_of(self, tensor: torch.Tensor) -> StagedNumbers | None:
        """Return the queue for a tensor; None if its value is read immediately, as on the CPU."""
        device = tensor.device
        if device not in self._numbers:
            with self._lock:
                if device not in self._numbers:
                    self._numbers[device] = self._create(device)
        staged = self._numbers[device]
        if staged is None or tensor.numel() != 1 or tensor.is_complex() or not self._is_plain(tensor):
            return None
        return staged

    def serve(self, queue: DeviceQueue) -> bool:
        """Deliver what is put into a queue; return False if the interpreter shuts down and starts no more threads."""
        with self._lock:
            if self._worker.start():
                self._queues = [*self._queues, queue]
                return True
            return False

    def wake(self) -> None:
        """Deliver now what has arrived."""
        self._worker.wake()

    def wait(self) -> None:
        """Wait 2 s at most for all numbers put so far; after a timeout not again until a device delivers."""
        if self._serving == get_ident():  # an event handler flushes, in the thread itself
            return
        goals = [(queue, queue.opened) for queue in self._queues]
        deadline = time.monotonic() + (_WAIT_S if self._responsive else 0.0)
        pause = Event()
        while any(queue.settled < opened for queue, opened in goals):
            if self.captures.is_capturing:  # nothing arrives before it ends
                return
            if time.monotonic() >= deadline:
                self._responsive = False
                return
            self.wake()
            pause.wait(_WAITING_POLL_S)

    def count_lost(self, numbers: int, reason: str, details: object = None) -> None:
        why = _REASONS[reason] if details is None else f"{_REASONS[reason]}: {details}"
        warn_once(_log, "tensor values are lost: %s (counted in training.tensors.lost)", why, key=reason)
        for _ in range(numbers):
            self._lost.add(1.0)

    def _run(self) -> float:
        queues, self._serving = self._queues, get_ident()
        for queue in queues:
            try:
                self._responsive = queue.advance() or self._responsive
            except Exception:  # raised by an event handler
                warn_once(_log, "an event handler raised in the thread that fetches tensors", exc_info=True)
        return _POLL_S

    def _create(self, device: torch.device) -> StagedNumbers | None:
        """Return the new queue of a device; None if the device cannot have one."""
        if device.type in {"cpu", "meta"}:
            return None
        module: Any = torch.get_device_module(device)
        if not all(hasattr(module, name) for name in _REQUIRED):
            return None
        created = StagedNumbers(device, self.captures, self.count_lost, self.wake)
        return created if self.serve(created) else None


def _plain_tensor_check() -> Callable[[torch.Tensor], bool]:
    """Return a function that returns whether a tensor holds its numbers itself.

    A subclass with ``__torch_dispatch__`` may have them anywhere; within vmap one tensor stands for several.
    """
    default = torch.Tensor.__torch_dispatch__
    try:
        transform = find("torch._C._functorch", "peek_interpreter_stack")
    except Missing:
        return lambda tensor: type(tensor).__torch_dispatch__ is default
    return lambda tensor: type(tensor).__torch_dispatch__ is default and transform() is None
