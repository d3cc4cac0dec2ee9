"""Memory that the cgroups of this process leave to it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from monitel_otlp.config.mounts import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel_otlp.config.mounts import Mount

_PROC = Path("/proc/self")
_LEAST_LEFT = 16 << 20  # bytes that a growing box leaves to the job
_PART_LEFT = 20  # it also leaves one part in so many of the limit
_PLENTY = 1 << 30  # bytes from which on cached pages are not looked at, which takes the kernel longer
_NO_LIMIT = 1 << 60  # cgroup v1 reports "no limit" as a number near 2**63


class MemoryLeft(NamedTuple):
    """The tightest limit.

    Attributes:
        bytes: Bytes that may still be used, beyond what is left to the job; below 0 if that is used already.
        cgroup: The folder of the cgroup that has the limit.
    """

    bytes: int
    cgroup: Path


class _Files(NamedTuple):
    """The names of the files of a cgroup, and of the entries of its statistics."""

    limits: tuple[str, ...]
    used: str
    cached: tuple[str, ...]
    dirty: tuple[str, ...]


_V1 = _Files(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
    ("total_dirty", "total_writeback"),
)
_V2 = _Files(
    ("memory.max", "memory.high"),
    "memory.current",
    ("inactive_file", "active_file"),
    ("file_dirty", "file_writeback"),
)


def memory_left() -> MemoryLeft | None:
    """Return the tightest memory limit among the cgroups of this process and their ancestors; None without a limit.

    Cached pages of files do not count as used, except those that are not on disk yet: the kernel drops them before it
    ends a process. Never raises.
    """
    tightest = None
    for folder, files in _cgroups():
        left = _left(folder, files)
        if left is not None and (tightest is None or left < tightest.bytes):
            tightest = MemoryLeft(left, folder)
    return tightest


def _left(folder: Path, files: _Files) -> int | None:
    """Return the bytes that one cgroup leaves; None if it has no limit."""
    limits = [limit for limit in (_number(folder / name) for name in files.limits) if limit is not None]
    used = _number(folder / files.used)
    if not limits or used is None or (limit := min(limits)) >= _NO_LIMIT:
        return None
    left = limit - max(_LEAST_LEFT, limit // _PART_LEFT) - used
    return left if left > _PLENTY else left + min(used, _reclaimable(folder, files))


def _reclaimable(folder: Path, files: _Files) -> int:
    try:
        text = (folder / "memory.stat").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return 0
    numbers = {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
    return max(
        0, sum(numbers.get(each, 0) for each in files.cached) - sum(numbers.get(each, 0) for each in files.dirty)
    )


def _number(file: Path) -> int | None:
    """Return the number in a file; None if it holds a word such as ``max``, or cannot be read."""
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _cgroups() -> Iterator[tuple[Path, _Files]]:
    """Return the memory cgroups of this process, each followed by its ancestors, and the names of their files."""
    try:
        own = (_PROC / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in own:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        if (mount := _hierarchy("cgroup" if controllers else "cgroup2")) is None:
            continue
        # In a container the mount may show a part of the hierarchy.
        within = PurePosixPath(path)
        inside = within.relative_to(mount.root) if within.is_relative_to(mount.root) else within
        folder = mount.point / str(inside).lstrip("/")
        for each in (folder, *folder.parents):
            yield each, _V1 if controllers else _V2
            if each == mount.point:
                break


@cache  # a process looks for room again and again, and there may be thousands of mounts
def _hierarchy(kind: str) -> Mount | None:
    """Return the mounted hierarchy of cgroups that may have the memory controller."""
    of_kind = (each for each in mounts() if each.file_system == kind)
    return next((each for each in of_kind if kind == "cgroup2" or "memory" in each.options), None)
