"""The memory that a black box may use: never what the training job needs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from monitel_otlp.boxes import room as room_module
from monitel_otlp.boxes.room import Room
from monitel_otlp.config import memory_limit, mounts
from monitel_otlp.config.memory_limit import MemoryLeft
from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
STEP = 64 << 10  # the documented step


class Space(NamedTuple):
    """The report of a file system: by default 4 GiB are free."""

    f_bavail: int = MIB
    f_frsize: int = 4096
    f_files: int = 10**6
    f_favail: int = 10**6


class Machine:
    """A machine whose free space and memory the test sets, and that counts how often somebody looks."""

    def __init__(self) -> None:
        self.space = Space()
        self.left: int | None = None
        self.looks = 0
        self.now = 1000.0

    def look(self) -> Space:
        """Return the space of the file system."""
        self.looks += 1
        return self.space


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine of all rooms of the test."""
    machine = Machine()
    monkeypatch.setattr(Folder, "space", lambda _self: machine.look())
    monkeypatch.setattr(
        room_module,
        "memory_left",
        lambda: None if machine.left is None else MemoryLeft(machine.left, Path("/cgroup")),
    )
    monkeypatch.setattr(room_module.time, "monotonic", lambda: machine.now)  # type: ignore[attr-defined]
    return machine


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder."""
    with closing(Folder.open(tmp_path)) as folder:
        yield folder


def fill(room: Room, size: int = 1000) -> int:
    """Claim until the room refuses; return the bytes."""
    claimed = 0
    while room.claim(size):
        claimed += size
    return claimed


@pytest.mark.parametrize("size", [100_000])
def test_size_is_never_exceeded(machine: Machine, folder: Folder, size: int) -> None:
    """To the byte, for claims of any size."""
    room = Room(folder, size)
    assert not room.claim(size + 1)
    assert room.claim(size)
    assert not room.claim(1)
    room.release(size)
    claimed = fill(room, 777)
    assert size // 777 * 777 == claimed == room.claimed


def test_box_uses_one_percent_of_the_free_space(machine: Machine, folder: Folder) -> None:
    """For 30 MiB, that is 300 KiB."""
    machine.space = Space(f_bavail=30 * 256)
    claimed = fill(Room(folder, 4 * MIB))
    assert 30 * MIB / 100 - 1000 < claimed <= 30 * MIB / 100 * 1.02  # with the 1 % of what the box uses itself


def test_refusal_is_repeated_without_a_look(machine: Machine, folder: Folder) -> None:
    """A flood of events without room costs no look each; after a second the machine is looked at again."""
    machine.left = 0
    room = Room(folder, 4 * MIB)
    for _ in range(1000):
        assert not room.claim(100)
    assert 1 == machine.looks
    machine.left = None
    assert not room.claim(100)
    machine.now += 1.0
    assert room.claim(100)


def test_memory_limit_counts_the_bytes_of_the_box_as_used(machine: Machine, folder: Folder) -> None:
    """The number is that of further bytes."""
    room = Room(folder, 4 * MIB)
    assert room.claim(STEP)
    machine.left = STEP
    assert room.claim(STEP)
    machine.left = -5 * MIB
    assert not room.claim(1)
    assert (2 * STEP, "memory limit of /cgroup") == tuple(vars(room.allowance()).values())


class Tree:
    """A hierarchy of cgroups in a folder, and what the system reports of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.point = folder / "cg roup"
        self._proc = folder / "proc"
        self._proc.mkdir()
        self.point.mkdir()
        monkeypatch.setattr(memory_limit, "_PROC", self._proc)
        monkeypatch.setattr(mounts, "_PROC", self._proc)
        memory_limit._hierarchy.cache_clear()

    def describe(self, own: str, *, version: int, root: str = "/") -> None:
        """Set the cgroup of the process, and the part of the hierarchy that is mounted."""
        point = str(self.point).replace(" ", "\\040")
        line = f"0::{own}" if version == 2 else f"3:cpu,cpuacct:/\n4:memory,hugetlb:{own}\n0::/"
        kind = "cgroup2 cgroup2 rw,nsdelegate" if version == 2 else "cgroup cgroup rw,memory,hugetlb"
        (self._proc / "cgroup").write_text(f"{line}\n", encoding="utf-8")
        (self._proc / "mountinfo").write_text(
            f"21 1 0:5 / /proc rw - proc proc rw\n22 1 0:20 / {point}-cpu rw shared:3 - cgroup cgroup rw,cpu\n"
            f"23 1 0:21 {root} {point} rw,nosuid shared:4 - {kind}\n",
            encoding="utf-8",
        )

    def write(self, group: str, **files: object) -> None:
        """Write the files of a cgroup; ``__`` stands for the period of their names."""
        folder = self.point / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(f"{content}\n", encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    """A hierarchy of cgroups."""
    yield Tree(tmp_path, monkeypatch)
    memory_limit._hierarchy.cache_clear()


#: For each case: version, own cgroup, mounted root, the files of each cgroup, the bytes that are left.
#: Of a limit of 200 MiB, 16 MiB are left to the job; of one of 1000 MiB, 50 MiB (5 %).
CASES: dict[str, tuple[int, str, str, dict[str, dict[str, object]], int | None]] = {
    "limit": (2, "/job", "/", {"job": {"memory__max": 200 * MIB, "memory__current": 100 * MIB}}, 84 * MIB),
    "no limit": (2, "/job", "/", {"job": {"memory__max": "max", "memory__current": 100 * MIB}}, None),
    "throttled": (
        *(2, "/job", "/"),
        {"job": {"memory__max": "max", "memory__high": 200 * MIB, "memory__current": 100 * MIB}},
        84 * MIB,
    ),
    "parent": (
        *(2, "/slice/job", "/"),
        {
            "slice/job": {"memory__max": 1000 * MIB, "memory__current": 10 * MIB},
            "slice": {"memory__max": 200 * MIB, "memory__current": 190 * MIB},
        },
        -6 * MIB,
    ),
    "cache": (
        *(2, "/job", "/"),
        {
            "job": {
                "memory__max": 200 * MIB,
                "memory__current": 200 * MIB,
                "memory__stat": f"anon 1\nfile {90 * MIB}\nshmem {30 * MIB}\nfile_dirty {10 * MIB}\n"
                f"file_writeback {5 * MIB}\ninactive_file {40 * MIB}\nactive_file {20 * MIB}",
            }
        },
        (60 - 15 - 16) * MIB,
    ),
    "container": (
        *(2, "/docker/abc", "/docker/abc"),
        {"": {"memory__max": 200 * MIB, "memory__current": 100 * MIB}},
        84 * MIB,
    ),
    "version 1": (
        *(1, "/job", "/"),
        {"job": {"memory__limit_in_bytes": 200 * MIB, "memory__usage_in_bytes": 100 * MIB}},
        84 * MIB,
    ),
    "version 1, parent and cache": (
        *(1, "/a/job", "/"),
        {
            "a/job": {"memory__limit_in_bytes": 1000 * MIB, "memory__usage_in_bytes": 1 * MIB},
            "a": {
                "memory__limit_in_bytes": 200 * MIB,
                "memory__usage_in_bytes": 200 * MIB,
                "memory__stat": f"inactive_file {99 * MIB}\ntotal_inactive_file {30 * MIB}\n"
                f"total_active_file {10 * MIB}\ntotal_dirty {4 * MIB}\ntotal_writeback {1 * MIB}",
            },
        },
        (40 - 5 - 16) * MIB,
    ),
    "garbage": (2, "/job", "/", {"job": {"memory__max": "many", "memory__current": "?"}}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_tightest_cgroup_determines_the_free_memory(tree: Tree, case: str) -> None:
    """Limits of the process and of all cgroups around it, in both versions."""
    version, own, root, groups, left = CASES[case]
    tree.describe(own, version=version, root=root)
    for group, files in groups.items():
        tree.write(group, **files)
    found = memory_limit.memory_left()
    assert left == (None if found is None else found.bytes)
