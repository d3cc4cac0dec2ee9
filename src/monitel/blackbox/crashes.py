"""The stacks of this process in its box: those of a crash, and those that another process asks for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.process.crash_stacks import check, install, stacks_now, uninstall

if TYPE_CHECKING:
    from monitel.blackbox.box import Box

#: Files of a box: the stacks of a crash, of a process that runs, and the request for these.
STACKS, STACKS_NOW, STACKS_WANTED = "stacks", "stacks-now", "stacks-wanted"


class CrashStacks:
    """Has the stacks of all threads written into the box when a signal ends this process.

    Make it in the thread that configures, so that an overflow of its stack is recorded. A forked child has another
    one for its box.

    Args:
        box: The box. :meth:`flush` is called before each of its snapshots.
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self._path = Path()
        self.flush()
        box.flushes.append(self.flush)

    def flush(self) -> None:
        """Follow the box to another folder, and write the present stacks if they are wanted. Once a second."""
        folder = self._box.folder
        path = Path(os.devnull) if folder is None else folder.path / STACKS
        if path != self._path:
            with suppress(OSError):
                install(path)
            self._path = path
        check()
        if folder is not None and folder.has(STACKS_WANTED):
            folder.unlink(STACKS_NOW)
            folder.write_new(STACKS_NOW, stacks_now().encode("utf-8", "replace"))
            folder.unlink(STACKS_WANTED)

    def close(self) -> None:
        """Write no stacks any more, to be called before the box is closed. Idempotent."""
        with suppress(ValueError):
            self._box.flushes.remove(self.flush)
        uninstall(self._path)
