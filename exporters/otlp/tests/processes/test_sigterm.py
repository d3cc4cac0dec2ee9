"""SIGTERM: a scheduler gives some seconds, and Python itself ends without atexit."""

from __future__ import annotations

import signal
import socket
import sys
import time
from contextlib import closing
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Protocol

import pytest

from monitel import _window, _window_py

from .conftest import PRELUDE, Ended
from .spools import last_line, spooled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .receiver import Receiver

CONFIGURE = """\
import signal
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, sigterm=True)
"""
TRAIN = """\
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT], 60.0)
for number in range(10):
    loss.add(number)
    clock.advance(60)
loss.add(10)  # in a window that is still open
clock.advance(1)
monitel.emit("checkpoint", step=10)
"""
READY = 'print("ready", flush=True)\n'
PAUSE = READY + "signal.pause()\n"
LIVE_ON = READY + "while pipeline.ended is None:\n    pass\n"  # a signal may come before a pause


def url_of(listening: socket.socket) -> str:
    """Where it listens."""
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def url(request: pytest.FixtureRequest, blackhole: socket.socket) -> str:
    """The URL of an endpoint that refuses, or never answers."""
    if request.param == "blackholed":
        return url_of(blackhole)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return url_of(gone)


class Terminate(Protocol):
    """What the fixture ``terminate`` gives."""

    def __call__(
        self,
        script: str,
        url: str,
        *,
        returncode: int = -signal.SIGTERM,
        when: Callable[[], object] = ...,
    ) -> Ended:
        """Run a script until it says ``ready`` and ``when`` returns; then send SIGTERM."""


