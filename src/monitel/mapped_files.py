"""Files as memory, safe from an application that closes all descriptors and opens others of the same numbers."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

if find_spec("mmap") is not None:  # WebAssembly has none
    from mmap import mmap


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
