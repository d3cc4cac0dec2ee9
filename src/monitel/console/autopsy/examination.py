"""Examination of boxes: reads them, and asks the processes that run for their stacks."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.crashes import STACKS_NOW, STACKS_WANTED
from monitel.blackbox.discovery import SILENT_NS, is_running
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.process import Owner, this_process
from monitel.blackbox.reading import RecordError, page_of, read_head, read_record, text_of
from monitel.console.autopsy.box_findings import findings_of
from monitel.console.autopsy.findings import State
from monitel.console.autopsy.kernel_state import KernelState, explain_silence, kernel_state
from monitel.os_threads import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from monitel.console.autopsy.findings import Findings
    from monitel.context_page import Context

_LONG_PATIENCE_S, _SHORT_PATIENCE_S = 3.0, 1.0
_ORDER = {State.DEAD: 0, State.SILENT: 1, State.ALIVE: 2}


class _FirstLook(NamedTuple):
    """An open box, and the facts before its process was asked for stacks."""

    folder: Folder
    owner: Owner
    alive: bool
    page: Context
    kernel: KernelState | None
    at_ns: int


def examine(paths: Iterable[Path], problems: list[str], *, stacks: bool = True) -> list[Findings]:
    """Return the findings about the processes of boxes: the dead ones first, then the silent ones.

    It takes as long as the slowest answer of a process that runs, at most three seconds. A box that vanishes meanwhile
    is left out.

    Args:
        paths: The boxes.
        problems: Receives the description of each box that cannot be read.
        stacks: Ask the processes that run for their stacks. Otherwise nothing is waited for, and nothing is written.
    """
    found = []
    with ExitStack() as opened:
        looks = []
        for path in paths:
            try:
                folder = Folder.open(path, probe=False)
                opened.callback(folder.close)
                looks.append(_look(folder))
            except Exception as error:  # the content may be damaged in any way
                _report(path, error, problems)
        answers = request_stacks({look.folder: _patience_s(look) for look in looks if look.alive and stacks})
        for look in looks:
            try:
                found.append(_findings(look, answers.get(look.folder, "")))
            except Exception as error:
                _report(look.folder.path, error, problems)
    return sorted(found, key=_order)


def _look(folder: Folder) -> _FirstLook:
    owner, page = read_head(folder).owner, page_of(folder)
    alive = is_running(folder, owner, page)
    return _FirstLook(folder, owner, alive, page, _kernel(owner) if alive else None, time.monotonic_ns())


def _patience_s(look: _FirstLook) -> float:
    """Return how long a process may take for its answer. One that runs Python code answers within a second."""
    beat_ns = look.page.heartbeat_ns
    return _LONG_PATIENCE_S if beat_ns is None or look.at_ns - beat_ns < SILENT_NS else _SHORT_PATIENCE_S


def _findings(look: _FirstLook, stacks: str) -> Findings:
    folder = look.folder
    record = read_record(folder)
    alive = is_running(folder, look.owner, record.page)
    found = findings_of(record, alive=alive, earlier=look.page if look.alive else None)
    if found.state is not State.DEAD:
        found.kernel = _kernel(look.owner)
        found.stacks = stacks
    if found.state is State.SILENT:
        if found.kernel is None:
            found.silence = ["the process is in another container: there is nothing about it in /proc"]
        else:
            elapsed_ns = time.monotonic_ns() - look.at_ns
            found.silence = explain_silence(found.identity.pid, found.kernel, look.kernel, elapsed_ns)
    return found


def _kernel(owner: Owner) -> KernelState | None:
    """Return the state of a process of this machine and process id namespace in the kernel; None for any other."""
    if not owner.is_near(this_process()):
        return None
    return kernel_state(owner.pid, owner.start)


def _report(path: Path, error: Exception, problems: list[str]) -> None:
    if not path.exists():
        return  # it was removed meanwhile
    problems.append(f"{str(path)!r} cannot be read: {reason(error)}")


def reason(error: Exception) -> str:
    """Return why a box cannot be read, in words."""
    if isinstance(error, OSError) and error.strerror:
        words = error.strerror
    else:
        words = str(error) if isinstance(error, RecordError | FolderError) else repr(error)
    return words.partition(", or use --foreign")[0]  # an option of other commands: boxes of others are never read


def _order(found: Findings) -> tuple[object, ...]:
    names = found.identity
    return _ORDER[found.state], names.service, names.run, names.rank or 0, names.pid or 0, str(found.source)


_STACKS_PAUSE_S = 0.02


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
                    answers[box] = text_of(box, STACKS_NOW)
            elif elapsed_s >= boxes[box]:
                box.unlink(STACKS_WANTED)
            else:
                continue
            waiting.remove(box)
        if waiting:
            pause.wait(_STACKS_PAUSE_S)
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
