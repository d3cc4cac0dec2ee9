"""Checkpoints that torch.save, torch.load and torch.distributed.checkpoint save and load."""

from __future__ import annotations

import io
import os
import sys
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from monitel.process.import_hook import AfterImport
from monitel.process.os_threads import get_ident
from monitel.torch.hooks import Missing, PackagePatch, Source
from monitel.training import activities
from monitel.training.checkpoints import LOAD, SAVE, Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

_DISTRIBUTED = "torch.distributed.checkpoint"
_INCLUDE_FILES = frozenset(("data", "compile"))  # activities: files that are read or written there are not checkpoints


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
