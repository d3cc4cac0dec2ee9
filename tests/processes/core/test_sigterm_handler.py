"""``monitel.process.sigterm.SigtermHandler``: it calls ``end`` or ``flush`` in time, and can be removed again."""

import signal
import threading

import pytest
from tests.support.scripts import Terminate

from monitel.process.sigterm import SigtermHandler, check, is_default

#: ``end`` and ``flush`` print the thread in which they are called, and their time.
BEGIN = """\
import ctypes, faulthandler, signal, threading
from monitel.process import sigterm

def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def end(timeout): say("end", threading.current_thread().name, timeout)
def flush(timeout): say("flush", threading.current_thread().name, timeout)

def blocked():  # in C, without a return to Python after a signal
    ctypes.CDLL(None).system(b"echo ready; exec sleep 60 >/dev/null 2>&1")

def live_on(forever=True):  # in Python, until the signal has come: the input ends after it
    say("ready")
    sys.stdin.read()
    while forever:
        signal.pause()

handler = sigterm.SigtermHandler(end, flush)
"""
#: However long the main thread does not run, it does not count as blocked.
IN_TIME = "sigterm._MAIN_THREAD_TIMEOUT = 600.0\n"


def ended(terminate: Terminate, script: str, *, status: int = -signal.SIGTERM) -> str:
    return terminate(BEGIN + script, "", status=status).stdout


@pytest.mark.parametrize("where", [pytest.param("live_on()\n", id="in Python"), pytest.param("blocked()\n", id="in C")])
def test_failing_end_does_not_keep_the_process_alive(terminate: Terminate, where: str) -> None:
    """The exception is logged."""
    fail = "handler._end = lambda _: sys.exit('no')\nhandler.install()\n"
    found = terminate(BEGIN + fail + where, "")
    assert "SystemExit: no" in found.stderr


def test_end_that_delivers_already_postpones_the_signal(terminate: Terminate) -> None:
    """``end`` returns False: the main thread goes on until it uninstalls the handler."""
    script = """\
handler = sigterm.SigtermHandler(lambda timeout: bool(say("end")), flush)
handler.install()
live_on(False)
say("delivered")
handler.uninstall()
live_on()
"""
    assert "end\ndelivered\n" == ended(terminate, script)


def test_second_handler_replaces_the_first(terminate: Terminate) -> None:
    """A process has one: the second one's previous handler is that of the first one."""
    second = "sigterm.SigtermHandler(lambda _: say('second'), flush).install()\n"
    assert "second\n" == ended(terminate, "handler.install()\n" + second + "live_on()\n")


LATER = """\
handler.install()
before = signal.getsignal(signal.SIGTERM)
def later(*arguments):
    say("later")
    before(*arguments)
signal.signal(signal.SIGTERM, later)
"""


def test_handler_below_a_later_one_can_be_removed(terminate: Terminate) -> None:
    """The later one stays, and nothing is delivered; afterwards SIGTERM does what it did before."""
    script = """\
handler.uninstall()
assert signal.getsignal(signal.SIGTERM) is later
live_on(False)
signal.signal(signal.SIGTERM, before)
os.kill(os.getpid(), signal.SIGTERM)
live_on()
"""
    assert "later\n" == ended(terminate, LATER + script)


def test_handlers_of_c_libraries_are_kept(terminate: Terminate) -> None:
    """One from before, which Python cannot see, is called after ``end``; a later one decides."""
    before = IN_TIME + "faulthandler.register(signal.SIGTERM, all_threads=False)\nassert not sigterm.is_default()\n"
    found = terminate(BEGIN + before + "handler.install()\nlive_on(False)\nsay('alive')\n", "", status=0)
    assert ("end MainThread 2.0\nalive\n", 1) == (found.stdout, found.stderr.count("most recent call first"))
    later = (
        IN_TIME
        + "handler.install()\nfaulthandler.register(signal.SIGTERM, all_threads=False, chain=True)\nsigterm.check()\n"
    )
    found = terminate(BEGIN + later + "live_on(False)\n", "", status=0)
    assert ("flush MainThread 2.0\n", 1) == (found.stdout, found.stderr.count("most recent call first"))


@pytest.mark.parametrize("before", [signal.SIG_DFL, lambda *_: None], ids=["default", "handler"])
def test_uninstall_restores_what_was_before(before: signal.Handlers) -> None:
    """The default action or a handler; the thread ends. Idempotent, and in another thread as soon as possible."""
    previous = signal.signal(signal.SIGTERM, before)
    try:
        for elsewhere in (False, True):
            handler = SigtermHandler(lambda _: None, lambda _: None)
            handler.install()
            assert not is_default()
            if elsewhere:
                thread = threading.Thread(target=handler.uninstall)
                thread.start()
                thread.join()
            handler.uninstall()
            check()
            assert (before is signal.SIG_DFL) is is_default()
            assert before is signal.getsignal(signal.SIGTERM)
            assert [] == [each for each in threading.enumerate() if each.name == "monitel-sigterm"]
    finally:
        signal.signal(signal.SIGTERM, previous)
