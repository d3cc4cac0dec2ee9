"""Stacks of live processes, which write them into their boxes on request: without a signal, and without a debugger."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel.os_threads import Event
from monitel_otlp.boxes.layout import STACKS_NOW, STACKS_WANTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel_otlp.spool.folder import Folder

_LARGEST = 256 << 10  # bytes
_PAUSE_S = 0.02


def request_stacks(boxes: Mapping[Folder, float]) -> dict[Folder, str]:
    """Return the present stacks of processes that run, for each box whose process answers in time.

    All processes are asked at once. A request that is not answered is withdrawn.

    Args:
        boxes: Open boxes of live processes, and for each the longest time to wait, seconds.
    """
    begin = time.monotonic()
    before = {box: _identity(box) for box in boxes}
    waiting = [box for box in boxes if _ask(box)]
    answers = {}
    pause = Event()  # is never set
    while waiting:
        elapsed_s = time.monotonic() - begin
        for box in waiting.copy():
            if not _is_asked(box):
                with suppress(OSError):  # the process has ended meanwhile, and its box is removed
                    if _identity(box) == before[box]:  # another reader has withdrawn the request
                        raise FileNotFoundError
                    answers[box] = box.read(STACKS_NOW, _LARGEST).decode("utf-8", "replace")
            elif elapsed_s >= boxes[box]:
                box.unlink(STACKS_WANTED)
            else:
                continue
            waiting.remove(box)
        if waiting:
            pause.wait(_PAUSE_S)
    return {box: text for box, text in answers.items() if text}


def _identity(box: Folder) -> tuple[int, int] | None:
    """Return a value that differs after each answer; None before the first one."""
    try:
        status = box.status(STACKS_NOW)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _ask(box: Folder) -> bool:
    try:
        box.write_new(STACKS_WANTED, b"")
    except FileExistsError:
        return True  # another reader has asked
    except OSError:
        return False
    return True


def _is_asked(box: Folder) -> bool:
    """Return True until the process has answered, or its box is removed."""
    try:
        box.status(STACKS_WANTED)
    except OSError:
        return False
    return True
