"""Situations in which an earlier form of the record lost items, repeated them, or disturbed the application."""

import functools
import marshal
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.nightly.kills.campaign import start
from tests.support.checks import wait_until
from tests.support.paths import ROOT

import monitel.blackbox.box
import monitel.blackbox.journal
from monitel.blackbox.box import Box
from monitel.blackbox.discovery import records
from monitel.blackbox.folder import Folder
from monitel.blackbox.journal import Journal
from monitel.blackbox.record import EVENT
from monitel.blackbox.recovery import Dead, claim, sweep

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

    def folder(self, name: str) -> Folder:
        return Folder.open(self.root / name)

    def events(self, name: str, journal: str = "logs") -> list[Any]:
        return [item.value[1] for item in Dead(self.folder(name), None).items(journal)]

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


def status_of(function: Callable[[], object]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(start(function), 0)[1])


def killed_after(function: Callable[[], object]) -> None:
    def run() -> None:
        function()
        os.kill(os.getpid(), signal.SIGKILL)

    assert -signal.SIGKILL == status_of(run)


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
    wait_until(lambda: box.folder not in {lost, None} and place.folder(box.name).is_locked())
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


@alone
def test_rest_of_a_record_that_was_being_removed_is_swept(tmp_path: Path) -> None:
    """A hidden folder, and a spool folder whose journals are delivered; neither a record nor the box of a process."""
    place = Place(tmp_path)
    killed_after(place.box)
    (name,) = records(place.root)
    spools = [place.spool / f"{name[:-1]}{digit}" for digit in "abc"]
    for spool in spools:
        spool.mkdir(mode=0o700, parents=True)
        for file in ("names", "position"):
            (spool / file).write_bytes((place.root / name / file).read_bytes())
    (spools[0] / "logs-000000000000001.log").touch()
    (place.root / name).rename(place.root / f".{name}")
    box = place.box()
    sweep(place.root, place.spool)
    assert [box.name] == [each.name for each in place.root.iterdir()]
    assert spools[:1] == [*place.spool.iterdir()]


@alone
def test_process_killed_when_its_box_is_just_made_leaves_a_box(tmp_path: Path) -> None:
    """Its box has neither a position nor a snapshot then."""
    place = Place(tmp_path)

    def run() -> None:
        kind: Any = Box
        kind.note_position = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        place.box()

    assert -signal.SIGKILL == status_of(run)
    (name,) = records(place.root)
    dead = claim(place.root / name)
    assert (dead.box is not None, dead.has_ended) == (True, False)


@alone
def test_files_of_a_killed_collector_are_not_read(tmp_path: Path) -> None:
    """Last records that were not committed are replaced; those of a committed end are never appended again."""
    place = Place(tmp_path)
    killed_after(lambda: emit(place.box(), 1))
    (name,) = records(place.root)
    (place.root / name / "metrics-000000000000001.end").write_bytes(b"half")
    assert ([], [1]) == (place.events(name, "metrics"), place.events(name))
    dead = claim(place.root / name)
    dead.end({"logs": [(EVENT, ("process.died", 2))]})
    dead.close()
    dead = claim(place.root / name)
    assert dead.has_ended
    assert ["event", "process.died"] == [item.value[0] for item in dead.items("logs")]
    assert [] == [*dead.items("metrics")]


if __name__ == "__main__":
    _test = globals()[sys.argv[1]]
    _test.__wrapped__(Path(sys.argv[2]))
    os._exit(0)
