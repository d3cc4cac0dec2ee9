"""SIGTERM beside other handlers, in launchers, and while the main thread is inside C code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import monitel_otlp
from monitel_otlp.sigterm import is_launcher

from .conftest import PRELUDE
from .spools import last_line, spooled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import Start
    from .receiver import Receiver

_PURE = os.environ.get("MONITEL_NO_EXTENSIONS", "0") not in {"", "0"}
_BUILT = find_spec("monitel._sigterm_c") is not None or os.environ.get("MONITEL_REQUIRE_EXTENSIONS") == "1"
needs_c = pytest.mark.skipif(_PURE or not _BUILT, reason="needs monitel._sigterm_c")

CONFIGURE = """\
import ctypes, signal, threading
def blocked(seconds):  # in C, without a return to Python after a signal
    ctypes.CDLL(None).system(f"echo ready; exec sleep {seconds} >/dev/null 2>&1".encode())

pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
"""
TRAIN = """\
loss = Stat("loss", [COUNT], 3600.0)
for number in range(10):
    loss.add(number)
monitel.emit("checkpoint", step=10)
"""
READY = 'print("ready", flush=True)\n'
LIVE_ON = READY + "signal.sigtimedwait([signal.SIGUSR1], {})\n"
RECORDED = ([10], ["checkpoint"])


@dataclass(frozen=True)
class Ended:
    """How a script ended, and how many seconds after SIGTERM."""

    status: int
    stdout: str
    stderr: str
    seconds: float


class Terminate(Protocol):
    """What the fixture ``terminate`` gives."""

    def __call__(self, script: str, url: str, *, signals: int = 1) -> Ended:
        """Run a script until it prints ``ready``, then send SIGTERM."""


@pytest.fixture
def terminate(tmp_path: Path) -> Terminate:
    """Send SIGTERM to a script with a hard timeout."""

    def terminate(script: str, url: str, *, signals: int = 1) -> Ended:
        path = tmp_path / "train.py"
        path.write_text(PRELUDE + script)
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        process = subprocess.Popen([sys.executable, "-W", "ignore", path, url], cwd=tmp_path, **pipes)
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            begin = time.monotonic()
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=20)
            seconds = time.monotonic() - begin
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert "ready\n" == first, stderr
        return Ended(process.returncode, stdout, stderr, seconds)

    return terminate


@pytest.fixture
def refusing() -> str:
    """A URL at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return url_of(gone)


@pytest.fixture
def dripping() -> Iterator[str]:
    """A backend that answers one byte at a time, without end."""
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            while not ended.wait(0.1):
                try:
                    connection.sendall(b"H")
                except OSError:
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield url_of(listening)
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def arrived(receiver: Receiver) -> tuple[list[Any], list[str]]:
    """Return what a healthy backend has received."""
    return (list(receiver.values("loss.count")), [record.name for record in receiver.records()])


@needs_c
@pytest.mark.parametrize("signals", [1, 20])
def test_everything_is_delivered_from_c_code(receiver: Receiver, terminate: Terminate, signals: int) -> None:
    """The main thread never returns to Python: within two seconds the process ends with the usual status."""
    ended = terminate(CONFIGURE + TRAIN + "blocked(60)\n", receiver.url, signals=signals)
    assert -signal.SIGTERM == ended.status
    assert RECORDED == arrived(receiver)
    assert ended.seconds <= 2.0
    assert "monitel: exported 1 windows, 1 events\n" == ended.stderr


@needs_c
@pytest.mark.parametrize("backend", ["refusing", "blackhole", "dripping"])
def test_everything_is_spooled_from_c_code(
    request: pytest.FixtureRequest, terminate: Terminate, tmp_path: Path, backend: str
) -> None:
    """The same where the backend is away, hangs, or never ends its answer."""
    found = request.getfixturevalue(backend)
    ended = terminate(CONFIGURE + TRAIN + "blocked(60)\n", found if isinstance(found, str) else url_of(found))
    assert -signal.SIGTERM == ended.status
    assert RECORDED == spooled(tmp_path / "spool")
    assert ended.seconds <= 2.0
    assert 2 == last_line(ended.stderr).spooled


@needs_c
def test_c_handler_is_installed_again(receiver: Receiver, terminate: Terminate) -> None:
    """A library has set a handler for some time and restored the one before, as trainers do."""
    temporary = """\
import monitel.sigterm
before = signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGTERM, before)
monitel.sigterm.check()
"""
    ended = terminate(CONFIGURE + TRAIN + temporary + "blocked(60)\n", receiver.url)
    assert (-signal.SIGTERM, RECORDED) == (ended.status, arrived(receiver))


COMPOSED = """\
before = signal.getsignal(signal.SIGTERM)

def later(*arguments):
    before(*arguments)
    print("later", flush=True)

signal.signal(signal.SIGTERM, later)
"""


def test_later_handler_that_calls_this_one_lives_on(receiver: Receiver, terminate: Terminate) -> None:
    """What there is is flushed; the pipeline goes on, and delivers what the process records before its end."""
    late = "assert [] == [*signal.sigpending()]\nassert pipeline.ended is None\nmonitel.emit('late')\n"
    ended = terminate(CONFIGURE + TRAIN + COMPOSED + LIVE_ON.format(0.5) + late, receiver.url)
    assert (0, "later\n") == (ended.status, ended.stdout)
    assert ([10], ["checkpoint", "late"]) == arrived(receiver)


