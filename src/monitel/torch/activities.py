"""Activities of the training thread in torch, with their events: compilations, checkpoints, process groups."""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import distributed

from monitel import clock
from monitel.event import Severity
from monitel.process.import_hook import AfterImport
from monitel.process.os_threads import Lock, get_ident
from monitel.profiler import record_function
from monitel.torch.hooks import COMPILER, Missing, PackagePatch, Patch, Source, find
from monitel.torch.recording import emit_at, training_activity
from monitel.training import activities
from monitel.training.checkpoints import LOAD, SAVE, Checkpoint
from monitel.training.counters import training_counter
from monitel.training.step import get_step

_MAX_STARTED = 64  # as many as the finished compilations that torch keeps
_FIELDS = {
    "compile.id": "compile_id",
    "compile.function": "co_name",
    "compile.file": "co_filename",
    "compile.line": "co_firstlineno",
    "compile.reason": "recompile_reason",
    "compile.graph_breaks": "num_graph_breaks",
    "compile.failure": "fail_type",
    "compile.failure.reason": "fail_reason",
}
_DISTRIBUTED = "torch.distributed.checkpoint"
_INCLUDE_FILES = frozenset(("data", "compile"))  # activities: files that are read or written there are not checkpoints
_KEY = "pytorch.wait_counter.c10d."
_SET_UPS = frozenset(_KEY + name for name in ("init_process_group", "new_group", "split_group", "shrink_group"))


class Compilations(Source):
    """Reports each compilation, including one that raises, by the compiler's context manager around it.

    Starts are queued, so that one that hangs is logged. torch keeps the latest 64 finished ones, which are polled.
    Compilations that start while another one runs are part of its range. Installing does not load the compiler.
    """

    def install(self) -> None:
        self._lock = Lock()
        self._running = 0  # compilations under way
        self._started: deque[tuple[datetime, int | None, dict[str, str]]] = deque(maxlen=_MAX_STARTED)
        self._steps: deque[tuple[str, int | None]] = deque(maxlen=_MAX_STARTED)  # id and step of each one
        self._list: Callable[[], list[Any]] | None = None
        self._last = self._latest()[-1:]
        self._compiler = AfterImport(COMPILER, self._wrap)

    def remove(self) -> None:
        self._compiler.cancel()
        self.unhook()

    def poll(self) -> None:
        while self._started:
            timestamp, step, data = self._started.popleft()
            emit_at(step, "torch.compile.started", data, timestamp=timestamp)
        known = self._latest()
        new = known
        for number, each in enumerate(known):
            if self._last and each is self._last[0]:
                new = known[number + 1 :]
        self._last = known[-1:] or self._last
        for each in new:
            self._report(each)

    def _wrap(self) -> None:
        self.hook(Patch(find(f"{COMPILER}.callback", "callback_handler"), "install_callbacks", self._compiling))

    @contextmanager
    def _compiling(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        """A compiler lock is held: range listeners are fast, event handlers may not be."""
        trigger, compile_id = (*args, *kwargs.values(), None, None)[:2]
        data = {"compile.id": str(compile_id), "compile.trigger": str(getattr(trigger, "name", None)).lower()}
        step = get_step()
        self._steps.append((str(compile_id), step))
        with self._lock:
            self._running += 1
            first = self._running == 1
        try:
            if first:
                self._started.append((clock.now(), step, data))
            range_ = record_function("torch.compile", data) if first else nullcontext()
            with range_, training_activity("compile"), original(*args, **kwargs) as value:
                yield value
        finally:
            with self._lock:
                self._running -= 1

    def _latest(self) -> list[Any]:
        """Return the latest compilations; none until the compiler is loaded. An import would wait for that."""
        self._list = self._list or getattr(sys.modules.get(f"{COMPILER}.utils"), "get_compilation_metrics", None)
        return [] if self._list is None else self._list()

    def _report(self, metrics: Any) -> None:
        values: dict[str, Any] = {key: getattr(metrics, field, None) for key, field in _FIELDS.items()}
        data = {key: value for key, value in values.items() if isinstance(value, (str, int, float))}
        seconds = None if (taken_us := getattr(metrics, "duration_us", None)) is None else taken_us / 1e6
        if seconds is not None:
            data["compile.duration"] = seconds
        end_us = getattr(metrics, "end_time_us", None) or time.time_ns() // 1000
        again = "compile.reason" in data
        if again:
            training_counter("training.recompilations").add(1)
            training_counter("training.recompilation.time").add(max(seconds or 0.0, 0.0))
        steps = [step for started, step in list(self._steps) if started == str(values["compile.id"])]
        emit_at(
            steps[-1] if steps else get_step(),
            "torch.recompile" if again else "torch.compile",
            data,
            severity=Severity.ERROR if "compile.failure" in data else Severity.WARN if again else Severity.INFO,
            timestamp=datetime.fromtimestamp(end_us / 1e6),  # noqa: DTZ006  naive, as torch's
        )


class Checkpoints(Source):
    """Counts the time in which the training thread saves and loads checkpoints, and emits an event for each one.

    Files within ``data`` and ``compile``, and those loaded in another thread or in a worker, are not checkpoints.
    """

    def install(self) -> None:
        self.hook(PackagePatch("torch", "save", _save))
        self.hook(PackagePatch("torch", "load", _load))
        self._import = AfterImport(_DISTRIBUTED, self._wrap_distributed)

    def remove(self) -> None:
        self._import.cancel()
        self.unhook()

    def _wrap_distributed(self) -> None:
        calls: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(("save", "save_state_dict"), partial(_in_folder, SAVE)),
            **dict.fromkeys(("load", "load_state_dict"), partial(_in_folder, LOAD)),
            "async_save": _save_asynchronously,
        }
        for name, call in calls.items():
            with suppress(Missing):  # a deprecated function that this version of torch lacks
                self.hook(PackagePatch(_DISTRIBUTED, name, call))


