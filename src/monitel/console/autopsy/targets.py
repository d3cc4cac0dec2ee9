"""The processes that a user asks for: all, one by its id, or those of a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.box import ENDED
from monitel.blackbox.discovery import find_boxes, holds_boxes, is_box, process_of
from monitel.blackbox.folder import FolderError, automatic_roots
from monitel.blackbox.settings import FOLDERS, default_roots
from monitel.console.autopsy.death_events import deaths_below
from monitel.console.autopsy.examination import examine
from monitel.variables import read_variables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel.console.autopsy.findings import Findings

_LISTED = 10


def find_processes(target: str | None, problems: list[str]) -> list[Findings]:
    """Return the findings about the processes that a user asks for.

    Args:
        target: A process id; or a box, a folder of boxes, or a folder of spools. None for all boxes of this user on
            this machine, or if there is none, for the boxes that were collected into the usual spools.
        problems: Receives the description of each box or spool that cannot be read.

    Raises:
        FolderError: There is no such process or folder, or nothing is in it.
    """
    found = examine(boxes_of(target, problems), problems)
    if not found or (target is not None and _is_folder(target)):
        again: list[str] = []  # a box is looked at for the second time
        found += deaths_of(target, again)
        problems += [each for each in again if each not in problems]
    if not found and target is not None:
        raise nothing_known(target, problems)
    return found


def boxes_of(target: str | None, problems: list[str]) -> list[Path]:
    """Return the black boxes that a user asks for.

    Args:
        target: As for :func:`find_processes`.
        problems: Receives the description of each box that cannot be read.

    Raises:
        FolderError: There is no such folder, or it cannot be read.
    """
    if target is None:
        return _boxes(problems)
    if not _is_folder(target):
        return [path for path in _boxes([]) if process_of(path) == int(target)]
    path = Path(target)
    if _is_box(_names(path)):
        return [path]
    return _boxes(problems, path) if holds_boxes(path) else []


def folders_of(target: str | None) -> list[Path]:
    """Return the folders in which the boxes that a user asks for appear and vanish. They may be missing."""
    if target is not None and _is_folder(target):
        return [Path(target)]
    given = read_variables(FOLDERS, {"black_box_dir": None}).get("black_box_dir")
    return automatic_roots() if given is None else [given]


def deaths_of(target: str | None, problems: list[str]) -> list[Findings]:
    """Return the deaths that a user asks for of processes whose boxes were collected into spools.

    Args:
        target: As for :func:`find_processes`.
        problems: Receives the description of each spool that cannot be read.

    Raises:
        FolderError: There is no such folder, or it cannot be read.
    """
    if target is None:
        return _deaths(_record_roots(), problems)
    if not _is_folder(target):
        return [death for death in _deaths(_record_roots(), []) if death.identity.pid == int(target)]
    path = Path(target)
    return [] if _is_box(_names(path)) else deaths_below(path, problems)


def nothing_known(target: str, problems: list[str]) -> FolderError:
    """Return the error about a process or a folder of which nothing is known."""
    if _is_folder(target):
        reason = "; ".join(problems) or "it holds no black box, and no spool with an event process.died"
        return FolderError(f"nothing is known from {str(Path(target))!r}: {reason}")
    if problems:
        return FolderError("; ".join(problems))
    return FolderError(f"there is no black box of process {int(target)}: {_why_none(int(target), _boxes([]))}")


def _is_folder(target: str) -> bool:
    return not (target.isascii() and target.isdecimal())


def _boxes(problems: list[str], root: Path | None = None) -> list[Path]:
    if root is None:
        root = read_variables(FOLDERS, {"black_box_dir": None}).get("black_box_dir")
    boxes = find_boxes(root)
    problems += boxes.problems
    problems += [f"{str(path)!r} is damaged, and was set aside by a collector" for path in boxes.corrupt]
    return boxes.readable


def _record_roots() -> list[Path]:
    """Return the folders of spools, and those of boxes, in which a collector may have ended some."""
    given = read_variables(FOLDERS, {"spool_dir": None}).get("spool_dir")
    return [*([given] if given else default_roots()), *folders_of(None)]


def _deaths(roots: Iterable[Path], problems: list[str]) -> list[Findings]:
    return [found for root in roots for found in deaths_below(root, problems)]


def _why_none(pid: int, boxes: list[Path]) -> str:
    try:
        owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116  only the owner is needed
    except OSError:
        known = sorted({process_of(path) for path in boxes})
        more = ", ..." if len(known) > _LISTED else ""
        listed = ", ".join(map(str, known[:_LISTED]))
        others = f"; there are boxes of the processes {listed}{more}" if known else ""
        return (
            "no such process runs; if it has died, its box may have been collected: give the folder of its spool, or "
            f"look for the event process.died in the backend{others}"
        )
    if owner != os.geteuid():
        return f"the process belongs to another user (id {owner}): run this command as that user"
    return (
        "the process runs, but it has recorded nothing with monitel_otlp, or it has no box; "
        "monitel doctor, run with its variables, shows where boxes are made"
    )


def _names(path: Path) -> list[str]:
    """Return the names in a folder.

    Raises:
        FolderError: There is no such folder, or it cannot be read.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
        return os.listdir(path)  # noqa: PTH208
    except FileNotFoundError:
        raise FolderError(f"there is no folder {str(path)!r}; give a process id, or a folder") from None
    except NotADirectoryError:
        raise FolderError(f"{str(path)!r} is not a folder: give the folder that holds it") from None
    except PermissionError:
        owner = f"belongs to another user (id {status.st_uid})" if status.st_uid != os.geteuid() else "cannot be read"
        raise FolderError(f"{str(path)!r} {owner}: run this command as a user who can read it") from None
    except OSError as error:  # such as a name that is too long
        raise FolderError(f"{str(path)!r:.200} cannot be read: {error.strerror}") from None


def _is_box(names: list[str]) -> bool:
    """Return True for a box that nobody has ended: other ones are read like spools."""
    return is_box(names) and ENDED not in names
