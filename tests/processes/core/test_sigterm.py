"""monitel.sigterm: SIGTERM calls ``end``, in Python and in C code, and ends the process as before."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.processes.core.sigterm_script import FLUSHED, IN_MAIN, IN_THREAD, INSTALL, LATER, needs_c, terminate

from monitel.sigterm import SigtermHandler, check, is_default

if TYPE_CHECKING:
    from pathlib import Path


needs_gil = pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL")
WAIT = "lock = threading.Lock()\nlock.acquire()\nsay('ready')\nlock.acquire()"


@pytest.mark.parametrize("where", ["live_on()", WAIT])
def test_main_thread_in_python_ends_the_process(tmp_path: Path, twin: str, where: str) -> None:
    """The Python handler calls ``end``, and the exit status is as without it."""
    ended = terminate(tmp_path, twin, INSTALL + where)
    assert (-signal.SIGTERM, [IN_MAIN]) == (ended.status, ended.lines)


@needs_c
def test_main_thread_in_c_ends_the_process(tmp_path: Path) -> None:
    """The thread calls ``end`` with the remaining time of the two seconds; the exit status is as without it."""
    ended = terminate(tmp_path, "c", INSTALL + "blocked(60)")
    assert (-signal.SIGTERM, [IN_THREAD]) == (ended.status, ended.lines)
    assert 0.5 <= ended.seconds <= 2.0


@needs_c
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(INSTALL + "blocked(60, ctypes.PyDLL)", id="GIL", marks=needs_gil),
        pytest.param("handler._end = lambda _: blocked(60)\n" + INSTALL + "live_on()", id="main"),
        pytest.param("handler._end = lambda _: threading.Event().wait()\n" + INSTALL + "blocked(60)", id="thread"),
    ],
)
def test_process_ends_even_if_python_does_not_run(tmp_path: Path, script: str) -> None:
    """A library that keeps the GIL, or an ``end`` that hangs, delays the default action by five seconds."""
    ended = terminate(tmp_path, "c", script)
    assert -signal.SIGTERM == ended.status
    assert 4.5 <= ended.seconds <= 8.0


def test_failing_end_does_not_keep_the_process_alive(tmp_path: Path, twin: str) -> None:
    """The exception of ``end`` is logged."""
    ended = terminate(tmp_path, twin, "handler._end = lambda _: sys.exit('no')\n" + INSTALL + "live_on()")
    assert -signal.SIGTERM == ended.status
    assert "SystemExit: no" in ended.stderr


@needs_c
def test_failing_end_in_the_thread_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    """The exception of ``end`` is logged."""
    ended = terminate(tmp_path, "c", "handler._end = lambda _: sys.exit('no')\n" + INSTALL + "blocked(60)")
    assert -signal.SIGTERM == ended.status
    assert "SystemExit: no" in ended.stderr


SLOW_END = """\
def end(timeout):
    say("end")
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGTERM)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        threading.Event().wait(0.01)
    say("ended")

handler = sigterm.SigtermHandler(end, flush)
"""


def test_further_signals_during_end_change_nothing(tmp_path: Path, twin: str) -> None:
    """In the main thread ``end`` runs once, and completely, without waiting."""
    ended = terminate(tmp_path, twin, SLOW_END + INSTALL + "live_on()", signals=3)
    assert (-signal.SIGTERM, ["end", "ended"]) == (ended.status, ended.lines)
    assert ended.seconds <= 2.0


@needs_c
def test_further_signals_during_end_in_the_thread_change_nothing(tmp_path: Path) -> None:
    """In the thread ``end`` runs once, and completely."""
    ended = terminate(tmp_path, "c", SLOW_END + INSTALL + "blocked(60)", signals=3)
    assert (-signal.SIGTERM, ["end", "ended"]) == (ended.status, ended.lines)


@needs_c
def test_main_thread_that_returns_from_c_waits_for_the_thread(tmp_path: Path) -> None:
    """The program does not continue while the thread calls ``end``."""
    ended = terminate(tmp_path, "c", SLOW_END + INSTALL + "blocked(0.8)\nsay('ran on')\nlive_on()")
    assert (-signal.SIGTERM, ["end", "ended"]) == (ended.status, ended.lines)


@needs_c
def test_closed_descriptors_do_no_harm(tmp_path: Path) -> None:
    """The handler uses no descriptor: it cannot write into a file of the application."""
    ended = terminate(tmp_path, "c", INSTALL + "os.closerange(3, 256)\nfile = open('file', 'wb')\nblocked(60)\n")
    assert (-signal.SIGTERM, [IN_THREAD]) == (ended.status, ended.lines)


def test_uninstall_restores_the_previous_handler() -> None:
    """The default action or a handler is restored; the thread ends. Idempotent."""
    for before in (signal.SIG_DFL, lambda *_: None):
        previous = signal.signal(signal.SIGTERM, before)
        try:
            handler = SigtermHandler(lambda _: None, lambda _: None)
            handler.install()
            assert not is_default()
            handler.uninstall()
            handler.uninstall()
            check()
            assert before is signal.getsignal(signal.SIGTERM)
            assert is_default() is (before is signal.SIG_DFL)
            assert [] == [each for each in threading.enumerate() if each.name == "monitel-sigterm"]
        finally:
            signal.signal(signal.SIGTERM, previous)


@pytest.mark.parametrize(
    "uninstall",
    ["handler.uninstall()\n", "thread = threading.Thread(target=handler.uninstall)\nthread.start()\nthread.join()\n"],
)
def test_uninstalled_handler_changes_nothing(tmp_path: Path, twin: str, uninstall: str) -> None:
    """This is so even if another thread uninstalls it, where Python cannot restore the previous handler."""
    ended = terminate(tmp_path, twin, INSTALL + uninstall + ("blocked(60)" if twin == "c" else "live_on()"))
    assert (-signal.SIGTERM, []) == (ended.status, ended.lines)


def test_default_action_returns_after_uninstalling_in_a_thread() -> None:
    """The main thread restores the default action at the next check."""
    handler = SigtermHandler(lambda _: None, lambda _: None)
    handler.install()
    thread = threading.Thread(target=handler.uninstall)
    thread.start()
    thread.join()
    assert callable(signal.getsignal(signal.SIGTERM))
    assert is_default()
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)


PROCESS_ONE = """\
flushed = []
handler = sigterm.SigtermHandler(end, lambda timeout: flushed.append(flush(timeout)))
pid, os.getpid = os.getpid(), lambda: 1
handler.install()
say("ready")
while len(flushed) < 1:
    time.sleep(0.01)
