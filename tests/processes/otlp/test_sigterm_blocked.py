"""SIGTERM with other signal handlers, in launchers, and while the main thread is inside C code."""

from __future__ import annotations

import signal
import threading
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import scripts
from tests.support.hostile import Peer, refusing_url, url_of
from tests.support.scripts import READY, needs_c
from tests.support.spools import last_line, spooled

import monitel_otlp
from monitel_otlp.config.launchers import is_launcher

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

pytestmark = pytest.mark.timed

CONFIGURE = (
    """\
import ctypes, signal, threading
def blocked(seconds):  # in C, without a return to Python after a signal
    ctypes.CDLL(None).system(f"echo ready; exec sleep {seconds} >/dev/null 2>&1".encode())

"""
    + scripts.CONFIGURE
)
TRAIN = """\
loss = Stat("loss", [COUNT], 3600.0)
for number in range(10):
    loss.add(number)
monitel.emit("checkpoint", step=10)
"""
LIVE_ON = READY + "signal.sigtimedwait([signal.SIGUSR1], {})\n"
RECORDED = ([10], ["checkpoint"])


@pytest.fixture
def refusing() -> str:
    """A URL that refuses connections."""
    return refusing_url()


@pytest.fixture
def dripping() -> Iterator[str]:
    """The URL of a backend that sends an endless answer one byte at a time."""
    with Peer(lambda peer, connection: peer.drip(connection, repeat(b"H"))) as peer:
        yield peer.url


def arrived(receiver: Receiver) -> tuple[list[Any], list[str]]:
    """Return the values of ``loss.count`` and the names of the records that a backend has received."""
    return (list(receiver.values("loss.count")), receiver.record_names())


def test_everything_is_delivered_if_the_signal_interrupts_the_black_box(
    receiver: Receiver, terminate: Terminate
) -> None:
    """The main thread holds a lock of the box, and waits for the threads that write to the box as well."""
    interrupt = """\
from monitel_otlp.black_box.own_file import OwnFile
write = OwnFile.write
def interrupted(self, content, offset):
    if threading.current_thread() is threading.main_thread():
        print("ready", flush=True)
        signal.pause()
    write(self, content, offset)
OwnFile.write = interrupted
monitel.emit("interrupted")
"""
    terminate(CONFIGURE + TRAIN + interrupt, receiver.url)
    assert RECORDED == arrived(receiver)


@needs_c
@pytest.mark.parametrize("signals", [1, 20])
def test_everything_is_delivered_from_c_code(receiver: Receiver, terminate: Terminate, signals: int) -> None:
    """Although the main thread never returns to Python, the process ends within two seconds, by the signal."""
    ended = terminate(CONFIGURE + TRAIN + "blocked(60)\n", receiver.url, signals=signals)
    assert RECORDED == arrived(receiver)
    assert "monitel: exported 1 windows and numbers, 1 events\n" == ended.stderr


@needs_c
@pytest.mark.parametrize("backend", ["refusing", "blackhole", "dripping"])
def test_everything_is_spooled_from_c_code(
    request: pytest.FixtureRequest, terminate: Terminate, tmp_path: Path, backend: str
) -> None:
    """The backend may refuse connections, hang, or send an endless answer."""
    found = request.getfixturevalue(backend)
    ended = terminate(CONFIGURE + TRAIN + "blocked(60)\n", found if isinstance(found, str) else url_of(found))
    assert RECORDED == spooled(tmp_path / "spool")
    assert 2 == last_line(ended.stderr).spooled


@needs_c
def test_c_handler_is_installed_again(receiver: Receiver, terminate: Terminate) -> None:
    """A library may replace the handler temporarily and restore the Python handler, as trainers do."""
    temporary = """\
import monitel.sigterm
before = signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGTERM, before)
monitel.sigterm.check()
"""
    terminate(CONFIGURE + TRAIN + temporary + "blocked(60)\n", receiver.url, within=20)
    assert RECORDED == arrived(receiver)


COMPOSED = """\
before = signal.getsignal(signal.SIGTERM)

def later(*arguments):
    before(*arguments)
    print("later", flush=True)

signal.signal(signal.SIGTERM, later)
"""


def test_later_handler_that_calls_this_one_may_continue(receiver: Receiver, terminate: Terminate) -> None:
    """Recorded items are flushed, the pipeline continues, and items that are recorded later are delivered at exit."""
    late = "assert [] == [*signal.sigpending()]\nassert pipeline.ended is None\nmonitel.emit('late')\n"  # english: keep
    script = CONFIGURE + TRAIN + COMPOSED + LIVE_ON.format(0.5) + late
    assert "later\n" == terminate(script, receiver.url, status=0, within=20).stdout
    assert ([10], ["checkpoint", "late"]) == arrived(receiver)


