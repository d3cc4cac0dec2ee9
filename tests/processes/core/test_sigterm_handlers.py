"""monitel.sigterm beside other handlers: the one that was installed last decides whether the process ends."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from tests.processes.core.sigterm_script import FLUSHED, IN_MAIN, IN_THREAD, INSTALL, LATER, needs_c, terminate

if TYPE_CHECKING:
    from pathlib import Path


def test_later_handler_decides(tmp_path: Path, twin: str) -> None:
    """If a later handler calls this one, it only flushes, and the process continues."""
    ended = terminate(tmp_path, twin, INSTALL + LATER + "live_on(0.5)\nsay('alive')")
    assert (0, ["later", FLUSHED, "alive"]) == (ended.status, ended.lines)


def test_later_handler_decides_in_c(tmp_path: Path, twin: str) -> None:
    """The thread leaves the process alone, even if the main thread is blocked."""
    ended = terminate(tmp_path, twin, INSTALL + LATER + "blocked(1.5)\nsay('alive')")
    assert (0, {"later", FLUSHED, "alive"}) == (ended.status, set(ended.lines))


def test_later_and_previous_handler(tmp_path: Path, twin: str) -> None:
    """In a chain of three, each handler is called once."""
    first = "signal.signal(signal.SIGTERM, lambda *_: say('first'))\n"
    ended = terminate(tmp_path, twin, first + INSTALL + LATER + "live_on(0.5)")
    assert (0, ["later", FLUSHED, "first"]) == (ended.status, ended.lines)


def test_failing_flush_does_not_reach_the_later_handler(tmp_path: Path, twin: str) -> None:
    """The exception of ``flush`` is logged."""
    fail = "handler._flush = lambda _: 1 / 0\n"
    ended = terminate(tmp_path, twin, fail + INSTALL + LATER + "live_on(0.5)\nsay('alive')")
    assert (0, ["later", "alive"]) == (ended.status, ended.lines)
    assert "ZeroDivisionError" in ended.stderr


TEMPORARY = LATER + "signal.signal(signal.SIGTERM, before)\n"


def test_later_handler_that_is_removed(tmp_path: Path, twin: str) -> None:
    """When a library restores this handler, it decides again."""
    ended = terminate(tmp_path, twin, INSTALL + TEMPORARY + "live_on()")
    assert (-signal.SIGTERM, [IN_MAIN]) == (ended.status, ended.lines)


@needs_c
@pytest.mark.parametrize("thread", [False, True])
def test_check_installs_the_c_handler_again(tmp_path: Path, thread: bool) -> None:
    """Restoring a handler in Python removes the C handler; ``check`` installs it again, in any thread."""
    again = "thread = threading.Thread(target=sigterm.check)\nthread.start()\nthread.join()\n"
    ended = terminate(tmp_path, "c", INSTALL + TEMPORARY + (again if thread else "sigterm.check()\n") + "blocked(60)")
    assert (-signal.SIGTERM, [IN_THREAD]) == (ended.status, ended.lines)


def test_check_leaves_a_later_handler_alone(tmp_path: Path, twin: str) -> None:
    """A later handler, the default action, or an ignored signal is kept."""
    script = """\
for later in (signal.SIG_DFL, signal.SIG_IGN, lambda *_: say("later")):
    signal.signal(signal.SIGTERM, later)
    sigterm.check()
    assert signal.getsignal(signal.SIGTERM) is later
    assert sigterm.is_default() is (later is signal.SIG_DFL)
blocked(1.0)
"""
    ended = terminate(tmp_path, twin, INSTALL + script)
    assert (0, ["later"]) == (ended.status, ended.lines)


@needs_c
def test_later_c_handler_decides(tmp_path: Path) -> None:
    """If a C library's handler calls this one, ``check`` does not change it, and the process continues."""
    above = "faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)\nsigterm.check()\n"
    ended = terminate(tmp_path, "c", INSTALL + above + "live_on(6.0)")
    assert (0, [FLUSHED]) == (ended.status, ended.lines)
    assert 1 == ended.stderr.count("most recent call first")


@needs_c
def test_previous_c_handler_is_called(tmp_path: Path) -> None:
    """A C library's handler, which Python cannot see, is restored and called after ``end``."""
    before = "faulthandler.register(signal.SIGTERM, all_threads=False)\nassert not sigterm.is_default()\n"
    ended = terminate(tmp_path, "c", before + INSTALL + "live_on(1.0)\nsay('alive')")
    assert (0, [IN_MAIN, "alive"]) == (ended.status, ended.lines)
    assert 1 == ended.stderr.count("most recent call first")


def test_previous_handler_is_called(tmp_path: Path, twin: str) -> None:
    """The previous handler decides whether the process ends; a further SIGTERM reaches it directly."""
    script = """\
def before(number, frame):
    say("before", number)
    if signal.getsignal(signal.SIGTERM) is before and not seen:
        seen.append(1)
        os.kill(os.getpid(), signal.SIGTERM)

seen = []
signal.signal(signal.SIGTERM, before)
"""
    ended = terminate(tmp_path, twin, script + INSTALL + "live_on(0.5)")
    assert (0, [IN_MAIN, "before 15", "before 15"]) == (ended.status, ended.lines)


def test_ignored_signal_stays_ignored(tmp_path: Path, twin: str) -> None:
    """Neither ``end`` nor ``flush`` is called."""
    ignored = "assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN\n"
    ended = terminate(tmp_path, twin, f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{INSTALL}{ignored}live_on(0.5)")
    assert (0, []) == (ended.status, ended.lines)


def test_asyncio_handler_decides(tmp_path: Path, twin: str) -> None:
    """``loop.add_signal_handler`` works, and the wake-up descriptor is left alone."""
    script = """\
async def main():
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    sigterm.check()
    say("ready")
    await asyncio.wait_for(terminated.wait(), 20)
    say("terminated")

asyncio.run(main())
"""
    ended = terminate(tmp_path, twin, INSTALL + script)
    assert (0, ["terminated"]) == (ended.status, ended.lines)


def test_running_asyncio_loop_is_ended(tmp_path: Path, twin: str) -> None:
    """A loop without a handler for SIGTERM wakes up, and the process ends as without monitel."""
    script = "async def main():\n    say('ready')\n    await asyncio.sleep(20)\n\nasyncio.run(main())\n"
    ended = terminate(tmp_path, twin, INSTALL + script)
    assert (-signal.SIGTERM, [IN_MAIN]) == (ended.status, ended.lines)
    assert ended.seconds <= 2.0
