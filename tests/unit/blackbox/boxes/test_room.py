"""The memory that a black box may use: never what the training job needs."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.support.inbox import DEADLINE
from tests.support.scripts import started, wait_until_ready
from tests.unit.blackbox.boxes.holders import mounted, needs_root

from monitel_otlp.boxes import room as room_module
from monitel_otlp.boxes.room import Room, pages
from monitel_otlp.config import memory_limit, mounts
from monitel_otlp.config.memory_limit import MemoryLeft
from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@pytest.mark.parametrize("size", [64 << 10, 100_000, 4 * MIB])
def test_size_is_never_exceeded(machine: Machine, folder: Folder, size: int) -> None:
    """To the byte, for claims of any size."""
    room = Room(folder, size)
    assert not room.claim(size + 1)
    assert room.claim(size)
    assert not room.claim(1)
    room.release(size)
    claimed = fill(room, 777)
    assert size // 777 * 777 == claimed == room.claimed


def test_refusal_changes_nothing(machine: Machine, folder: Folder) -> None:
    """A smaller claim succeeds after a larger one was refused."""
    room = Room(folder, STEP)
    assert room.claim(STEP - 10)
    assert not room.claim(11)
    assert room.claim(10)


def test_box_uses_one_percent_of_the_free_space(machine: Machine, folder: Folder) -> None:
    """For 30 MiB, that is 300 KiB."""
    machine.space = Space(f_bavail=30 * 256)
    claimed = fill(Room(folder, 4 * MIB))
    assert 30 * MIB / 100 - 1000 < claimed <= 30 * MIB / 100 * 1.02  # with the 1 % of what the box uses itself


def test_other_users_of_the_space_are_noticed(machine: Machine, folder: Folder) -> None:
    """A box that has grown while there was room grows no more."""
    room = Room(folder, 4 * MIB)
    assert room.claim(2 * STEP)
    machine.space = Space(f_bavail=10)
    assert not room.claim(1)
    assert 2 * STEP == room.claimed


@pytest.mark.parametrize(("files", "free", "granted"), [(0, 0, True), (5000, 999, False), (5000, 1000, True)])
def test_files_are_left(machine: Machine, folder: Folder, files: int, free: int, granted: bool) -> None:
    """File systems without a limit of files report 0."""
    machine.space = Space(f_files=files, f_favail=free)
    assert granted is Room(folder, 4 * MIB).claim(1)


def test_machine_is_looked_at_once_per_step(machine: Machine, folder: Folder) -> None:
    """Each look reads several files; a claim of an event must not."""
    room = Room(folder, 4 * MIB)
    for _ in range(10_000):
        assert room.claim(100)
    assert 16 == machine.looks == -(-10_000 * 100 // STEP)
    for _ in range(1000):  # up and down around the end of a step
        assert room.claim(STEP)
        room.release(STEP)
    assert 17 == machine.looks


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


def test_released_bytes_can_be_claimed_again(machine: Machine, folder: Folder) -> None:
    """Bytes that were released are looked for again, because the job may use them meanwhile."""
    room = Room(folder, 4 * MIB)
    assert room.claim(4 * MIB)
    room.release(4 * MIB)
    assert 0 == room.claimed
    machine.left = 3 * STEP
    assert not room.claim(4 * MIB)
    machine.now += 1.0
    assert room.claim(3 * STEP)
    room.release(10 * MIB)
    assert 0 == room.claimed


def test_memory_limit_counts_the_bytes_of_the_box_as_used(machine: Machine, folder: Folder) -> None:
    """The number is that of further bytes."""
    room = Room(folder, 4 * MIB)
    assert room.claim(STEP)
    machine.left = STEP
    assert room.claim(STEP)
    machine.left = -5 * MIB
    assert not room.claim(1)
    assert (2 * STEP, "memory limit of /cgroup") == tuple(vars(room.allowance()).values())


def test_file_system_without_an_answer_has_no_room(monkeypatch: pytest.MonkeyPatch, folder: Folder) -> None:
    """The reason says so."""

    def fail(_self: Folder) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Folder, "space", fail)
    room = Room(folder, 4 * MIB)
    assert not room.claim(1)
    assert "Input/output error" in room.allowance().reason


def test_threads_never_exceed_the_size(machine: Machine, folder: Folder) -> None:
    """Events are emitted in any thread."""
    room = Room(folder, STEP)

    def use(seed: int) -> int:
        own = 0
        for number in range(3000):
            size = (seed * 7919 + number * 104_729) % 300 + 1
            if room.claim(size):
                own += size
            if number % 3 == 0 and own:
                room.release(1)
                own -= 1
        return own

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(use, range(8))) == room.claimed <= STEP


def test_signal_handler_may_claim(machine: Machine, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the handler interrupts a claim of its thread, neither waits for the other, and both are counted."""
    room = Room(folder, 4 * MIB)
    in_handler: list[bool] = []

    def look(_self: Folder) -> Space:
        if not in_handler:
            in_handler.append(True)
            signal.raise_signal(signal.SIGUSR1)
        return Space()

    def handle(_number: int, _frame: object) -> None:
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        in_handler.append(room.claim(3))
        faulthandler.cancel_dump_traceback_later()

    monkeypatch.setattr(Folder, "space", look)
    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        assert room.claim(5)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert ([True, True], 8) == (in_handler, room.claimed)