def test_flush_is_delivered_before_a_later_handler_ends_the_process(receiver: Receiver, terminate: Terminate) -> None:
    """Nothing is lost if a later handler calls this one and then ends the process."""
    script = COMPOSED.replace('print("later", flush=True)', "os._exit(7)")
    terminate(CONFIGURE + TRAIN + script + LIVE_ON.format(20), receiver.url, status=7, within=20)
    assert RECORDED == arrived(receiver)


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGTERM, lambda *_: None)\n",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        pytest.param("import faulthandler\nfaulthandler.register(signal.SIGTERM)\n", marks=needs_c, id="C"),
    ],
)
def test_auto_does_not_replace_a_handler(receiver: Receiver, terminate: Terminate, before: str) -> None:
    """The handler of the application stays the only one, in Python or in C, and the pipeline ends at exit."""
    unchanged = "assert signal.getsignal(signal.SIGTERM) == handler\n"
    script = "import signal\n" + before + "handler = signal.getsignal(signal.SIGTERM)\n" + CONFIGURE + TRAIN + unchanged
    late = "assert pipeline.ended is None\nmonitel.emit('late')\n"  # english: keep
    terminate(script + LIVE_ON.format(0.5) + late, receiver.url, status=0, within=20)
    assert ([10], ["checkpoint", "late"]) == arrived(receiver)


def test_auto_installs_no_handler_outside_the_main_thread(start: Start) -> None:
    """``configure()`` works in any thread."""
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)


def test_true_requires_the_main_thread(start: Start) -> None:
    """In another thread ``configure()`` raises."""
    errors: list[Exception] = []

    def configure() -> None:
        try:
            start(sigterm=True)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=configure)
    thread.start()
    thread.join()
    assert ["sigterm=True requires the main thread"] == [str(error).partition(":")[0] for error in errors]


@pytest.mark.parametrize("wrong", ["on", None, 1])
def test_sigterm_is_checked(wrong: Any) -> None:
    """The argument must be True, False or ``"auto"``."""
    with pytest.raises(TypeError, match='sigterm must be True, False or "auto", got '):
        monitel_otlp.configure(sigterm=wrong)


@pytest.mark.parametrize("sigterm", [True, "auto"])
def test_shutdown_restores_the_default_action(start: Start, sigterm: Any) -> None:
    """After the shutdown there is neither a handler nor its thread."""
    pipeline = start(sigterm=sigterm)
    assert callable(signal.getsignal(signal.SIGTERM))
    pipeline.shutdown()
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)
    assert "monitel-sigterm" not in {thread.name for thread in threading.enumerate()}


def test_second_configure_replaces_the_handler(start: Start) -> None:
    """The shutdown of the second pipeline restores the handler from before the first."""
    start()
    start().shutdown()
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)


AT_EXIT = "import atexit\natexit.register(print, 'ready', flush=True)\n"  # before the pipeline's shutdown


@pytest.mark.parametrize("wait", [READY + "pipeline.shutdown()\n", AT_EXIT])
def test_signal_during_the_exit(blackhole: socket.socket, terminate: Terminate, tmp_path: Path, wait: str) -> None:
    """If the shutdown hangs in a request, everything is on disk once, and the signal ends the process."""
    terminate(CONFIGURE + TRAIN + wait, url_of(blackhole), within=4.0)
    assert RECORDED == spooled(tmp_path / "spool")


def test_signal_after_shutdown_ends_the_process_at_once(receiver: Receiver, terminate: Terminate) -> None:
    """The default action is restored, even for code in C."""
    terminate(CONFIGURE + "pipeline.shutdown()\nblocked(60)\n", receiver.url, within=0.4)


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
        ("python /opt/bin/accelerate-launch train.py", True),
    ],
)
def test_launchers_are_recognized(arguments: str, expected: bool) -> None:
    """A launcher starts the training processes and has no items itself."""
    assert expected == is_launcher(arguments.split())


def test_auto_installs_no_handler_in_launchers(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """A launcher is recognized by its command line."""
    script = tmp_path / "torchrun"
    check = "import signal\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    script.write_text(f"import monitel_otlp\nmonitel_otlp.configure(endpoint={receiver.url!r})\n{check}")
    run(script)
