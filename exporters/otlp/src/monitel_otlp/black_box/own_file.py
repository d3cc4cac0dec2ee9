"""A file of the box that stays open, and is checked before each write."""

from __future__ import annotations

import os
from contextlib import suppress

from monitel_otlp.spool.folder import Folder, write_at


class OwnFile:
    """A file of the box.

    The application may close descriptors that are not its own, as a program does that detaches itself, and open another
    file with the same number. Therefore each write checks that the descriptor is still that of this file.

    Args:
        folder: The box.
        name: The name of the new file.

    Raises:
        OSError: The file exists, or cannot be made.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._name = name
        self._descriptor = folder.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._status = os.fstat(self._descriptor)

    def write(self, content: bytes, offset: int) -> None:
        """Write all of the content at an offset.

        Raises:
            OSError: The descriptor is closed or belongs to another file, the file is removed, or the write failed.
        """
        self._check()
        write_at(self._descriptor, content, offset)

    def empty(self) -> None:
        """Remove the content, if the descriptor is still its own. Errors are ignored."""
        with suppress(OSError):
            self._check()
            os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Close the file, if the descriptor is still its own. Idempotent."""
        try:
            is_own = os.path.samestat(os.fstat(self._descriptor), self._status)
        except OSError:
            return
        if is_own:
            os.close(self._descriptor)
        self._descriptor = -1

    def _check(self) -> None:
        status = os.fstat(self._descriptor)
        if not os.path.samestat(status, self._status) or not status.st_nlink:
            raise OSError(f"the file {self._name} is not open any more")
