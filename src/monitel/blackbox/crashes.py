"""The stacks of this process in its box: those of a crash, and those that another process asks for."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from monitel.crash_stacks import check, install, stacks_now, uninstall, use_alternate_stack

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.blackbox.box import Box

#: Files of a box: the stacks of a crash, of a process that runs, and the request for these.
STACKS, STACKS_NOW, STACKS_WANTED = "stacks", "stacks-now", "stacks-wanted"


class CrashStacks:
    """Has the stacks of all threads written into the box when a signal ends this process.

    Make it in the thread that configures, before the threads of the box start: only that thread gets a separate stack
    for the handler. A forked child makes another one for its box.

    Args:
        box: The box. :meth:`flush` is called before each of its snapshots.
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self._path: Path | None = None
        use_alternate_stack()
        self.flush()
        box.flushes.append(self.flush)

    def flush(self) -> None:
        """Follow the box to another folder, and write the present stacks if they are wanted. Once a second."""
        folder = self._box.folder
        path = None if folder is None else folder.path / STACKS
        if path != self._path:
            self._uninstall()
            if path is not None:
                with suppress(OSError, ValueError):
                    install(path)
            self._path = path
        check()
        if folder is not None and folder.has(STACKS_WANTED):
            folder.unlink(STACKS_NOW)
            folder.write_new(STACKS_NOW, stacks_now().encode("utf-8", "replace"))
            folder.unlink(STACKS_WANTED)

    def close(self) -> None:
        """Restore the previous effect of the signals, to be called before the box is closed. Idempotent."""
        with suppress(ValueError):
            self._box.flushes.remove(self.flush)
        self._uninstall()

    def _uninstall(self) -> None:
        if self._path is not None:
            uninstall(self._path)
            self._path = None
