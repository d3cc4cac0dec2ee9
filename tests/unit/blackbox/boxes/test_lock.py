"""Locks of black boxes: a running process is seen as such, a dead one has one collector, and no lock is lost."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import finish, started
from tests.unit.blackbox.boxes.holders import (
    WAIT,
    another_process_can_lock,
    holding,
    kill_with_box,
    needs_root,
    open_box,
)

from monitel_otlp.boxes import box_lock
from monitel_otlp.boxes.box_lock import State, acquire, claim, has_called_exec, is_alive, state
from monitel_otlp.boxes.discovery import find_boxes
from monitel_otlp.boxes.place import NewBox, choose_root, new_box, remove_box
from monitel_otlp.spool.lock import this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def box(own_boxes: Path) -> Iterator[NewBox]:
    """A new box of this process."""
    root = choose_root(own_boxes)
    made = new_box(root)
    yield made
    made.lock.release()
    with suppress(OSError):
        made.folder.close()
    root.folder.close()


def state_of(path: Path) -> State:
    """Return the state of a box."""
    with closing(open_box(path)) as folder:
        return state(folder)


def test_process_is_alive_until_it_is_killed(own_boxes: Path) -> None:
    """A zombie is dead."""
    with holding(own_boxes) as holder:
        assert State.ALIVE is state_of(holder.path)
        with closing(open_box(holder.path)) as folder:
            assert is_alive(folder)
            assert claim(folder) is None
        holder.kill()
        assert State.DEAD is state_of(holder.path)
        with closing(open_box(holder.path)) as folder:
            assert not is_alive(folder)


def test_forked_child_does_not_keep_its_parent_alive(own_boxes: Path) -> None:
    """A worker of a DataLoader inherits the descriptor of the lock, but not the lock; the box is not the child's."""
    script = """\
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    print(box.lock.keep(), is_alive(box.folder), flush=True)
    os.read(read, 1)  # until the parent is dead
    print(box.lock.keep(), is_alive(box.folder), flush=True)
    sys.stdin.readline()
else:
    sys.stdin.readline()
"""
    with holding(own_boxes, script) as holder:
        assert holder.process.stdout is not None
        assert "False True\n" == holder.process.stdout.readline()
        assert State.ALIVE is state_of(holder.path)
        holder.kill()
        assert "False False\n" == holder.process.stdout.readline()
        assert State.DEAD is state_of(holder.path)


def test_ended_child_does_not_release_the_lock(own_boxes: Path) -> None:
    """A forked child closes the inherited descriptor, and looks at the box; the parent stays alive for others."""
    script = """\
if os.fork() == 0:
    box.lock.release()
    assert is_alive(box.folder)
    os._exit(0)
os.wait()
print("ended", flush=True)
sys.stdin.readline()
"""
    with holding(own_boxes, script) as holder:
        assert holder.process.stdout is not None
        assert "ended\n" == holder.process.stdout.readline()
        assert State.ALIVE is state_of(holder.path)


def test_exec_is_not_a_death(own_boxes: Path) -> None:
    """The lock is released, and a process with the same id and start time runs."""
    script = """\
os.execv(sys.executable, [sys.executable, "-S", "-c", "print('called', flush=True); input()"])
"""
    with holding(own_boxes, script) as holder:
        assert holder.process.stdout is not None
        assert "called\n" == holder.process.stdout.readline()
        pid, start, _ = holder.path.name.split("-")
        owner = this_process()._replace(pid=pid, start=start)
        assert State.DEAD is state_of(holder.path)
        assert has_called_exec(owner)
        holder.kill()
        assert not has_called_exec(owner)


def test_looking_at_an_own_box_keeps_its_lock(box: NewBox, own_boxes: Path) -> None:
    """POSIX locks end when the process closes any descriptor of the file, so the file is not opened again."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: find_boxes(own_boxes), range(100)))
    assert {(box.folder.path,)} == {tuple(each.live) for each in found}
    assert is_alive(box.folder)
    assert claim(box.folder) is None
    assert not another_process_can_lock(box.folder.path)


def test_new_boxes_beside_searches_keep_their_locks(own_boxes: Path) -> None:
    """A search of another thread between the making and the locking of a file does not end the lock."""
    root = choose_root(own_boxes)
    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(find_boxes, own_boxes) for _ in range(50)]
        made = [new_box(root) for _ in range(20)]
        searches += [pool.submit(find_boxes, own_boxes) for _ in range(50)]
        for search in searches:
            assert [] == search.result().dead
    with started(own_boxes.parent, "-c", SHOW, own_boxes) as process:
        assert f"{len(made)} 0\n" == finish(process).stdout
    for each in made:
        each.lock.release()
        each.folder.close()
    root.folder.close()


#: Prints the numbers of living and dead processes.
SHOW = """\
import sys
from pathlib import Path
from monitel_otlp.boxes.discovery import find_boxes
boxes = find_boxes(Path(sys.argv[1]))
print(len(boxes.live), len(boxes.dead))
"""


def test_lock_that_the_application_ended_is_renewed(box: NewBox) -> None:
    """For instance by an archiver, which reads every file in memory."""
    (box.folder.path / "lock").read_bytes()
    assert another_process_can_lock(box.folder.path)
    assert box.lock.keep()
    assert not another_process_can_lock(box.folder.path)


def test_box_is_lost_if_another_process_has_taken_it(own_boxes: Path) -> None:
    """Its process then leaves the box alone."""
    script = """\
