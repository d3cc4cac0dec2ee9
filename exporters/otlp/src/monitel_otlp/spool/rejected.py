"""Requests that a backend has refused permanently, in the folder ``rejected`` of a spool.

Each is a protobuf message ``logs-<creation time>-<items>-<number>.binpb``. A file ``.txt`` beside it holds the reason,
and a file ``.items`` the weights and the number of synthetic spans, if there are any.
"""

from __future__ import annotations

import re
import struct
from contextlib import closing, suppress
from itertools import count
from typing import TYPE_CHECKING

from monitel_otlp.messages.request import SIGNALS, FrozenRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from monitel_otlp.spool.folder import Folder

FOLDER = "rejected"
MESSAGE = ".binpb"
_REASON, _ITEMS = ".txt", ".items"
_NAME = re.compile(rf"({'|'.join(SIGNALS)})-(\d{{1,20}})-(\d{{1,10}})-\d+")
_SYNTHETIC = struct.Struct("<I")  # followed by the weights


def is_message(name: str) -> bool:
    """Return True if a file with this name holds a refused request."""
    return name.endswith(MESSAGE) and _NAME.fullmatch(name.removesuffix(MESSAGE)) is not None


def set_aside(folder: Folder, request: FrozenRequest, reason: str) -> Path:
    """Write a request and the reason.

    Returns:
        Path of the message.

    Raises:
        OSError: The write failed, and no file remains.
        SpoolError: ``rejected`` is a link, or belongs to another user.
    """
    with closing(folder.subfolder(FOLDER, create=True)) as rejected:
        taken = {name.partition(".")[0] for name in rejected.names()}
        stem = f"{request.signal}-{request.created_ns}-{request.items}"  # not unique for parts of a request
        name = next(name for number in count(1) if (name := f"{stem}-{number}") not in taken)
        files = {_REASON: reason.encode("utf-8", "backslashreplace")}
        if request.weights or request.synthetic:
            files[_ITEMS] = _SYNTHETIC.pack(request.synthetic) + request.weights
        files[MESSAGE] = request.body  # last: a message without its other files would be incomplete
        try:
            for suffix, content in files.items():
                rejected.write_new(name + suffix, content)
        except BaseException:
            for suffix in files:
                rejected.unlink(name + suffix)
            folder.remove_subfolder(FOLDER)
            raise
        return rejected.path / (name + MESSAGE)


def take_back(folder: Folder, append: Callable[[FrozenRequest], object]) -> None:
    """Pass every refused request, oldest first, to a function, and remove it.

    Args:
        folder: The folder of the spool.
        append: Called with each request. If it raises, the request is not removed.

    Raises:
        OSError: A file cannot be read, or ``append`` has raised it.
        SpoolError: ``rejected`` is a link, or belongs to another user.
    """
    try:
        rejected = folder.subfolder(FOLDER, create=False)
    except FileNotFoundError:
        return
    with closing(rejected):
        for name in _by_age(rejected.names()):
            append(_read(rejected, name))
            for suffix in (MESSAGE, _REASON, _ITEMS):
                rejected.unlink(name + suffix)
    folder.remove_subfolder(FOLDER)


def _by_age(names: Iterable[str]) -> list[str]:
    stems = [name.removesuffix(MESSAGE) for name in names if is_message(name)]
    return sorted(stems, key=lambda stem: (int(stem.split("-")[1]), stem))


def _read(rejected: Folder, name: str) -> FrozenRequest:
    signal, created_ns, items, _ = name.split("-")
    synthetic, weights = 0, b""
    with suppress(FileNotFoundError):
        content = rejected.read(name + _ITEMS)
        (synthetic,) = _SYNTHETIC.unpack_from(content.ljust(_SYNTHETIC.size, b"\0"))
        weights = content[_SYNTHETIC.size :]
    body = rejected.read(name + MESSAGE)
    return FrozenRequest(signal, body, int(items), int(created_ns), weights, synthetic)