os.kill(pid, signal.SIGTERM)
while len(flushed) < 2:
    time.sleep(0.01)
handler.uninstall()
say(sigterm.is_default())
sys.exit(3)
"""


def test_process_one_lives_on(tmp_path: Path, twin: str) -> None:
    """The default action does not end process 1 of a container, so each SIGTERM flushes."""
    ended = terminate(tmp_path, twin, PROCESS_ONE)
    assert (3, [FLUSHED, FLUSHED, "True"]) == (ended.status, ended.lines)


def test_handler_below_a_later_one_is_uninstalled(tmp_path: Path, twin: str) -> None:
    """The later handler stays, and nothing is delivered; when it is removed, SIGTERM does what it did before."""
    script = """\
handler.uninstall()
assert signal.getsignal(signal.SIGTERM) is later
live_on(0.5)
signal.signal(signal.SIGTERM, before)
os.kill(os.getpid(), signal.SIGTERM)
live_on()
"""
    ended = terminate(tmp_path, twin, INSTALL + LATER + script)
    assert (-signal.SIGTERM, ["later"]) == (ended.status, ended.lines)


def test_handler_is_installed_in_the_main_thread_only() -> None:
    """Python does not allow it in other threads."""
    errors: list[ValueError] = []

    def install() -> None:
        try:
            SigtermHandler(lambda _: None, lambda _: None).install()
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert ["a handler for SIGTERM must be installed in the main thread"] == [str(error) for error in errors]
    assert is_default()


@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGTERM, lambda *_: say('before') or os._exit(7))\n"])
def test_interrupted_delivery_continues(tmp_path: Path, twin: str, before: str) -> None:
    """If the main thread is delivering already, SIGTERM (even repeated) waits until it uninstalls the handler."""
    script = """\
handler._end = lambda timeout: bool(say("end"))
handler.install()
live_on(1)
say("delivered")
handler.uninstall()
live_on()
"""
    ended = terminate(tmp_path, twin, before + script, signals=3)
    status, lines = (7, ["before"]) if before else (-signal.SIGTERM, [])
    assert (status, ["end", "delivered", *lines]) == (ended.status, ended.lines)


def test_second_handler_replaces_the_first(tmp_path: Path, twin: str) -> None:
    """A process has one handler: the second one's previous handler is that of the first one."""
    second = "handler = sigterm.SigtermHandler(lambda _: say('second'), flush)\n"
    blocked = "blocked(60)" if twin == "c" else "live_on()"
    ended = terminate(tmp_path, twin, INSTALL + second + INSTALL + blocked)
    assert (-signal.SIGTERM, ["second"]) == (ended.status, ended.lines)


def test_replaced_program_has_the_default_action(tmp_path: Path, twin: str) -> None:
    """``exec`` removes the handler."""
    ended = terminate(tmp_path, twin, INSTALL + "os.execvp('sh', ['sh', '-c', 'echo ready; exec sleep 60'])")
    assert (-signal.SIGTERM, []) == (ended.status, ended.lines)