(box.folder.path / "lock").read_bytes()
print("ended", flush=True)
sys.stdin.readline()
print(box.lock.keep(), flush=True)
sys.stdin.readline()
"""
    with holding(own_boxes, script) as holder:
        assert holder.process.stdout is not None
        assert "ended\n" == holder.process.stdout.readline()
        with closing(open_box(holder.path)) as folder:
            lock = claim(folder)
            assert lock is not None
            assert "False" == holder.exchange()
            lock.release()


def rename(box: NewBox) -> None:
    """Rename the box, as a collector does."""
    box.folder.path.rename(box.folder.path.with_suffix(".collected"))


def remove(box: NewBox) -> None:
    """Remove the box, as a cleaner of the system does."""
    (box.folder.path / "lock").unlink()
    box.folder.path.rmdir()


def replace(box: NewBox) -> None:
    """Put another file in the place of the lock."""
    (box.folder.path / "new").touch(0o600)
    (box.folder.path / "new").replace(box.folder.path / "lock")


def replace_folder(box: NewBox) -> None:
    """Put another folder in the place of the box."""
    path = box.folder.path
    path.rename(path.with_suffix(".collected"))
    path.mkdir()


@pytest.mark.parametrize("change", [rename, remove, replace, replace_folder])
def test_changed_box_is_lost(box: NewBox, change: Callable[[NewBox], None]) -> None:
    """The box no longer belongs to the process."""
    assert box.lock.keep()
    change(box)
    assert not box.lock.keep()


def test_descriptor_of_the_application_is_not_closed(box: NewBox, tmp_path: Path) -> None:
    """A process that detaches itself closes all descriptors; the next file gets the number of the lock."""
    number = box.lock._descriptor
    os.close(number)
    own = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    assert own == number
    assert not box.lock.keep()
    box.lock.release()
    assert 4 == os.write(own, b"data")
    os.close(own)


def test_folder_does_not_close_a_descriptor_of_the_application(tmp_path: Path) -> None:
    """A folder checks the descriptor of the box too, before it closes it."""
    folder = open_box(tmp_path)
    os.close(folder._descriptor)
    own = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    assert own == folder._descriptor
    folder.close()
    assert 4 == os.write(own, b"data")
    os.close(own)
    folder.close()


def test_release_is_idempotent(box: NewBox) -> None:
    """The second call closes nothing."""
    box.lock.release()
    assert State.DEAD is state(box.folder)
    with Path(os.devnull).open("rb") as file:
        box.lock.release()
        os.fstat(file.fileno())
    assert not box.lock.keep()


def test_dead_box_has_one_collector(own_boxes: Path) -> None:
    """Neither another thread of the same process nor another process gets the lock; the box is shown as claimed."""
    path = kill_with_box(own_boxes)
    with closing(open_box(path)) as folder, closing(open_box(path)) as other:
        lock = claim(folder)
        assert lock is not None
        assert claim(other) is None
        assert State.CLAIMED is state(other)
        assert ([path], []) == (find_boxes(own_boxes).claimed, find_boxes(own_boxes).dead)
        with started(own_boxes.parent, "-c", SHOW, own_boxes) as process:
            assert "0 0\n" == finish(process).stdout
        assert not another_process_can_lock(path)
        lock.release()
        assert [path] == find_boxes(own_boxes).dead


def test_threads_of_one_process_do_not_share_a_claim(own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSIX locks do not exclude each other in one process: both threads have seen that the process is dead."""
    path = kill_with_box(own_boxes)
    monkeypatch.setattr(box_lock, "state", lambda _folder: State.DEAD)
    with closing(open_box(path)) as folder, closing(open_box(path)) as other:
        lock = claim(folder)
        assert lock is not None
        assert claim(other) is None
        assert not another_process_can_lock(path)
        lock.release()


def test_box_of_a_killed_collector_is_free_again(own_boxes: Path) -> None:
    """The next collector continues."""
    path = kill_with_box(own_boxes)
    script = """\
assert claim(Folder.open(Path(sys.argv[1]) / sys.stdin.readline().strip()))
print("claimed", flush=True)
sys.stdin.readline()
"""
    with holding(own_boxes, script) as holder, closing(open_box(path)) as folder:
        assert "claimed" == holder.exchange(path.name)
        assert State.CLAIMED is state(folder)
        assert claim(folder) is None
        holder.kill()
        lock = claim(folder)
        assert lock is not None
        lock.release()


def test_collected_box_is_not_claimed_under_its_old_name(own_boxes: Path) -> None:
    """A collector that opened the box before another one renamed or removed it comes too late."""
    path = kill_with_box(own_boxes)
    with closing(open_box(path)) as folder:
        path.rename(path.with_suffix(".collected"))
        assert claim(folder) is None
        (path.with_suffix(".collected") / "lock").unlink()
        path.with_suffix(".collected").rmdir()
        assert claim(folder) is None


