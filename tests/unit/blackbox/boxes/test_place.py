"""The folder of black boxes: which one is chosen, which one is refused, and how a box appears and disappears in it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import finish, started
from tests.unit.blackbox.boxes.holders import another_process_can_lock, mounted, needs_root

from monitel_otlp.boxes import place
from monitel_otlp.boxes.discovery import find_boxes
from monitel_otlp.boxes.place import PlaceError, automatic_roots, choose_root, new_box, remove_box
from monitel_otlp.config import mounts
from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OTHER = 12345  # the id of another user
NAME = f"monitel-{os.geteuid()}"


def is_in_memory(folder: Path) -> bool:
    """Return True if a folder is in memory, according to another program."""
    ended = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.strip() in {"tmpfs", "ramfs"}


@pytest.fixture
def memory(own_boxes: Path) -> Path:
    """A folder in memory, to which other users can write, but not rename what is not theirs."""
    own_boxes.mkdir()
    if not is_in_memory(own_boxes):
        pytest.skip("there is no file system in memory")
    own_boxes.chmod(0o1777)
    return own_boxes


@pytest.fixture
def candidates(memory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The two folders that are considered without a given one, which do not exist, both in memory."""
    shared, runtime = memory / "shm", memory / "runtime"
    shared.mkdir()
    shared.chmod(0o1777)
    runtime.mkdir(0o700)
    monkeypatch.setattr(place, "_SHARED_MEMORY", shared)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield shared / NAME, runtime / NAME
    for folder in (shared / NAME, runtime / NAME):
        if folder.exists() and not folder.is_symlink():
            os.chown(folder, os.geteuid(), -1)


def mode(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.lstat().st_mode)


def choose(given: Path | None = None) -> Path:
    """Return the path that is chosen."""
    root = choose_root(given)
    root.folder.close()
    return root.path


def test_shared_memory_comes_first(candidates: tuple[Path, Path]) -> None:
    """The folder is made, and other users have no access."""
    assert list(candidates) == automatic_roots()
    for _ in range(2):
        assert candidates[0] == choose()
        assert 0o700 == mode(candidates[0])
    assert not candidates[1].exists()


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o177, 0o377])
def test_permissions_do_not_depend_on_the_umask(candidates: tuple[Path, Path], umask: int) -> None:
    """Folders are accessible for their owner and nobody else."""
    before = os.umask(umask)
    try:
        root = choose_root(None)
        box = new_box(root)
    finally:
        os.umask(before)
    assert 0o700 == mode(candidates[0]) == mode(box.folder.path)
    assert 0 == mode(box.folder.path / "lock") & 0o077
    box.lock.release()
    box.folder.close()
    root.folder.close()


def link_to_own_folder(path: Path) -> None:
    """Make a symbolic link to a folder of this user."""
    path.with_name("target").mkdir(0o700)
    path.symlink_to(path.with_name("target"))


def dangling_link(path: Path) -> None:
    """Make a symbolic link to nothing."""
    path.symlink_to(path.with_name("nothing"))


def open_to_the_group(path: Path) -> None:
    """Make a folder to which a group has access."""
    path.mkdir()
    path.chmod(0o750)


