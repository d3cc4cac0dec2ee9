"""Situations in which an earlier form of the record lost items, repeated them, or disturbed the application."""

import functools
import marshal
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.checks import wait_until
from tests.support.paths import ROOT

import monitel.blackbox.box
import monitel.blackbox.journal
from monitel.blackbox.box import Box
from monitel.blackbox.folder import Folder
from monitel.blackbox.journal import Journal
from monitel.blackbox.record import EVENT
from monitel.blackbox.recovery import claim

_LONG = "x" * 100
_SKIPPED = 77


def alone(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Run a test in a process without other threads, so that it may fork."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="monitel-traps-", dir="/dev/shm") as memory:
            command = [sys.executable, "-W", "ignore", "-m", "tests.processes.blackbox.test_traps", test.__name__]
            ended = subprocess.run(
                [*command, str(tmp_path), memory], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
            )
        if ended.returncode == _SKIPPED:
            pytest.skip(ended.stderr)
        assert 0 == ended.returncode, ended.stdout + ended.stderr

    return run


class Place:
    def __init__(self, disk: Path, memory: Path | None = None) -> None:
        self.root, self.spool = (memory or Path(sys.argv[3])) / "boxes", disk / "spool"

    def box(self, **options: Any) -> Box:
        made = Box(self.spool, self.root, {}, **{"interval_s": 0.05, **options})
        made.open()
        return made

    def collect(self, name: str) -> list[Any]:
        """Return the events in the record of an ended process, and remove it."""
        dead = claim(next(each / name for each in (self.root, self.spool) if (each / name).exists()))
        if not dead.has_ended:
            dead.end({})
        found = list[Any]()
        while (sent := delivered(dead.journals["logs"])) or dead.journals["logs"].loading is not None:
            found += sent
            dead.tend()
        dead.remove()
        dead.close()
        return found


def delivered(journal: Journal) -> list[Any]:
    items = journal.read()
    if items:
        journal.settle(items[-1].last, delivered=len(items))
    return [item.value[1] for item in items]


def emit(box: Box, *numbers: int) -> None:
    for number in numbers:
        box.journals["logs"].append(EVENT, marshal.dumps(("event", number, _LONG), 2))


def send(box: Box) -> list[Any]:
    found, journal = list[Any](), box.journals["logs"]

    def send_one() -> bool:
        found.extend(delivered(journal))
        box.note_position()
        return journal.settled == journal.next - 1

    wait_until(send_one)
    return found


@contextmanager
def file_system(folder: Path, size: str) -> Iterator[Path]:
    path = folder / "mounted"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "monitel", path], check=False)
    if mounted.returncode:
        sys.stderr.write("this process may not mount a file system")
        os._exit(_SKIPPED)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@alone
def test_closed_descriptors_are_not_used_any_more(tmp_path: Path) -> None:
    """An application that closes all descriptors, and opens files, keeps its files; the box is made again."""
    place = Place(tmp_path)
    monitel.blackbox.box._RETRY_S = 0.0
    box = place.box()
    box.start()
    emit(box, 1)
    wait_until(lambda: box.journals["logs"]._spare is not None)  # no thread opens a file now
    lost = box.folder
    os.closerange(3, 256)
    files = [(tmp_path / f"{number}").open("w+b") for number in range(20)]
    emit(box, 2)
    wait_until(lambda: box.folder not in {lost, None} and Folder.open(place.root / box.name).is_locked())
    emit(box, 3)
    assert [1, 2, 3] == send(box)
    assert box.close(5.0)
    assert [b""] * 20 == [file.read() for file in files]


@alone
def test_limited_file_size_ends_no_process(tmp_path: Path) -> None:
    """With RLIMIT_FSIZE of 32 KiB, items are kept in anonymous memory."""
    monitel.blackbox.journal._PATIENCE_S = 0.0  # with the disk, which takes no more either
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, 32 << 10))
    box = Place(tmp_path).box()
    box.start()
    emit(box, *range(1000))
    box.snapshot()
    assert {"memory"} == {each.where for journal in box.journals.values() for each in journal.segments}
    assert [*range(1000)] == send(box)


@alone
def test_full_memory_file_system_ends_no_process(tmp_path: Path) -> None:
    """Items that a full tmpfs of 1 MiB does not take are moved from anonymous memory to the disk."""
    with file_system(tmp_path, "1m") as memory:
        place = Place(tmp_path, memory)
        box = place.box()
        box.room.claim = lambda size: True  # type: ignore[method-assign]  # beyond 1 % of it
        box.start()
        emit(box, *range(20_000))
        assert box.journals["logs"].next == 20_001
        assert box.close(20.0)
        assert [*range(20_000)] == place.collect(box.name)


if __name__ == "__main__":
    _test = globals()[sys.argv[1]]
    _test.__wrapped__(Path(sys.argv[2]))
    os._exit(0)
