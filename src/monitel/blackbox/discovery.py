"""The records on this machine: black boxes and spools, of processes that run and of ended ones.

Nothing of other users is opened, no link is followed, and nothing is changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from monitel.blackbox.context_page import PAGE
from monitel.blackbox.folder import Folder, FolderError, MissingFolderError, box_root
from monitel.blackbox.process import Owner
from monitel.blackbox.record import CORRUPT, ENDED, JOURNALS, NAMES, REJECTED, STATE

#: Start, process id, its start time, random digits, and perhaps the mark of the endpoints.
NAME = re.compile(r"\d{8}T\d{6}-(\d+)-(\d+)-[0-9a-f]{6}(?:-[0-9a-f]{8})?")
SILENT_NS = 3 * 10**9  # the age of a heartbeat above which no Python code runs: there is one each second

_JOURNAL = re.compile(rf"({'|'.join(JOURNALS)})-\d+\.(log|end)")
_REJECTED = re.compile(rf"{REJECTED}-\d+\.log")


def entries(folder: Path) -> list[str]:
    """Return the names of all entries of a folder; none if it cannot be read."""
    with suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208  names are needed, often
    return []


def records(folder: Path) -> list[str]:
    """Return the names of all records in a folder of boxes or spools, oldest first."""
    return sorted(filter(NAME.fullmatch, entries(folder)))


def pid_of(record: Path) -> int:
    """Return the id of the process in the name of a record; 0 if the name is not that of a record."""
    match = NAME.fullmatch(record.name)
    return int(match[1]) if match else 0


# ---- boxes


@dataclass
class Boxes:
    """The boxes of this user. Each list is sorted."""

    dead: list[Path] = field(default_factory=list)  # of processes that were killed, to be collected
    live: list[Path] = field(default_factory=list)  # of processes that run
    #: Nothing is added any more: a collector has them, or their rest is delivered like that of a spool.
    ended: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # entries that are damaged, not boxes, or must not be opened


def find_boxes(root: Path | None = None) -> Boxes:
    """Find the boxes of this user, in a folder, or where ``configure()`` makes them. Never raises."""
    found, path = Boxes(), box_root(root)
    try:
        if path is not None:
            with closing(Folder.open(path, probe=False)) as folder:
                _search(folder, found)
    except MissingFolderError:
        pass
    except FolderError as error:
        found.problems.append(str(error))
    except OSError as error:
        found.problems.append(f"{str(path)!r} cannot be searched: {error.strerror}")
    for each in vars(found).values():
        each.sort()
    return found


def _search(root: Folder, found: Boxes) -> None:
    for name in sorted(root.names()):
        path, plain = root.path / name, name.removesuffix(CORRUPT)
        if NAME.fullmatch(plain.removeprefix(".")) is None:
            continue
        if plain != name:
            found.problems.append(
                f"{str(path)!r} is damaged, and was set aside by a collector: nobody reads it again, remove it"
            )
        elif not name.startswith("."):  # else it is made or removed now
            try:
                with closing(Folder.open(path, probe=False)) as folder:
                    if is_box(folder.names()):
                        state = found.ended if folder.has(ENDED) else found.live if folder.is_locked() else found.dead
                        state.append(path)
            except FileNotFoundError:
                continue  # removed meanwhile
            except (OSError, FolderError) as error:
                found.problems.append(str(error))


def is_box(names: Collection[str]) -> bool:
    """Return True if a folder with these entries is a box, not a spool."""
    return not {STATE, ENDED, PAGE}.isdisjoint(names)


def is_box_folder(path: Path) -> bool:
    names = entries(path)
    return NAMES in names and is_box(names)


def holds_boxes(folder: Path) -> bool:
    names = (name for name in entries(folder) if NAME.fullmatch(name.removesuffix(CORRUPT)))
    return any(is_box(entries(folder / name)) for name in names)


# ---- spools


@dataclass
class Spools:
    """Spools below a folder. Each list is sorted."""

    folders: list[Path] = field(default_factory=list)  # with items
    refused: list[Path] = field(default_factory=list)  # with items that a backend has rejected
    problems: list[str] = field(default_factory=list)  # folders that could not be searched


def find_spools(root: Path) -> Spools:
    """Find the spools in a folder, which may be a spool itself or hold the spools of many processes."""
    if root.is_symlink():
        raise FolderError(f"{str(root)!r} is a symbolic link: give the folder that it points to")
    if not root.is_dir():
        raise FolderError(f"there is no folder {str(root)!r}")
    found, errors = Spools(), list[OSError]()
    inside = os.path.realpath(root)
    for name, folders, files in os.walk(root, onerror=errors.append):
        folder = Path(name)
        hidden = {each for each in folders if each.startswith(".") and NAME.fullmatch(each[1:])}
        folders[:] = [each for each in folders if each not in hidden and not each.endswith(CORRUPT)]
        if NAMES in files and any(map(_JOURNAL.fullmatch, files)):
            found.folders.append(folder)
        if NAMES in files and any(map(_REJECTED.fullmatch, files)):
            found.refused.append(folder)
        for link in filter(Path.is_symlink, (folder / each for each in folders)):
            if not Path(os.path.realpath(link)).is_relative_to(inside):  # else its target is searched anyway
                found.problems.append(f"{str(link)!r} is a symbolic link, which is not followed")
    errors = [each for each in errors if not isinstance(each, FileNotFoundError)]  # those were removed meanwhile
    found.problems += [f"{each.filename!r} cannot be searched: {each.strerror}" for each in errors]
    for each in (found.folders, found.refused, found.problems):
        each.sort()
    return found


# ---- their processes


def is_running(folder: Folder, owner: Owner) -> bool:
    """Return True if a process runs the program that has made its box: a call of exec releases the lock."""
    return folder.is_locked() and not owner.has_ended  # else a collector has it
