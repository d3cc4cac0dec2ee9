"""Files, as memory too, safe from an application that closes all descriptors and opens others of the same numbers."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

if find_spec("mmap") is not None:  # WebAssembly has none
    from mmap import mmap


_HIGH = 900  # the lowest number: those of the application's files are hardly ever that high


def keep_high(descriptor: int) -> int:
    """Return another number for a descriptor, as high as the limit of open files permits, and close the first one."""
    kept = -1
    with suppress(ImportError, OSError):  # Windows has no fcntl; or the limit is lower
        from fcntl import F_DUPFD_CLOEXEC, fcntl

        kept = fcntl(descriptor, F_DUPFD_CLOEXEC, _HIGH)
    if kept < 0:
        return descriptor
    os.close(descriptor)
    return kept


def map_file(descriptor: int, size: int) -> Any:
    """Return a file as memory. Its space must be reserved: writing to a page without space ends the process."""
    if sys.version_info >= (3, 13):
        return mmap(descriptor, size, trackfd=False)
    number = os.dup(descriptor)  # the lowest free one, which the mapping gets
    os.close(number)
    mapping = _Mapping(descriptor, size)
    with suppress(OSError):
        if os.path.samestat(os.fstat(number), status := os.fstat(descriptor)):  # no other thread was faster
            mapping.own = number, status
    return mapping


if find_spec("mmap") is not None and sys.version_info < (3, 13):
    _kept: list[Any] = []

    class _Mapping(mmap):
        """A mapping with a descriptor, which it closes when it is freed.

        If the application has closed that descriptor, its number may be that of a file of the application. Such a
        mapping is never freed.
        """

        own: tuple[int, Any] = -1, None  # the number of the descriptor, and the status of the file

        def __del__(self, samestat: Any = os.path.samestat, fstat: Any = os.fstat, keep: Any = _kept.append) -> None:
            number, status = self.own
            with suppress(OSError):
                if number < 0 or samestat(fstat(number), status):
                    return
            keep(self)