def of_another_user(path: Path) -> None:
    """Make a folder that belongs to another user."""
    path.mkdir(0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(path, OTHER, OTHER)


def open_to_all(path: Path) -> None:
    """Make a folder of another user that everybody can use."""
    of_another_user(path)
    path.chmod(0o1777)


def make_fifo(path: Path) -> None:
    """Make a FIFO."""
    os.mkfifo(path)


UNSAFE = {
    "a symbolic link": link_to_own_folder,
    "symbolic link, or not a folder": dangling_link,
    "not a folder": Path.touch,
    "symbolic link, or not a folder:": make_fifo,
    "other users have access": open_to_the_group,
    "belongs to another user": of_another_user,
    f"belongs to another user (id {OTHER})": open_to_all,
}


@pytest.mark.parametrize(("words", "make"), UNSAFE.items())
def test_planted_folder_is_not_used(candidates: tuple[Path, Path], words: str, make: Callable[[Path], object]) -> None:
    """The next one is used. Nothing is written to the planted one, and nothing about it is repaired."""
    make(candidates[0])
    parent = candidates[0].parent
    before = {each: (each.lstat().st_mode, each.lstat().st_uid, each.lstat().st_mtime_ns) for each in parent.iterdir()}
    assert candidates[1] == choose()
    assert before == {
        each: (each.lstat().st_mode, each.lstat().st_uid, each.lstat().st_mtime_ns) for each in parent.iterdir()
    }
    assert 1 == len([each for each in find_boxes().problems if words in each])


def test_each_reason_is_named(candidates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """If no folder can be used."""
    open_to_the_group(candidates[0])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(candidates[1].parent / "missing"))
    reasons = r"other users have access to .*shm/monitel-.*missing' cannot be used: No such"
    with pytest.raises(PlaceError, match=reasons):
        choose()


@pytest.mark.parametrize("given", ["", "relative", "."])
def test_relative_runtime_folder_is_ignored(
    candidates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """The specification of the variable says so."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", given)
    assert [candidates[0]] == automatic_roots()


@pytest.mark.parametrize(("permissions", "usable"), [(0o777, False), (0o1777, True), (0o755, True), (0o770, False)])
def test_folder_that_others_can_replace_is_refused(
    candidates: tuple[Path, Path], permissions: int, usable: bool
) -> None:
    """In a folder that is not sticky, a user who can write to it can rename everything."""
    candidates[0].parent.chmod(permissions)
    assert candidates[0 if usable else 1] == choose()


def test_disk_is_only_used_if_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a given folder there is no box then."""
    if is_in_memory(tmp_path):
        pytest.skip("the folders of the tests are in memory")
    monkeypatch.setattr(place, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(PlaceError, match=r"monitel-\d+' is not in memory, but on a file system of the type \w+"):
        choose()
    assert tmp_path / "boxes" == choose(tmp_path / "boxes")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuseblk", "9p", "virtiofs", "lustre"])
def test_network_is_refused(own_boxes: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A write to it could hang, and with it the thread that emits an event."""
    monkeypatch.setattr(place, "file_system_of", lambda _path, _descriptor: kind)
    advice = "give a folder in memory, such as one in '/dev/shm', or on a local disk"
    with pytest.raises(PlaceError, match=rf"is on a file system of the type {kind}: {advice}$"):
        choose(own_boxes)
    assert [] == list(own_boxes.iterdir())
    assert f"type {kind}" in find_boxes(own_boxes).problems[0]


def test_given_folder_is_made_with_its_parents(memory: Path) -> None:
    """Other users cannot enter it."""
    given = memory / "below" / "deeper"
    assert given == choose(given)
    assert 0o700 == mode(given)
    assert given == choose(given)


def test_given_folder_may_be_readable(memory: Path) -> None:
    """The boxes in it are not."""
    given = memory / "boxes"
    given.mkdir()
    given.chmod(0o755)
    root = choose_root(given)
    box = new_box(root)
    assert (0o755, 0o700) == (mode(given), mode(box.folder.path))
    box.lock.release()
    box.folder.close()
    root.folder.close()


@pytest.mark.parametrize("permissions", [0o777, 0o1777, 0o770, 0o702])
def test_given_folder_that_others_can_write_to_is_refused(memory: Path, permissions: int) -> None:
    """The message names a folder in it that can be given."""
    given = memory / "boxes"
    given.mkdir()
    given.chmod(permissions)
    with pytest.raises(PlaceError, match=rf"other users can write to .*boxes'.*give .*such as '.*boxes/{NAME}'"):
        choose(given)
    assert given / NAME == choose(given / NAME)


@pytest.mark.parametrize("below", ["", "boxes"])
def test_dangling_link_makes_nothing_elsewhere(memory: Path, below: str) -> None:
    """Neither as the folder, nor above it."""
    dangling_link(memory / "link")
    with pytest.raises(PlaceError, match="link"):
        choose(memory / "link" / below)
    assert ["link"] == [each.name for each in memory.iterdir()]


@pytest.mark.parametrize(
    "given", ["/proc/boxes", "/proc/self/boxes", "/dev/null/boxes", f"/dev/shm/{'x' * 300}", "a\0b"]
)
def test_impossible_folder_has_a_reason(given: str) -> None:
    """No other exception is raised, whether it is to be made or to be described."""
    for create in (True, False):
        with pytest.raises(PlaceError):
            choose_root(Path(given), create=create)


def test_description_makes_nothing(memory: Path) -> None:
    """The command ``doctor`` only looks."""
    root = choose_root(memory / "below" / "boxes", create=False)
    assert (memory / "below" / "boxes", memory, True) == (root.path, root.folder.path, root.is_memory)
    assert [] == list(memory.iterdir())
    root.folder.close()


def test_box_is_named_after_its_process(own_boxes: Path) -> None:
    """The start time is that of the kernel, and two boxes of one process have different names."""
    root = choose_root(own_boxes)
    boxes = [new_box(root), new_box(root)]
    start = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    for box in boxes:
        assert [str(os.getpid()), start] == box.folder.path.name.split("-")[:2]
        assert ["lock"] == box.folder.names()
    assert 2 == len({box.folder.path for box in boxes})
    assert sorted(box.folder.path for box in boxes) == find_boxes(own_boxes).live
    for box in boxes:
        box.lock.release()
        box.folder.close()
    root.folder.close()


def test_box_is_locked_before_it_is_visible(own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process cannot lock it at the moment when it gets its name."""
    root = choose_root(own_boxes)
    rename, seen = Folder.rename, []

    def look(self: Folder, old: str, new: str) -> None:
        seen.append((old, another_process_can_lock(own_boxes / old)))
        rename(self, old, new)

    monkeypatch.setattr(Folder, "rename", look)
    box = new_box(root)
    assert [(f".{box.folder.path.name}", False)] == seen
    box.lock.release()
    box.folder.close()
    root.folder.close()


#: Makes a box, or removes one, and is killed when it calls the n-th function that changes a folder.
KILLED = """\
import os, signal, sys
from pathlib import Path
from monitel_otlp.boxes import place
from monitel_otlp.boxes.place import choose_root, new_box, remove_box
root = choose_root(Path(sys.argv[1]))
remaining = int(sys.argv[2])

def killed_in(function):
    def call(*arguments, **options):
        global remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

if sys.argv[3] == "remove":
    box = new_box(root)
    for name in ("header", "cut-a", "request-1-logs"):
        box.folder.write_new(name, b"content")
for name in ("mkdir", "open", "rename", "unlink", "rmdir", "fchmod"):
    setattr(os, name, killed_in(getattr(os, name)))
place.acquire = killed_in(place.acquire)
if sys.argv[3] == "make":
    new_box(root)
else:
    remove_box(root.folder, box.folder.path.name)
print("complete", flush=True)
"""


def remove(path: Path) -> None:
    """Remove a box."""
    with closing(Folder.open(path.parent)) as root:
        assert remove_box(root, path.name)


@pytest.mark.parametrize("action", ["make", "remove"])
def test_process_killed_while_it_makes_or_removes_a_box_leaves_nothing_to_collect(own_boxes: Path, action: str) -> None:
    """Wherever it is killed: nobody finds half a box, and the rest can be removed."""
    for number in range(1, 100):
        own_boxes.mkdir(0o700, exist_ok=True)
        with started(own_boxes.parent, "-c", KILLED, own_boxes, number, action) as process:
            complete = "complete\n" == finish(process).stdout
        found = find_boxes(own_boxes)
        if complete:
            break
        expected = ["lock"] if action == "make" else ["cut-a", "header", "lock", "request-1-logs"]
        for path in found.dead:
            assert expected == sorted(each.name for each in path.iterdir()), number
            remove(path)
        for each in own_boxes.iterdir():
            os.utime(each, (0, 0))
        found = find_boxes(own_boxes)
        assert ([], [], []) == (found.dead, found.problems, found.live)
        for path in found.unfinished:
            remove(path)
        assert not any(own_boxes.iterdir())
    assert number > 4


def test_box_with_a_folder_is_not_removed(own_boxes: Path) -> None:
    """Nothing of another program is deleted."""
    root = choose_root(own_boxes)
    box = new_box(root)
    (box.folder.path / "folder").mkdir()
    box.lock.release()
    box.folder.close()
    assert not remove_box(root.folder, box.folder.path.name)
    root.folder.close()


@pytest.mark.parametrize("options", ["size=4k,nr_inodes=3", "size=4k,nr_inodes=2", "size=64k,ro"])
@needs_root
def test_full_file_system_leaves_nothing(tmp_path: Path, options: str) -> None:
    """The box is complete, or it is not there."""
    with mounted(tmp_path / "full", options) as point:
        try:
            root = choose_root(point / "boxes")
        except PlaceError as error:
            assert "ro" in options
            assert "Read-only" in str(error)  # noqa: PT017  a folder may be made or not
            return
        with pytest.raises(OSError, match="No space left"):
            new_box(root)
        assert [] == root.folder.names()
        root.folder.close()


#: Becomes another user, and prints the folder that it uses, or the reason why there is none.
AS_OTHER = """\
import os, sys
from pathlib import Path
from monitel_otlp.boxes import place
from monitel_otlp.boxes.place import PlaceError, choose_root, new_box
from monitel_otlp.boxes.discovery import find_boxes
shared = Path(sys.argv[1])
place._SHARED_MEMORY = shared
os.environ.pop("XDG_RUNTIME_DIR", None)
place.this_process()  # it loads modules that the other user may not be able to read
os.setgroups([])
os.setegid(12345)
os.seteuid(12345)
try:
    box = new_box(choose_root(None))
    print(box.folder.path.parent.name, len(find_boxes().live))
except PlaceError as error:
    print(error)
for given in sys.argv[2:]:
    try:
        choose_root(Path(given))
        print("used")
    except PlaceError as error:
        print(error)
    print(find_boxes(Path(given)))
"""


@needs_root
def test_users_have_separate_folders(memory: Path) -> None:
    """The folder of another user cannot be used or searched, and a folder in its place is refused."""
    box = new_box(choose_root(memory / NAME))
    for parent in (memory, *memory.parents):
        if parent == Path("/dev/shm"):
            break
        parent.chmod(0o1777)  # pytest and tempfile make them private
    with started(memory.parent, "-c", AS_OTHER, memory, memory / NAME) as process:
        own, given, found = finish(process).stdout.splitlines()
    assert "monitel-12345 1" == own
    assert "cannot be opened: Permission denied" in given
    assert "Permission denied" in found
    assert "Boxes(dead=[], live=[]," in found
    (memory / "monitel-12345").rename(memory / "moved")
    (memory / "monitel-12345").mkdir(0o777)
    with started(memory.parent, "-c", AS_OTHER, memory) as process:
        assert f"'{memory}/monitel-12345' belongs to another user (id 0)" == finish(process).stdout.strip()
    assert ["lock"] == box.folder.names()
    box.lock.release()
    box.folder.close()


def type_of(path: Path) -> str:
    """Return the type of a file system, according to another program."""
    command = ["findmnt", "-n", "-o", "FSTYPE", "-T", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@needs_root
def test_type_of_each_mount_is_found(tmp_path: Path) -> None:
    """Mounts with odd names, mounts that hide others, and parts of a file system that are mounted elsewhere."""
    odd, part, hidden = tmp_path / "a b\\c\n\td", tmp_path / "part", tmp_path / "hidden"
    (tmp_path / "disk").mkdir()
    part.mkdir()
    script = f"""
mount -t tmpfs -o size=64k tmpfs "$1" || exit 77
mount --bind "$2" "$3" || exit 77
mount -t tmpfs tmpfs "$4" && mount -t ramfs ramfs "$4" || exit 77
exec {sys.executable} -c "$5" "$1" "$3" "$4" / /proc /sys
"""
    show = """
import os, sys
from pathlib import Path
from monitel_otlp.config import mounts
for fallback in (False, True):
    if fallback:
        mounts._DESCRIBED = "missing"
    for path in map(Path, sys.argv[1:]):
        print(mounts.file_system_of(path, os.open(path, os.O_RDONLY)))
"""
    odd.mkdir()
    hidden.mkdir()
    command = ["unshare", "-m", "sh", "-c", script, "sh", odd, tmp_path / "disk", part, hidden, show]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode == 77 or "unshare" in ended.stderr:
        pytest.skip(f"cannot mount: {ended.stderr.strip()}")
    disk, root = map(type_of, (tmp_path, Path("/")))
    assert 2 * ["tmpfs", disk, "ramfs", root, "proc", "sysfs"] == ended.stdout.split(), ended.stderr


def test_system_without_a_list_of_mounts_has_no_known_type(
    own_boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of an unknown type is refused."""
    monkeypatch.setattr(mounts, "_PROC", tmp_path)
    with pytest.raises(PlaceError, match="of the type unknown"):
        choose(own_boxes)
