"""Forks and exits: each process writes its points once, and ends in time."""

from __future__ import annotations

import re
import sys
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


def test_exit_writes_open_windows(tmp_path: Path, read: Read, run_script: Callable[..., str]) -> None:
    """A script that neither flushes nor uninstalls loses no window: monitel is flushed before the writer closes."""
    script = f"{STAT}monitel_tensorboard.install(sys.argv[1])\nloss.add(1)\nmonitel.emit('end', ok=True)"
    assert run_script(script, tmp_path) == ""
    assert read(tmp_path) == {"loss.sum": [(0, 1)], "end/ok": [(0, 1)]}


def test_exit_after_an_exception_writes_open_windows(
    tmp_path: Path, read: Read, run_script: Callable[..., str]
) -> None:
    """A job that fails writes its last windows."""
    script = f"{STAT}monitel_tensorboard.install(sys.argv[1])\nloss.add(1)\nsys.exit(1)"
    run_script(script, tmp_path, returncode=1)
    assert read(tmp_path) == {"loss.sum": [(0, 1)]}


def test_events_of_exit_handlers_are_written(tmp_path: Path, read: Read, run_script: Callable[..., str]) -> None:
    """An exit handler that was registered after install() may log, even if multiprocessing is imported later."""
    script = f"""{STAT}
import atexit
monitel_tensorboard.install(sys.argv[1])
atexit.register(monitel.emit, "checkpoint", final=True)
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=print)
child.start()
child.join()
"""
    run_script(script, tmp_path)
    assert {"checkpoint/final": [(0, 1)]} == read(tmp_path)


def test_exit_on_a_hanging_disk_is_bounded(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """A disk that hangs forever delays the exit by one time limit for all writers, with one warning each."""
    script = f"""{STAT}
import threading, time
from monitel_tensorboard.event_file import EventFile
from monitel_tensorboard import process
assert process.EXIT_TIMEOUT == 5
process.EXIT_TIMEOUT = 1.5
EventFile.append = lambda *_: threading.Event().wait()
installed = [monitel_tensorboard.install(sys.argv[1]) for _ in range(20)]
loss.add(1)
print("exit at", time.monotonic())
"""
    output = run_script(script, tmp_path)
    took = time.monotonic() - float(re.search(r"exit at (\S+)", output)[1])  # type: ignore[index]
    assert output.count("were dropped, 1 of them by close()") == 20
    assert 1.5 <= took < 20 * 1.5 / 2  # one limit for all, not one for each


def test_exit_without_a_log_dir_is_quick(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """A folder that cannot be created gives two warnings, and the exit code stays 0."""
    (tmp_path / "file").write_text("")
    script = f"{STAT}monitel_tensorboard.install(sys.argv[1] + '/file/run')\nloss.add(1)"
    output = run_script(script, tmp_path)
    assert "cannot write to" in output
    assert "were dropped, 1 of them by close()" in output


@pytest.mark.parametrize("end", ["os._exit(uninstall())", "sys.exit()"])
def test_forked_child_writes_a_separate_file(
    tmp_path: Path, read: Read, run_script: Callable[..., str], end: str
) -> None:
    """Parent and child write each of their points once, even those in the queue at the fork."""
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


def test_forked_child_whose_first_window_closes_at_exit(
    tmp_path: Path, read: Read, run_script: Callable[..., str]
) -> None:
    """From Python 3.12 on no thread can start at exit; the points are still written."""
    script = f"""{STAT}
monitel_tensorboard.install(sys.argv[1])
pid = os.fork()
loss.add(2 if pid == 0 else 1)
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
    run_script(script, tmp_path)
    assert sorted(read(tmp_path)["loss.sum"]) == [(0, 1), (0, 2)]


def test_forked_child_closes_the_windows_of_idle_stats(
    tmp_path: Path, read: Read, run_script: Callable[..., str]
) -> None:
    """Idle windows are closed as in the parent, from the child's first event on."""
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


def test_child_that_adds_nothing_creates_no_file(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """Workers that only load data write nothing."""
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


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="CPython 3.13 may leave a dict locked in a child"
)
def test_forks_while_all_threads_are_busy_do_not_hang(tmp_path: Path, run_script: Callable[..., str]) -> None:
    """A child has new locks, even if threads of the parent hold them at the fork."""
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
def test_children_of_multiprocessing_write_at_exit(
    tmp_path: Path, read: Read, run_script: Callable[..., str], method: str
) -> None:
    """Children that end without atexit, by os._exit, lose no window."""
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


def test_killed_process_loses_only_queued_points(tmp_path: Path, read: Read, run_script: Callable[..., str]) -> None:
    """Flushed points are in the file after SIGKILL, because there is no buffer in the process."""
    script = f"""{STAT}
writer = monitel_tensorboard.SummaryWriter(sys.argv[1])
writer.add_scalar("loss", 1, 1)
assert writer.flush()
os.kill(os.getpid(), 9)
"""
    run_script(script, tmp_path, returncode=-9)
    assert read(tmp_path) == {"loss": [(1, 1)]}