def test_flush_is_delivered_before_a_later_handler_ends_the_process(receiver: Receiver, terminate: Terminate) -> None:
    """A handler that calls this one and then ends the process by itself loses nothing."""
    script = COMPOSED.replace('print("later", flush=True)', "os._exit(7)")
    ended = terminate(CONFIGURE + TRAIN + script + LIVE_ON.format(20), receiver.url)
    assert (7, RECORDED) == (ended.status, arrived(receiver))


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGTERM, lambda *_: None)\n",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        pytest.param("import faulthandler\nfaulthandler.register(signal.SIGTERM)\n", marks=needs_c, id="C"),
    ],
)
def test_auto_leaves_a_handled_signal_alone(receiver: Receiver, terminate: Terminate, before: str) -> None:
    """The application's handler stays the only one, in Python or in C, and the pipeline ends at exit."""
    unchanged = "assert signal.getsignal(signal.SIGTERM) == handler\n"
    script = "import signal\n" + before + "handler = signal.getsignal(signal.SIGTERM)\n" + CONFIGURE + TRAIN + unchanged
    late = "assert pipeline.ended is None\nmonitel.emit('late')\n"
    ended = terminate(script + LIVE_ON.format(0.5) + late, receiver.url)
    assert (0, ([10], ["checkpoint", "late"])) == (ended.status, arrived(receiver))


def test_auto_leaves_the_signal_alone_outside_the_main_thread(start: Start) -> None:
    """``configure()`` works in any thread."""
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)


def test_true_requires_the_main_thread(start: Start) -> None:
    """Nothing is configured then."""
    errors: list[Exception] = []

    def configure() -> None:
        try:
            start(sigterm=True)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=configure)
    thread.start()
    thread.join()
    assert ["sigterm=True must be asked for in the main thread"] == [str(error).partition(":")[0] for error in errors]


@pytest.mark.parametrize("wrong", ["on", None, 1])
def test_sigterm_is_checked(wrong: Any) -> None:
    """It is True, False or ``"auto"``."""
    with pytest.raises(TypeError, match='sigterm must be True, False or "auto", got '):
        monitel_otlp.configure(sigterm=wrong)


@pytest.mark.parametrize("sigterm", [True, "auto"])
def test_shutdown_restores_the_default_action(start: Start, sigterm: Any) -> None:
    """A process without a pipeline has no handler and no thread of one."""
    pipeline = start(sigterm=sigterm)
    assert callable(signal.getsignal(signal.SIGTERM))
    pipeline.shutdown()
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)
    assert "monitel-sigterm" not in {thread.name for thread in threading.enumerate()}


def test_second_configure_replaces_the_handler(start: Start) -> None:
    """The second one's previous handler is that of before the first."""
    start()
    start().shutdown()
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)


AT_EXIT = "import atexit\natexit.register(print, 'ready', flush=True)\n"  # before the pipeline's shutdown


@pytest.mark.parametrize("wait", [READY + "pipeline.shutdown()\n", AT_EXIT])
def test_signal_during_the_exit(blackhole: socket.socket, terminate: Terminate, tmp_path: Path, wait: str) -> None:
    """The shutdown hangs in a request: everything is on disk once, and the status is that of the signal."""
    ended = terminate(CONFIGURE + TRAIN + wait, url_of(blackhole))
    assert -signal.SIGTERM == ended.status
    assert RECORDED == spooled(tmp_path / "spool")
    assert ended.seconds <= 4.0


def test_process_after_shutdown_dies_at_once(receiver: Receiver, terminate: Terminate) -> None:
    """Even in C code: the default action is back."""
    ended = terminate(CONFIGURE + "pipeline.shutdown()\nblocked(60)\n", receiver.url)
    assert -signal.SIGTERM == ended.status
    assert ended.seconds <= 0.4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("python train.py", False),
        ("python -m train torchrun", False),
        ("python -c pass torchrun", False),
        ("python", False),
        ("python -", False),
        ("python -u -X dev -W error /opt/bin/torchrun --nproc-per-node 2 train.py", True),
        ("python -um torch.distributed.run train.py", True),
        ("python -mtorch.distributed.run train.py", True),
        ("python -m torch.distributed.launch train.py", True),
        ("python /opt/bin/accelerate launch train.py", True),
    ],
)
def test_launchers_are_recognized(arguments: str, expected: bool) -> None:
    """A program that starts the training processes has nothing to deliver."""
    assert expected == is_launcher(arguments.split())


def test_auto_leaves_the_signal_alone_in_launchers(receiver: Receiver, tmp_path: Path) -> None:
    """A launcher's command line is enough."""
    script = tmp_path / "torchrun"
    check = "import signal\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    script.write_text(f"import monitel_otlp\nmonitel_otlp.configure(endpoint={receiver.url!r})\n{check}")
    subprocess.run([sys.executable, script], check=True, timeout=60)
