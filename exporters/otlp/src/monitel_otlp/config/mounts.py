"""Mounted file systems, as Linux reports them to this process."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_PROC, _DESCRIBED = Path("/proc/self"), "fdinfo"
#: Number, parent, device, root, mount point, options and fields of the mount; type, source, options of the file system.
_LINE = re.compile(r"^(\d+) \S+ \S+ (\S+) (\S+) .*? - (\S+) \S* (\S+)$", re.MULTILINE)


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        number: Its number in the mount namespace.
        root: The folder of the file system that is mounted.
        point: The folder in which it appears.
        file_system: Its type, e.g. ``"tmpfs"``.
        options: Options of the file system, e.g. the controllers of a cgroup hierarchy.
    """

    number: str
    root: str
    point: Path
    file_system: str
    options: tuple[str, ...]


def mounts() -> list[Mount]:
    """Return the mounted file systems in the order in which they were mounted; none if the system has no list.

    Never raises.
    """
    try:
        text = (_PROC / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return [
        Mount(number, _unescape(root), Path(_unescape(point)), file_system, tuple(options.split(",")))
        for number, root, point, file_system, options in _LINE.findall(text)
    ]


def file_system_of(path: Path, descriptor: int) -> str:
    """Return the type of the file system of an open folder; ``"unknown"`` if the system does not report it.

    Never raises.

    Args:
        path: The folder. It is used where the system does not report the mount of a descriptor.
        descriptor: Its descriptor.
    """
    known = mounts()
    try:
        described = (_PROC / _DESCRIBED / str(descriptor)).read_text(encoding="utf-8")
    except (OSError, ValueError):
        described = ""
    if number := re.search(r"^mnt_id:\s*(\d+)$", described, re.MULTILINE):
        return next((each.file_system for each in known if each.number == number[1]), "unknown")
    within = Path(os.path.realpath(path))
    above = [each for each in known if within.is_relative_to(each.point)]
    # The last mount in a folder hides the earlier ones.
    return max(reversed(above), key=lambda each: len(each.point.parts)).file_system if above else "unknown"


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path)