@pytest.mark.parametrize(("size", "taken"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_small_file_takes_a_page(tmp_path: Path, size: int, taken: int) -> None:
    """Files in memory consist of whole pages."""
    assert taken == pages(size)


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
    "larger limit": (2, "/job", "/", {"job": {"memory__max": 1000 * MIB, "memory__current": 100 * MIB}}, 850 * MIB),
    "no limit": (2, "/job", "/", {"job": {"memory__max": "max", "memory__current": 100 * MIB}}, None),
    "no files": (2, "/job", "/", {}, None),
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
    "root": (2, "/a/b/c", "/", {"": {"memory__max": 200 * MIB, "memory__current": 0}, "a/b/c": {}}, 184 * MIB),
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
    "below a container": (
        *(2, "/docker/abc/job", "/docker/abc"),
        {"job": {"memory__max": 200 * MIB, "memory__current": 100 * MIB}},
        84 * MIB,
    ),
    "outside": (2, "/../job", "/", {"": {"memory__max": 200 * MIB, "memory__current": 100 * MIB}}, 84 * MIB),
    "version 1": (
        *(1, "/job", "/"),
        {"job": {"memory__limit_in_bytes": 200 * MIB, "memory__usage_in_bytes": 100 * MIB}},
        84 * MIB,
    ),
    "version 1 without a limit": (
        *(1, "/job", "/"),
        {"job": {"memory__limit_in_bytes": 9223372036854771712, "memory__usage_in_bytes": 100 * MIB}},
        None,
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
    "version 1, container": (
        *(1, "/docker/abc", "/docker/abc"),
        {"": {"memory__limit_in_bytes": 200 * MIB, "memory__usage_in_bytes": 100 * MIB}},
        84 * MIB,
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


def test_limit_is_read_at_each_look(tree: Tree) -> None:
    """A job may move to another cgroup, and its limit may change."""
    tree.describe("/one", version=2)
    tree.write("one", memory__max="max", memory__current=0)
    assert memory_limit.memory_left() is None
    tree.write("one", memory__max=200 * MIB)
    tree.write("two", memory__max=100 * MIB, memory__current=0)
    assert MemoryLeft(184 * MIB, tree.point / "one") == memory_limit.memory_left()
    tree.describe("/two", version=2)
    assert MemoryLeft(84 * MIB, tree.point / "two") == memory_limit.memory_left()


def test_system_without_cgroups_has_no_limit(tree: Tree) -> None:
    """Neither without the files of the system, nor without a mounted hierarchy."""
    assert memory_limit.memory_left() is None
    tree.describe("/job", version=2)
    (tree._proc / "mountinfo").unlink()
    assert memory_limit.memory_left() is None


def used(point: Path) -> int:
    """Return the bytes in use of a file system, according to another program."""
    command = ["df", "--output=used", "-B1", str(point)]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()[-1])


@needs_root
def test_eight_boxes_leave_a_container_its_shared_memory(tmp_path: Path) -> None:
    """In the 64 MiB of /dev/shm of a container they use less than 8 %, and a loader can have the rest."""
    with mounted(tmp_path / "shm", "size=64m") as point:
        for number in range(8):
            (point / f"box-{number}").mkdir()
            with closing(Folder.open(point / f"box-{number}")) as folder:
                room = Room(folder, 4 * MIB)
                for part in range(1000):
                    if not room.claim(4096):
                        break
                    folder.write_new(f"part-{part}", bytes(4096))
                assert 100 < part < 165
        assert 7 * 64 * MIB / 100 < used(point) < 8 * 64 * MIB / 100
        with (point / "loader").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 58 * MIB)


@needs_root
def test_file_system_that_is_almost_full_gives_no_room(tmp_path: Path) -> None:
    """Neither without bytes, nor without files."""
    with mounted(tmp_path / "full", "size=1m") as point, closing(Folder.open(point)) as folder:
        (point / "data").write_bytes(bytes(1000 << 10))
        room = Room(folder, 4 * MIB)
        assert not room.claim(4096)
        assert "1 % of the 24576 bytes" in room.allowance().reason
    with mounted(tmp_path / "files", "size=64m,nr_inodes=100") as point, closing(Folder.open(point)) as folder:
        room = Room(folder, 4 * MIB)
        assert not room.claim(1)
        assert "can hold only 9" in room.allowance().reason


#: Uses memory up to the number of bytes in each line, and prints whether a box has room.
USE = """\
import sys
from pathlib import Path
from monitel_otlp.boxes.room import Room
from monitel_otlp.spool.folder import Folder
folder = Folder.open(Path(sys.argv[1]))
print("ready", flush=True)
used = []
for line in sys.stdin:
    if int(line):
        block = bytearray(int(line))
        block[::4096] = b"x" * len(block[::4096])
        used.append(block)
    print(Room(folder, 1 << 20).claim(1 << 19), flush=True)
"""


@pytest.fixture
def cgroup() -> Iterator[Callable[[int], Path]]:
    """Return a function that makes a memory cgroup (version 1 or 2) with a limit."""
    made: list[Path] = []
    parent, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not parent.exists():
        parent, limit = Path("/sys/fs/cgroup"), "memory.max"

    def make(size: int) -> Path:
        folder = parent / f"monitel-test-{os.getpid()}"
        try:
            folder.mkdir()
            made.append(folder)
            (folder / "below").mkdir()
            made.append(folder / "below")
            (folder / limit).write_text(f"{size}", encoding="utf-8")
        except OSError as error:
            pytest.skip(f"cannot make a memory cgroup: {error}")
        return folder

    yield make
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


@needs_root
def test_box_does_not_grow_in_a_small_memory_cgroup(cgroup: Callable[[int], Path], tmp_path: Path) -> None:
    """The limit is that of the cgroup above the process; 16 MiB are left to the job."""
    group = cgroup(160 * MIB)
    with started(tmp_path, "-c", USE, tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        wait_until_ready(process)
        (group / "below/cgroup.procs").write_text(f"{process.pid}", encoding="utf-8")

        def has_room_after(size: int) -> bool:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            return {"True\n": True, "False\n": False}[process.stdout.readline()]

        assert has_room_after(0)
        assert has_room_after(100 * MIB)
        assert not has_room_after(50 * MIB)
        process.stdin.close()
        process.wait(60)
    assert 0 == process.returncode
