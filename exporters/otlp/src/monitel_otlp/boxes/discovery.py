"""Search for black boxes. Nothing of other users is opened, and no link is followed."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monitel_otlp.boxes.box_lock import NAME, State, state
from monitel_otlp.boxes.layout import COLLECTED
from monitel_otlp.boxes.place import PlaceError, automatic_roots, open_root
from monitel_otlp.spool.folder import SpoolError

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp.boxes.place import Root

_YOUNG = 60.0  # seconds in which an unlocked hidden box may still be in the making


@dataclass
class Boxes:
    """The boxes of this user. Each list is sorted.

    Attributes:
        dead: Boxes of ended processes, to be collected.
        live: Boxes of processes that run.
        claimed: Boxes that another process collects now.
        collected: Boxes whose content is in a spool already: a collector was killed before it removed them.
        unfinished: Boxes that are neither complete nor needed: their process was killed while it made or removed them.
        corrupt: Damaged boxes, which a collector has set aside.
        problems: Descriptions of entries that are not boxes, or that must not be opened.
    """

    dead: list[Path] = field(default_factory=list)
    live: list[Path] = field(default_factory=list)
    claimed: list[Path] = field(default_factory=list)
    collected: list[Path] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    corrupt: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def readable(self) -> list[Path]:
        """The boxes that hold telemetry that is in no spool yet: those of processes that run at the end."""
        return [*self.dead, *self.claimed, *self.live]


def find_boxes(root: Path | None = None) -> Boxes:
    """Find the boxes of this user. Never raises for the content of a folder.

    Args:
        root: The folder that holds the boxes, as given to ``configure()``; None for all folders in memory that
            ``configure()`` considers.
    """
    found = Boxes()
    for path in automatic_roots() if root is None else [root]:
        try:
            opened = open_root(path, given=root is not None)
        except FileNotFoundError:
            continue
        except PlaceError as error:
            found.problems.append(str(error))
            continue
        try:
            _search(opened, found)
        except OSError as error:
            found.problems.append(f"{str(path)!r} cannot be searched: {error.strerror}")
        finally:
            opened.folder.close()
    for each in vars(found).values():
        each.sort()
    return found


def process_of(box: Path) -> int:
    """Return the id of the process in the name of a box; 0 if the name is not that of a box."""
    parts = NAME.fullmatch(box.name)
    return int(parts["pid"]) if parts else 0


def holds_boxes(folder: Path) -> bool:
    """Return True if a folder holds black boxes, of any user and in any state."""
    try:
        return any(map(NAME.fullmatch, os.listdir(folder)))  # noqa: PTH208  only names are needed
    except OSError:
        return False


def _search(root: Root, found: Boxes) -> None:
    others = []
    for name in sorted(root.folder.names()):
        if NAME.fullmatch(name) is None:
            others.append(name)
            continue
        try:
            _classify(root, name, found)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, SpoolError) as error:
            found.problems.append(str(error))
    if others:
        found.problems.append(
            f"{str(root.path)!r} holds entries that are not black boxes ({len(others)}), e.g. {others[0]!r:.80}"
        )


def _classify(root: Root, name: str, found: Boxes) -> None:
    path = root.path / name
    status = root.folder.status(name)
    if status.st_uid != os.geteuid():
        found.problems.append(f"{str(path)!r} belongs to another user (id {status.st_uid})")
    elif stat.S_ISDIR(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        found.problems.append(f"other users can write to {str(path)!r}: it is not used")
    else:
        _add(root, name, status.st_mtime, found)


def _add(root: Root, name: str, changed: float, found: Boxes) -> None:
    folder = root.folder.subfolder(name, create=False)
    try:
        seen = state(folder)
    finally:
        folder.close()
    parts, path = NAME.fullmatch(name), root.path / name
    assert parts is not None
    if seen is State.CLAIMED:
        found.claimed.append(path)
    elif parts["hidden"]:
        is_old = parts["suffix"] == COLLECTED or not 0 <= time.time() - changed < _YOUNG
        if seen is State.DEAD and is_old:
            found.unfinished.append(path)
    elif parts["suffix"]:
        (found.collected if parts["suffix"] == COLLECTED else found.corrupt).append(path)
    else:
        (found.live if seen is State.ALIVE else found.dead).append(path)
