"""monitel.sigterm and forks: a child has the previous handler, and its SIGTERM does not affect the parent."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from tests.processes.core.sigterm_script import FLUSHED, IN_MAIN, INSTALL, LATER, terminate

if TYPE_CHECKING:
    from pathlib import Path


FORK = {
    "main": "pid = os.fork()\n",
    "thread": """\
def fork():
    global pid
    pid = os.fork()
    if pid == 0:
        child()

thread = threading.Thread(target=fork)
thread.start()
thread.join()
""",
    "multiprocessing": """\
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
pid = process.pid
""",
    "C": "pid = ctypes.CDLL(None).fork()\n",
}
CHILD = """\
def child():
    os.write(writing, b"!")
    ctypes.CDLL(None).pause()
    os._exit(1)

reading, writing = os.pipe()
"""
TERMINATE_CHILD = """\
if pid == 0:
    child()
os.read(reading, 1)
begin = time.monotonic()
os.kill(pid, signal.SIGTERM)
assert wait_for(pid) == -signal.SIGTERM
assert time.monotonic() - begin < 0.4
live_on()
"""


@pytest.mark.parametrize("fork", FORK)
def test_forked_child_dies_at_once(tmp_path: Path, twin: str, fork: str) -> None:
    """A child has the default action again, and neither process calls ``end`` for the other."""
    if (fork, twin) == ("C", "py"):
        pytest.skip("Python does not run in a child that a C library forks")
    ended = terminate(tmp_path, twin, INSTALL + CHILD + FORK[fork] + TERMINATE_CHILD)
    assert (-signal.SIGTERM, [IN_MAIN]) == (ended.status, ended.lines)


def test_forked_child_has_the_previous_handler(tmp_path: Path, twin: str) -> None:
    """The application's handler runs in the child."""
    before = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
    script = INSTALL + CHILD + FORK["main"] + TERMINATE_CHILD.replace("-signal.SIGTERM", "7")
    ended = terminate(tmp_path, twin, before + script)
    assert (7, [IN_MAIN]) == (ended.status, ended.lines)


def test_later_handler_in_a_forked_child(tmp_path: Path, twin: str) -> None:
    """If the child has inherited a later handler that calls this one, it does not flush for the parent."""
    script = """\
pid = os.fork()
if pid == 0:
    os.close(1)
    os.open(os.devnull, os.O_WRONLY)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not handler._claim.locked()
    os._exit(7)
assert wait_for(pid) == 7
live_on(0.5)
"""
    ended = terminate(tmp_path, twin, INSTALL + LATER + script)
    assert (0, ["later", FLUSHED]) == (ended.status, ended.lines)


def test_forked_child_installs_its_handler(tmp_path: Path, twin: str) -> None:
    """A child can install a handler like any other process."""
    script = """\
pid = os.fork()
if pid == 0:
    handler = sigterm.SigtermHandler(lambda timeout: os.write(writing, threading.current_thread().name.encode()), flush)
    handler.install()
    os.write(writing, b"!")
    ctypes.CDLL(None).system(b"exec sleep 60 >/dev/null 2>&1") if sigterm._c else live_on()
    os._exit(1)
os.read(reading, 1)
threading.Event().wait(0.1)
os.kill(pid, signal.SIGTERM)
assert wait_for(pid) == -signal.SIGTERM
name = os.read(reading, 100).decode()
assert name == ("monitel-sigterm" if sigterm._c else "MainThread"), name
live_on()
"""
    ended = terminate(tmp_path, twin, INSTALL + CHILD + script)
    assert -signal.SIGTERM == ended.status