#: Collects boxes as long as there are any: locks, renames and removes them. Prints the names.
COLLECT = """\
import sys
from contextlib import closing
from pathlib import Path
from monitel_otlp.boxes.box_lock import claim
from monitel_otlp.boxes.discovery import find_boxes
from monitel_otlp.boxes.place import choose_root, remove_box
from monitel_otlp.spool.folder import Folder
root = choose_root(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
while paths := find_boxes(root.path).dead:
    for path in paths:
        try:
            folder = root.folder.subfolder(path.name, create=False)
        except FileNotFoundError:
            continue
        with closing(folder):
            if lock := claim(folder):
                print(path.name, flush=True)
                root.folder.rename(path.name, f"{path.name}.collected")
                remove_box(root.folder, f"{path.name}.collected")
                lock.release()
"""


def test_collectors_share_the_boxes(own_boxes: Path) -> None:
    """Four processes at once collect each box exactly once."""
    root = choose_root(own_boxes)
    names = set()
    for number in range(60):
        name = f"{number + 1}-1-{number:06x}"
        (own_boxes / name).mkdir()
        (own_boxes / name / "lock").touch(0o600)
        names.add(name)
    with (
        started(own_boxes.parent, "-c", COLLECT, own_boxes) as one,
        started(own_boxes.parent, "-c", COLLECT, own_boxes) as two,
        started(own_boxes.parent, "-c", COLLECT, own_boxes) as three,
    ):
        processes = [one, two, three]
        for process in processes:
            assert process.stdout is not None
            assert "ready\n" == process.stdout.readline()
        with ThreadPoolExecutor() as pool:
            ended = list(pool.map(lambda each: finish(each, "\n"), processes))
    collected = [name for each in ended for name in each.stdout.split()]
    assert sorted(names) == sorted(collected), [each.stderr for each in ended]
    assert [] == root.folder.names()
    root.folder.close()


def make_fifo(path: Path) -> None:
    """Make a FIFO."""
    os.mkfifo(path)


def make_link(path: Path) -> None:
    """Make a symbolic link to a file."""
    (path.parent / "target").touch()
    path.symlink_to(path.parent / "target")


def make_hard_link(path: Path) -> None:
    """Make a file with two names."""
    (path.parent / "target").touch()
    path.hardlink_to(path.parent / "target")


@pytest.mark.parametrize("make", [Path.mkdir, make_fifo, make_link, make_hard_link])
def test_odd_lock_file_is_refused(own_boxes: Path, make: Callable[[Path], None]) -> None:
    """Nothing blocks, and the search reports the box."""
    path = kill_with_box(own_boxes)
    (path / "lock").unlink()
    make(path / "lock")
    with closing(open_box(path)) as folder:
        for function in (is_alive, claim, acquire):
            with pytest.raises(OSError, match=r"lock"):
                function(folder)
    found = find_boxes(own_boxes)
    assert [] == found.dead == found.live
    assert str(path) in found.problems[0]


def test_box_without_a_lock_file_is_judged_by_its_name(box: NewBox, own_boxes: Path) -> None:
    """A cleaner of the system may have removed the file of a running process."""
    (box.folder.path / "lock").unlink()
    assert State.ALIVE is state(box.folder)
    assert claim(box.folder) is None
    path = kill_with_box(own_boxes)
    (path / "lock").unlink()
    with closing(open_box(path)) as folder:
        assert State.DEAD is state(folder)
        lock = claim(folder)
        assert lock is not None
        lock.release()


@needs_root
def test_processes_of_other_namespaces_are_seen(own_boxes: Path) -> None:
    """As in a container that shares the memory of the machine: its process ids mean nothing here."""
    command = [sys.executable, "-c", f"{MAKE_IN_NAMESPACE}{WAIT}", str(own_boxes)]
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    probe = subprocess.run([*unshare, "true"], capture_output=True, text=True, timeout=60, check=False)
    if probe.returncode:
        pytest.skip(f"no process id namespaces here: {probe.stderr.strip()}")
    with subprocess.Popen([*unshare, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = own_boxes / process.stdout.readline().strip()
        assert "1-" == path.name[:2]
        assert State.ALIVE is state_of(path)
        process.kill()
    with (path / "lock").open("r+b") as file:  # waits until the process of the namespace is gone
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    assert State.DEAD is state_of(path)


MAKE_IN_NAMESPACE = """\
import sys
from pathlib import Path
from monitel_otlp.boxes.place import choose_root, new_box
box = new_box(choose_root(Path(sys.argv[1])))
print(box.folder.path.name, flush=True)
"""


def test_removed_box_is_gone(box: NewBox, own_boxes: Path) -> None:
    """The process that made it removes it while it holds the lock."""
    root = choose_root(own_boxes)
    assert remove_box(root.folder, box.folder.path.name)
    assert [] == root.folder.names()
    assert remove_box(root.folder, box.folder.path.name)
    assert not box.lock.keep()
    root.folder.close()
