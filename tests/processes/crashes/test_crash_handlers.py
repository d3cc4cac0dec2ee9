"""The handler for crashes beside other handlers: theirs are called with the same details, and decide."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.processes.crashes.crash_script import crash, needs_c, stacks_in

pytestmark = needs_c


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the statement that loads handlers.c."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("handlers") / "handlers.so"
    source = Path(__file__).with_name("handlers.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source], check=True, timeout=60)
    return f"library = ctypes.CDLL({str(made)!r})\n"


def test_earlier_handler_is_called(tmp_path: Path, library: str) -> None:
    """The handler gets the code and the address, or the code and the sender, as without monitel."""
    for name, script in (("SIGSEGV", "crashing()\n"), ("SIGABRT", "os.abort()\n")):
        found = []
        for install in ("", "install()\n"):
            steps = f"{library}library.end_process(signal.{name})\n{install}say(os.getpid())\n"
            ended = crash(tmp_path, steps + script)
            pid, line = ended.lines
            found.append((ended.status, line.replace(pid, "PID")))
        assert found[0] == found[1] != (43, "")
        assert 42 == found[0][0]
        assert signal.Signals[name] == ended.crash.signal
        (tmp_path / "stacks").unlink()


def test_later_handler_that_chains(tmp_path: Path, library: str) -> None:
    """The handler above calls monitel's as a function: the stacks are written, then the process ends."""
    ended = crash(tmp_path, library + "install()\nlibrary.chain(signal.SIGSEGV)\ncrashing()\n")
    assert (-signal.SIGSEGV, ["chained"]) == (ended.status, ended.lines)
    assert 1 == stacks_in(ended.file) == stacks_in(ended.stderr)


def test_handlers_on_both_sides(tmp_path: Path, library: str) -> None:
    """The handler above calls monitel's, and monitel's the one below."""
    script = "ctypes.CDLL(None).signal(signal.SIGSEGV, ctypes.cast(libc._exit, ctypes.c_void_p))\ninstall()\n"
    ended = crash(tmp_path, library + script + "library.chain(signal.SIGSEGV)\ncrashing()\n")
    assert (int(signal.SIGSEGV), ["chained"]) == (ended.status, ended.lines)
    assert 1 == stacks_in(ended.file) == stacks_in(ended.stderr)


def test_handler_that_recovers(tmp_path: Path, library: str) -> None:
    """The process goes on, with that handler alone. A check removes the file when the crash is long over."""
    script = """\
library.recover(signal.SIGSEGV)
install()
say(library.fault(), library.fault())
crash_stacks.check()
say(os.path.exists(FILE))
crash_stacks._SURVIVED_S = 0
crash_stacks.check()
say(os.path.exists(FILE))
crash_stacks.check()
os.abort()
"""
    ended = crash(tmp_path, library + script)
    assert (-signal.SIGABRT, ["-1 -1", "True", "False"]) == (ended.status, ended.lines)
    assert signal.SIGABRT == ended.crash.signal


def test_handler_that_recovers_below_another(tmp_path: Path, library: str) -> None:
    """The handler above stays installed. Only the first signal is recorded."""
    script = "library.recover(signal.SIGSEGV)\ninstall()\nlibrary.chain(signal.SIGSEGV)\n"
    ended = crash(tmp_path, library + script + "say(library.fault(), library.fault())\n")
    assert (0, ["chained", "chained", "-1 -1"]) == (ended.status, ended.lines)
    assert 1 == ended.file.count("fatal signal") == ended.stderr.count("fatal signal")


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: say('handled')"])
def test_signals_of_the_application(tmp_path: Path, handler: str) -> None:
    """A signal that the application ignores or handles in Python is not a crash, in either order."""
    handle = f"signal.signal(signal.SIGABRT, {handler})\n"
    for steps in (handle + "install()\n", "install()\n" + handle):
        script = steps + "crash_stacks.check()\nos.kill(os.getpid(), signal.SIGABRT)\nsay('goes on')\n"
        ended = crash(tmp_path, script)
        assert (0, "", "") == (ended.status, ended.file, ended.stderr)
        assert ["goes on"] == ended.lines[-1:]
        assert ("handled" in ended.lines) == ("handled" in handler)


def test_handler_of_the_application_for_some_time(tmp_path: Path) -> None:
    """A check installs the handler again after the application has restored the default action."""
    script = "install()\nsignal.signal(signal.SIGABRT, print)\nsignal.signal(signal.SIGABRT, signal.SIG_DFL)\n"
    ended = crash(tmp_path, script + "crash_stacks.check()\ncrashing(signal.SIGABRT)\n")
    assert (-signal.SIGABRT, 1) == (ended.status, stacks_in(ended.file))


def test_registered_signals_of_faulthandler(tmp_path: Path) -> None:
    """A signal that the application has registered with faulthandler prints stacks as before."""
    script = """\
faulthandler.register(signal.SIGRTMAX - 1, open("other", "w"))
install()
def crashing():
    os.kill(os.getpid(), signal.SIGRTMAX - 1)
    ctypes.memset(8, 0, 1)
crashing()
"""
    ended = crash(tmp_path, script)
    assert (-signal.SIGSEGV, 1, 1, 1) == (
        ended.status,
        stacks_in(ended.file),
        stacks_in(ended.stderr),
        stacks_in(ended.other),
    )