@pytest.fixture
def terminate(tmp_path: Path) -> Terminate:
    """Send SIGTERM to a script, which must end within two seconds, and as expected."""

    def terminate(
        script: str,
        url: str,
        *,
        returncode: int = -signal.SIGTERM,
        when: Callable[[], object] = lambda: None,
    ) -> Ended:
        path = tmp_path / "train.py"
        path.write_text(PRELUDE + script)
        with Popen([sys.executable, path, url], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "ready\n" == process.stdout.readline()
                when()
                begin = time.monotonic()
                process.send_signal(signal.SIGTERM)
                stdout, stderr = process.communicate(timeout=20)
            finally:
                process.kill()  # where it hangs
        at = time.monotonic()
        assert returncode == process.returncode, stderr
        assert at - begin <= 2.0
        return Ended(stdout, stderr, at)

    return terminate


def test_everything_is_delivered(receiver: Receiver, terminate: Terminate, tmp_path: Path) -> None:
    """Also the window that is still open; then SIGTERM kills, as it always did."""
    ended = terminate(CONFIGURE + TRAIN + PAUSE, receiver.url)
    assert (list(range(1, 12)), ["checkpoint"]) == (
        receiver.values("loss.count"),
        [record.name for record in receiver.records()],
    )
    assert "monitel: exported 11 windows, 1 events\n" == ended.stderr
    assert [] == list(tmp_path.rglob("*.spool"))


@pytest.mark.parametrize("url", ["refused", "blackholed"], indirect=True)
def test_what_cannot_be_delivered_is_spooled(url: str, terminate: Terminate, tmp_path: Path) -> None:
    """Everything, and the last line says so."""
    ended = terminate(CONFIGURE + TRAIN + PAUSE, url)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    assert 12 == last_line(ended.stderr).spooled


BEFORE = """\
import signal

def theirs(number, frame):
    print("theirs", number, flush=True)
    sys.exit(7)

signal.signal(signal.SIGTERM, theirs)
"""


def test_the_handler_of_before_is_called(receiver: Receiver, terminate: Terminate) -> None:
    """With what is left to do done; it may end the process in its own way, and nothing is said twice."""
    ended = terminate(BEFORE + CONFIGURE + TRAIN + PAUSE, receiver.url, returncode=7)
    assert f"theirs {signal.SIGTERM:d}\n" == ended.stdout
    assert 11 == receiver.values("loss.count")[-1]
    assert 1 == ended.stderr.count("monitel: exported")


def test_a_process_that_lived_on_lives_on(receiver: Receiver, terminate: Terminate) -> None:
    """A handler that returns does not kill; the code after it works, and another ``configure()`` records again."""
    ignore = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
    late = "loss.add(1)\nmonitel.emit('late')\nassert pipeline.shutdown()\n"
    again = CONFIGURE + "monitel.emit('again')\nassert pipeline.shutdown()\nprint('end')\n"
    ended = terminate(ignore + CONFIGURE + TRAIN + LIVE_ON + late + again, receiver.url, returncode=0)
    assert ("end\n", [*range(1, 12), 1]) == (ended.stdout, receiver.values("loss.count"))  # it was open still
    assert ["checkpoint", "again"] == [record.name for record in receiver.records()]


def test_an_ignored_signal_stays_ignored(receiver: Receiver, terminate: Terminate) -> None:
    """The pipeline goes on with the process."""
    ignore = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    still = "assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN\n" + READY
    late = "signal.sigtimedwait([signal.SIGUSR1], 0.3)\nassert pipeline.ended is None\nmonitel.emit('late')\n"
    terminate(ignore + CONFIGURE + TRAIN + still + late, receiver.url, returncode=0)
    assert ["checkpoint", "late"] == [record.name for record in receiver.records()]


def test_sigterm_false_changes_nothing(receiver: Receiver, terminate: Terminate) -> None:
    """The signal's disposition is left alone, and it kills at once."""
    configure = CONFIGURE.replace("sigterm=True", "sigterm=False")
    check = "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    ended = terminate(configure + TRAIN + check + PAUSE, receiver.url)
    assert ("", []) == (ended.stderr, receiver.requests)


ADD = """\
from itertools import count

def theirs(*_):
    print(number, flush=True)
    os._exit(0)

import signal
signal.signal(signal.SIGTERM, theirs)
"""


@pytest.mark.skipif(_window.Accumulator is _window_py.Accumulator, reason="the Python window is locked while it adds")
def test_a_loop_that_adds_is_interrupted(receiver: Receiver, terminate: Terminate) -> None:
    """Every sample of before arrives."""
    loop = 'loss = Stat("loss", [COUNT], 3600.0)\nfor number in count():\n    loss.add(1)\n    if number == 1000:\n'
    ended = terminate(ADD + CONFIGURE + loop + f"        {READY}", receiver.url, returncode=0)
    number = int(ended.stdout)
    assert sum(receiver.values("loss.count")) in {number, number + 1}
    assert number >= 1000


def test_a_loop_that_emits_is_interrupted(receiver: Receiver, terminate: Terminate) -> None:
    """The same for events."""
    loop = "for number in count():\n    monitel.emit('step')\n    if number == 100:\n"
    ended = terminate(ADD + CONFIGURE + loop + f"        {READY}", receiver.url, returncode=0)
    assert len(receiver.records("step")) in {int(ended.stdout), int(ended.stdout) + 1}


def test_a_flush_that_waits_is_interrupted(blackhole: socket.socket, terminate: Terminate, tmp_path: Path) -> None:
    """The main thread is inside ``force_flush``, and the request hangs."""

    def hangs() -> None:
        connection, _ = blackhole.accept()
        with closing(connection):
            connections.append(connection.dup())
            assert connection.recv(1)

    connections: list[socket.socket] = []
    terminate(CONFIGURE + TRAIN + READY + "pipeline.force_flush(60)\n", url_of(blackhole), when=hangs)
    connections[0].close()
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")


LOCKED = """\
class Amount(int):
    def __radd__(self, other):
        print("ready", flush=True)
        signal.pause()

pipeline.meter_provider.get_meter("mine").create_counter("mine").add(Amount(1))  # added under a lock
"""


@pytest.mark.parametrize("url", ["refused"], indirect=True)
def test_an_instrument_that_is_locked_keeps_nothing_back(url: str, terminate: Terminate, tmp_path: Path) -> None:
    """The main thread is inside ``counter.add``, so that the SDK cannot collect: what it holds is lost alone."""
    terminate(CONFIGURE + TRAIN + LOCKED, url)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")


AGAIN = """\
def again(*_):
    print("again", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGALRM, again)
handle = signal.getsignal(signal.SIGTERM)

def first(*arguments):
    signal.signal(signal.SIGTERM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    handle(*arguments)

signal.signal(signal.SIGTERM, first)
"""


def test_a_second_signal_changes_nothing(
    blackhole: socket.socket, terminate: Terminate, tmp_path: Path
) -> None:
    """It comes while the first is handled, as from an impatient scheduler: nothing is lost or kept twice."""
    impatient = """\
import signal
signal.signal(signal.SIGTERM, lambda *_: print("theirs", flush=True))
"""
    ended = terminate(impatient + CONFIGURE + TRAIN + AGAIN + LIVE_ON, url_of(blackhole), returncode=0)
    assert (list(range(1, 12)), ["checkpoint"]) == spooled(tmp_path / "spool")
    assert "again\ntheirs\n" == ended.stdout


def test_a_child_that_recorded_nothing_dies_at_once(receiver: Receiver, terminate: Terminate) -> None:
    """Multiprocessing's ``terminate()`` of a worker sends SIGTERM: the inherited handler has nothing to deliver."""
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
    ended = terminate(CONFIGURE + TRAIN + fork + PAUSE, receiver.url)
    said = [line for line in ended.stderr.splitlines() if line.startswith("monitel")]  # Python 3.12 warns of the fork
    assert ["monitel: exported 11 windows, 1 events"] == said
    assert list(range(1, 12)) == receiver.values("loss.count")
