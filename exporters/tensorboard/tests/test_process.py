"""Forks and exits: each process writes what is its own, once, and ends in time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    Read: TypeAlias = Callable[[Path], dict[str, list[tuple[int, float | str]]]]

STAT = """
import datetime, os, sys, monitel, monitel_tensorboard
loss = monitel.Stat("loss", [monitel.SUM], datetime.timedelta(minutes=1))
"""


def test_exit_writes_what_is_open(tmp_path: Path, read: Read, run_script: Callable[..., str]) -> None:
    """A script that neither flushes nor uninstalls loses nothing: monitel is flushed before the writer closes."""
    script = f"{STAT}monitel_tensorboard.install(sys.argv[1])\nloss.add(1)\nmonitel.emit('end', ok=True)"
    assert run_script(script, tmp_path) == ""
    assert read(tmp_path) == {"loss.sum": [(0, 1)], "end/ok": [(0, 1)]}


def test_exit_after_an_exception_writes_what_is_open(
    tmp_path: Path, read: Read, run_script: Callable[..., str]
) -> None:
    """A job that fails shows how far it came."""
    script = f"{STAT}monitel_tensorboard.install(sys.argv[1])\nloss.add(1)\nsys.exit(1)"
    run_script(script, tmp_path, returncode=1)
    assert read(tmp_path) == {"loss.sum": [(0, 1)]}


def test_exit_on_a_hanging_disk_is_bounded(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """A disk that hangs for ever costs all writers together one time limit, and a line each."""
    script = f"""{STAT}
import threading
from monitel_tensorboard.event_file import EventFile
from monitel_tensorboard import process
assert process.EXIT_TIMEOUT == 5
process.EXIT_TIMEOUT = 0.5
EventFile.append = lambda *_: threading.Event().wait()
installed = [monitel_tensorboard.install(sys.argv[1]) for _ in range(20)]
loss.add(1)
"""
    start = time.monotonic()
    assert run_script(script, tmp_path).count("were dropped, 1 of them by close()") == 20
    assert time.monotonic() - start < 8


def test_exit_without_a_log_dir_is_quick(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """A folder that cannot be made costs two lines, and the exit code stays 0."""
    (tmp_path / "file").write_text("")
    script = f"{STAT}monitel_tensorboard.install(sys.argv[1] + '/file/run')\nloss.add(1)"
    said = run_script(script, tmp_path)
    assert "cannot write to" in said
    assert "were dropped, 1 of them by close()" in said


@pytest.mark.parametrize("end", ["os._exit(uninstall())", "sys.exit()"])
def test_a_forked_child_writes_its_own_file(
    tmp_path: Path, read: Read, run_script: Callable[..., str], end: str
) -> None:
    """Parent and child write every point of theirs once, also what was queued at the moment of the fork."""
    script = f"""{STAT}
installed = monitel_tensorboard.install(sys.argv[1], flush_secs=3600)
uninstall = lambda: not installed.uninstall()
assert installed.writer.flush()
for step in range(100):
    installed.writer.add_scalar("parent", step, step)
loss.add(1)
pid = os.fork()
if pid == 0:
    assert (len(installed.writer._queue), installed.writer.dropped) == (0, 0)
    installed.writer.add_scalar("child", 1, 1)
    assert installed.writer.flush()
    loss.add(2)
    {end}
assert os.waitpid(pid, 0)[1] == 0
installed.writer.add_scalar("parent", 100, 100)
"""
    run_script(script, tmp_path)
    points = read(tmp_path)
    assert points.pop("loss.sum") in ([(0, 1), (0, 2)], [(0, 2), (0, 1)])
    assert points == {"parent": [(step, step) for step in range(101)], "child": [(1, 1)]}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_forked_child_whose_first_window_closes_at_exit(
    tmp_path: Path, read: Read, run_script: Callable[..., str]
) -> None:
    """From Python 3.12 on no thread starts at that moment; the points are written all the same."""
    script = f"""{STAT}
monitel_tensorboard.install(sys.argv[1])
pid = os.fork()
loss.add(2 if pid == 0 else 1)
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
    run_script(script, tmp_path)
    assert sorted(read(tmp_path)["loss.sum"]) == [(0, 1), (0, 2)]


def test_a_forked_child_closes_the_windows_of_idle_stats(
    tmp_path: Path, read: Read, run_script: Callable[..., str]
) -> None:
    """From the child's first event on, as in the parent."""
    script = f"""{STAT}
import threading
monitel_tensorboard.install(sys.argv[1], expiry_secs=0.01, flush_secs=0.01)
pid = os.fork()
if pid == 0:
    monitel.emit("child", n=1)
    idle = monitel.Stat("idle", [monitel.SUM], datetime.timedelta(milliseconds=1))
    idle.add(1)
    pause = threading.Event()
    while idle.count:
        pause.wait(0.005)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    run_script(script, tmp_path)


def test_a_child_that_adds_nothing_makes_no_file(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """Workers that only load data leave no trace."""
    script = f"""{STAT}
monitel_tensorboard.install(sys.argv[1])
loss.add(1)
pid = os.fork()
if pid == 0:
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
"""
    run_script(script, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_forks_while_all_threads_are_busy_do_not_hang(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """Whatever lock a thread of the parent holds at the fork, the child has its own."""
    script = f"""{STAT}
import threading
installed = monitel_tensorboard.install(sys.argv[1], flush_secs=0.0001, expiry_secs=0.0001)
done = threading.Event()
def add():
    while not done.is_set():
        monitel.emit("busy", n=1)
threads = [threading.Thread(target=add) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(30):
    pid = os.fork()
    if pid == 0:
        monitel.emit("child", n=1)
        os._exit(not installed.uninstall(timeout=20))
    assert os.waitpid(pid, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
"""
    run_script(script, tmp_path, timeout=120)
    assert len(list(tmp_path.iterdir())) == 31


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_multiprocessing_write_at_their_end(
    tmp_path: Path, read: Read, run_script: Callable[..., str], method: str
) -> None:
    """They leave without atexit, by os._exit, and yet nothing is lost."""
    script = f"""{STAT}
import multiprocessing
def train(log_dir):
    if {method!r} != "fork":
        monitel_tensorboard.install(log_dir)
    loss.add(2)
if __name__ == "__main__":
    if {method!r} == "fork":
        monitel_tensorboard.install(sys.argv[1])
    child = multiprocessing.get_context({method!r}).Process(target=train, args=(sys.argv[1],))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
    run_script(script, tmp_path)
    assert read(tmp_path) == {"loss.sum": [(0, 2)]}


def test_a_killed_process_loses_only_the_last_moment(
    tmp_path: Path, read: Read, run_script: Callable[..., str]
) -> None:
    """What was flushed is there after SIGKILL: no buffer of ours stands between."""
    script = f"""{STAT}
writer = monitel_tensorboard.SummaryWriter(sys.argv[1])
writer.add_scalar("loss", 1, 1)
assert writer.flush()
os.kill(os.getpid(), 9)
"""
    run_script(script, tmp_path, returncode=-9)
    assert read(tmp_path) == {"loss": [(1, 1)]}
