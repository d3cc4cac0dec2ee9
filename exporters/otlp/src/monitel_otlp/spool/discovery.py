"""Search for spools below a folder. Symbolic links are not followed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.spool import rejected
from monitel_otlp.spool.folder import SpoolError

#: The end of the hidden name of a spool that a collector of black boxes has not finished. It is not a spool yet.
UNFINISHED = ".unfinished"

_SEGMENT = re.compile(rf"({'|'.join(SIGNALS)})-\d{{6,9}}\.(spool|raw)")


@dataclass
class Found:
    """Spools below a folder.

    Attributes:
        folders: Folders with segments, sorted.
        refused: Folders with refused requests, sorted.
        problems: Descriptions of folders that could not be searched.
    """

    folders: list[Path] = field(default_factory=list)
    refused: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_spools(root: Path) -> Found:
    """Find the spools in a folder, which may be a spool itself or hold the spools of many processes.

    Raises:
        SpoolError: ``root`` is not a folder.
    """
    if root.is_symlink():
        raise SpoolError(f"{str(root)!r} is a symbolic link: give the folder that it points to")
    if not root.is_dir():
        raise SpoolError(f"there is no folder {str(root)!r}")
    found = Found()

    def report(error: OSError) -> None:
        found.problems.append(f"{error.filename!r} cannot be searched: {error.strerror}")

    inside = os.path.realpath(root)
    for name, folders, files in os.walk(root, onerror=report):
        folder = Path(name)
        folders[:] = [each for each in folders if not each.endswith(UNFINISHED)]
        if any(map(_SEGMENT.fullmatch, files)):
            found.folders.append(folder)
        if folder.name == rejected.FOLDER and any(map(rejected.is_message, files)):
            found.refused.append(folder.parent)
        for link in filter(Path.is_symlink, (folder / each for each in folders)):
            if not Path(os.path.realpath(link)).is_relative_to(inside):  # else its target is searched anyway
                found.problems.append(f"{str(link)!r} is a symbolic link, which is not followed")
    for each in (found.folders, found.refused, found.problems):
        each.sort()
    return found
