"""SIGTERM, after which a scheduler waits for seconds and Python ends without ``atexit``: everything is kept."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.support import scripts
from tests.support.hostile import url_of
from tests.support.scripts import READY, RECORD, needs_c
from tests.support.spools import last_line, spooled

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Terminate

CONFIGURE = "import signal\n" + scripts.CONFIGURE.replace(")", ", sigterm=True)")
PAUSE = READY + "signal.pause()\n"
LIVE_ON = READY + "while pipeline.ended is None:\n    pass\n"  # a signal may come before a pause  # english: keep


def test_everything_is_delivered(receiver: Receiver, terminate: Terminate, tmp_path: Path) -> None:
    """Open windows are closed and delivered, and then SIGTERM ends the process as by default."""
    ended = terminate(CONFIGURE + RECORD + PAUSE, receiver.url)
    assert (list(range(1, 12)), ["checkpoint"]) == (
        receiver.values("loss.count"),
        receiver.record_names(),
    )
    assert "monitel: exported 11 windows and numbers, 1 events\n" == ended.stderr
    assert [] == list(tmp_path.rglob("*.spool"))


@pytest.mark.parametrize("unreachable", ["refused", "blackholed"], indirect=True)
def test_undelivered_items_are_spooled(unreachable: str, terminate: Terminate, tmp_path: Path) -> None:
    """Everything is in the spool, and the last line reports the number of items."""
    ended = terminate(CONFIGURE + RECORD + PAUSE, unreachable)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    assert 12 == last_line(ended.stderr).spooled


BEFORE = """\
import signal

def theirs(number, frame):
    os.write(1, b"theirs %d\\n" % number)
    sys.exit(7)

signal.signal(signal.SIGTERM, theirs)
"""


def test_previous_handler_is_called(receiver: Receiver, terminate: Terminate) -> None:
    """The previous handler is called after the shutdown, may end the process, and the last line is printed once."""
    ended = terminate(BEFORE + CONFIGURE + RECORD + PAUSE, receiver.url, status=7)
    assert f"theirs {signal.SIGTERM:d}\n" == ended.stdout
    assert 11 == receiver.values("loss.count")[-1]
    assert 1 == ended.stderr.count("monitel: exported")


def test_previous_handler_may_continue(receiver: Receiver, terminate: Terminate) -> None:
    """If the previous handler returns, the process continues, and another ``configure()`` records again."""
    ignore = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
    late = "loss.add(1)\nmonitel.emit('late')\nassert pipeline.shutdown()\n"
    again = CONFIGURE + "monitel.emit('again')\nassert pipeline.shutdown()\nprint('end')\n"
    ended = terminate(ignore + CONFIGURE + RECORD + LIVE_ON + late + again, receiver.url, status=0)
    assert ("end\n", [*range(1, 12), 1]) == (ended.stdout, receiver.values("loss.count"))  # an open window again
    assert ["checkpoint", "again"] == receiver.record_names()


def test_ignored_signal_stays_ignored(receiver: Receiver, terminate: Terminate) -> None:
    """The process and the pipeline continue."""
    ignore = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    still = "assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN\n" + READY
    pause = "signal.sigtimedwait([signal.SIGUSR1], 0.3)\n"
    late = "assert pipeline.ended is None\nmonitel.emit('late')\n"  # english: keep
    terminate(ignore + CONFIGURE + RECORD + still + pause + late, receiver.url, status=0)
    assert ["checkpoint", "late"] == receiver.record_names()


def test_sigterm_false_installs_no_handler(receiver: Receiver, terminate: Terminate) -> None:
    """The signal ends the process at once."""
    configure = CONFIGURE.replace("sigterm=True", "sigterm=False")
    check = "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    ended = terminate(configure + RECORD + check + PAUSE, receiver.url)
    assert ("", []) == (ended.stderr, receiver.requests)


ADD = """\
from itertools import count

def theirs(*_):
    os.write(1, b"%d\\n" % number)
    os._exit(0)

import signal
signal.signal(signal.SIGTERM, theirs)
"""


@needs_c  # the Python window is locked during an add()
def test_signal_interrupts_a_loop_that_adds(receiver: Receiver, terminate: Terminate) -> None:
    """Every sample that was added before the signal arrives."""
    loop = 'loss = Stat("loss", [COUNT], 3600.0)\nfor number in count():\n    loss.add(1)\n    if number == 1000:\n'
    ended = terminate(ADD + CONFIGURE + loop + f"        {READY}", receiver.url, status=0)
    number = int(ended.stdout)
    assert sum(receiver.values("loss.count")) in {number, number + 1}
    assert number >= 1000


def test_signal_interrupts_a_loop_that_emits(receiver: Receiver, terminate: Terminate) -> None:
    """Every event that was emitted before the signal arrives."""
    loop = "for number in count():\n    monitel.emit('step')\n    if number == 100:\n"
    ended = terminate(ADD + CONFIGURE + loop + f"        {READY}", receiver.url, status=0)
    assert len(receiver.records("step")) in {int(ended.stdout), int(ended.stdout) + 1}


def test_signal_interrupts_a_flush(blackhole: socket.socket, terminate: Terminate, tmp_path: Path) -> None:
    """Everything is spooled if the main thread waits in ``force_flush`` for a request that hangs."""

    def hangs() -> None:
        connection, _ = blackhole.accept()
        with closing(connection):
            connections.append(connection.dup())
            assert connection.recv(1)

    connections: list[socket.socket] = []
    terminate(CONFIGURE + RECORD + READY + "pipeline.force_flush(60)\n", url_of(blackhole), when=hangs)
    connections[0].close()
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")


LOCKED = """\
class Amount(int):
    def __radd__(self, other):
        print("ready", flush=True)
        signal.pause()

pipeline.meter_provider.get_meter("mine").create_counter("mine").add(Amount(1))  # added under a lock
"""


@pytest.mark.parametrize("unreachable", ["refused"], indirect=True)
def test_locked_instrument_does_not_block_the_exit(unreachable: str, terminate: Terminate, tmp_path: Path) -> None:
    """If the main thread is inside ``counter.add``, the SDK cannot collect; everything else is spooled."""
    terminate(CONFIGURE + RECORD + LOCKED, unreachable)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")


AGAIN = """\
def again(*_):
    os.write(1, b"again\\n")
    os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGALRM, again)
handle = signal.getsignal(signal.SIGTERM)

def first(*arguments):
    signal.signal(signal.SIGTERM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    handle(*arguments)

signal.signal(signal.SIGTERM, first)
"""


def test_second_signal_changes_nothing(blackhole: socket.socket, terminate: Terminate, tmp_path: Path) -> None:
    """If a second signal arrives while the first is handled, everything is spooled once."""
    impatient = """\
import signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"theirs\\n"))
"""
    ended = terminate(impatient + CONFIGURE + RECORD + AGAIN + LIVE_ON, url_of(blackhole), status=0)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    assert "again\ntheirs\n" == ended.stdout


def test_signal_ends_a_child_without_items_at_once(receiver: Receiver, terminate: Terminate) -> None:
    """``Process.terminate()`` of multiprocessing sends SIGTERM to workers, which inherit the handler."""
    fork = """\
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(writing, b"!")
    signal.pause()
os.read(reading, 1)  # Python forgets a signal that comes inside fork()
os.kill(pid, signal.SIGTERM)
_, status = os.waitpid(pid, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
"""
    ended = terminate(CONFIGURE + RECORD + fork + PAUSE, receiver.url)
    assert "monitel: exported 11 windows and numbers, 1 events\n" == ended.stderr
    assert list(range(1, 12)) == receiver.values("loss.count")