def _save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _checkpoint(SAVE, _file(args[1] if len(args) > 1 else kwargs.get("f"))):
        return original(*args, **kwargs)


def _load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _checkpoint(LOAD, _file(args[0] if args else kwargs.get("f"))):
        return original(*args, **kwargs)


def _in_folder(activity: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _checkpoint(activity, _folder(args, kwargs)):
        return original(*args, **kwargs)


def _save_asynchronously(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    end = None
    with _checkpoint(SAVE, _folder(args, kwargs)) as checkpoint:
        result = original(*args, **kwargs)
        future = getattr(result, "upload_completion", result)
        if checkpoint is not None and hasattr(future, "add_done_callback"):
            end = checkpoint.defer()
    if end is not None:  # after the block, whose duration is known now: the future may have ended
        ended = end
        future.add_done_callback(lambda done: ended(CancelledError() if done.cancelled() else done.exception()))
    return result


def _checkpoint(activity: str, path: object) -> AbstractContextManager[Checkpoint | None]:
    thread, current, _ = activities.position()
    if thread == get_ident():
        is_checkpoint = current not in _INCLUDE_FILES
    else:
        is_checkpoint = bool(thread) and activity == SAVE and not _is_part_of_another()
    return Checkpoint(activity, path) if is_checkpoint else nullcontext()


def _is_part_of_another() -> bool:
    """Return whether torch.distributed.checkpoint has called the wrapper, in its threads, where it writes files."""
    caller = sys._getframe(3).f_back  # behind this function, _checkpoint(), the call and the wrapper
    return caller is not None and f"{caller.f_globals.get('__name__')}.".startswith(f"{_DISTRIBUTED}.")


def _file(file: Any) -> object:
    """Return a path or an open file; None for any other object, such as a buffer or a compressed file."""
    if isinstance(file, (str, os.PathLike)):
        return file
    with suppress(Exception):  # of another class's attributes
        inner = getattr(file, "file", file)  # that of a tempfile.NamedTemporaryFile
        if isinstance(getattr(inner, "raw", inner), io.FileIO):
            return inner
    return None


def _folder(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return the path of a checkpoint of torch.distributed.checkpoint, or None if it is unknown."""
    storages = (kwargs.get("storage_writer"), kwargs.get("storage_reader"), *args[1:2])
    for found in (kwargs.get("checkpoint_id"), *storages, *(_path_of(each) for each in storages)):
        if isinstance(found, (str, os.PathLike)):
            return found
    return None


def _path_of(storage: object) -> object:
    with suppress(Exception):  # of another class's attributes
        return getattr(storage, "checkpoint_id", None) or getattr(storage, "path", None)
    return None


class ProcessGroups(Source):
    """Counts the set-up of process groups in the training thread as ``init``, including one that raises.

    torch times these functions with wait counters. These are wrapped, so each call counts, wherever it was imported to.
    """

    def install(self) -> None:
        """The wait counter's key ends with the name of the function (torch/distributed/c10d_logger.py)."""
        find("torch.distributed.c10d_logger", "_WaitCounter")
        self.hook(PackagePatch(distributed.__name__, "init_device_mesh", _set_up))
        self.hook(Patch(sys.modules["torch.distributed.c10d_logger"], "_WaitCounter", _counter))


def _counter(original: Callable[[str], Any], key: str) -> Any:
    counter = original(key)
    if key not in _SET_UPS:
        return counter

    @contextmanager
    def guard() -> Iterator[None]:
        with training_activity("init"), counter.guard():
            yield

    return SimpleNamespace(guard=guard)


def _set_up(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with training_activity("init"):
        return original(*args, **kwargs)
