"""monitel.crash_stacks: the file and stderr have the stacks once, and the process ends as without the handler."""

from __future__ import annotations

import resource
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.processes.crashes.crash_script import crash, needs_c, stacks_in

from monitel import crash_stacks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_c


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"])
def test_signals(tmp_path: Path, name: str) -> None:
    """The file begins with the signal. The exit status is that of the signal."""
    begin = time.time_ns()
    ended = crash(tmp_path, f"install()\nsay(os.getpid())\ncrashing(signal.{name})\n")
    assert -signal.Signals[name] == ended.status
    assert 1 == stacks_in(ended.file) == stacks_in(ended.stderr)
    assert f"({name})" in ended.file.splitlines()[0]
    assert "monitel: " + ended.file == ended.stderr
    assert signal.Signals[name] == ended.crash.signal
    assert begin <= ended.crash.time_ns <= time.time_ns()
    pid = int(ended.lines[0])
    if name == "SIGSEGV":
        assert (1, 8, None, pid) == (ended.crash.code, ended.crash.address, ended.crash.sender, ended.crash.thread)
    else:
        assert (0, None, pid, pid) == (ended.crash.code, ended.crash.address, ended.crash.sender, ended.crash.thread)
    assert 0o600 == (tmp_path / "stacks").stat().st_mode & 0o777


BY_US, BY_FAULTHANDLER = "monitel: fatal signal", "Fatal Python error"


@pytest.mark.parametrize(
    ("steps", "stderr", "others"),
    [
        pytest.param("faulthandler.enable(); install()", BY_FAULTHANDLER, 0, id="before"),
        pytest.param("install(); faulthandler.enable()", BY_FAULTHANDLER, 0, id="after"),
        pytest.param("install(); faulthandler.enable(); check()", BY_FAULTHANDLER, 0, id="after, checked"),
        pytest.param("into_file(); install()", BY_US, 1, id="other file, before"),
        pytest.param("install(); into_file(); check()", BY_US, 1, id="other file, after, checked"),
        pytest.param("install(); faulthandler.enable(); faulthandler.disable()", BY_US, 0, id="off again"),
        pytest.param("faulthandler.enable(); install(); faulthandler.disable(); check()", BY_US, 0, id="off below"),
        pytest.param(
            "install(); faulthandler.enable(); check(); faulthandler.disable(); check()", BY_US, 0, id="off, checked"
        ),
        pytest.param(
            "install(); faulthandler.enable(); check(); faulthandler.enable(); check(); check()",
            BY_FAULTHANDLER,
            0,
            id="twice",
        ),
        pytest.param(
            "install(); faulthandler.enable(); check(); faulthandler.disable(); check(); into_file(); check()",
            BY_US,
            1,
            id="off, then other file",
        ),
    ],
)
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT"])
def test_faulthandler(tmp_path: Path, steps: str, stderr: str, others: int, name: str) -> None:
    """In any order with faulthandler each place has the stacks once. The user does not see faulthandler enabled."""
    script = f"check = crash_stacks.check\n{steps}\nsay(faulthandler.is_enabled())\ncrashing(signal.{name})\n"
    ended = crash(tmp_path, script)
    assert -signal.Signals[name] == ended.status
    assert (1, 1, others) == (stacks_in(ended.file), stacks_in(ended.stderr), stacks_in(ended.other))
    assert ended.stderr.startswith(stderr)
    assert ended.stderr.count(BY_FAULTHANDLER) == (stderr == BY_FAULTHANDLER)
    assert [str(stderr == BY_FAULTHANDLER or others == 1)] == ended.lines
    assert signal.Signals[name] == ended.crash.signal


def test_faulthandler_enabled_later_for_another_file(tmp_path: Path) -> None:
    """Until the next check, faulthandler runs first; stderr then has no stacks, and no place has them twice."""
    ended = crash(tmp_path, "install()\ninto_file()\ncrashing()\n")
    assert (-signal.SIGSEGV, 1, 1) == (ended.status, stacks_in(ended.file), stacks_in(ended.other))


def test_faulthandler_of_the_command_line(tmp_path: Path) -> None:
    """``-X faulthandler`` is the first of all; stderr has its text."""
    ended = crash(tmp_path, "install()\ncrashing()\n", options=("-X", "faulthandler"))
    assert (-signal.SIGSEGV, 1, 1) == (ended.status, stacks_in(ended.file), stacks_in(ended.stderr))
    assert ended.stderr.startswith(BY_FAULTHANDLER)


def test_thread_without_python(tmp_path: Path) -> None:
    """``abort()`` in a thread that C code has started. The file has its number, and the stacks of Python's threads."""
    ended = crash(tmp_path, "install()\ndef crashing():\n    thread_of_c()\nsay(os.getpid())\ncrashing()\n")
    assert (-signal.SIGABRT, 1, 1) == (ended.status, stacks_in(ended.file), stacks_in(ended.stderr))
    assert ended.crash.thread != int(ended.lines[0]) == ended.crash.sender
    assert "Current thread" not in ended.file


def test_stack_overflow(tmp_path: Path) -> None:
    """The handler has a stack for the first thread that asks for it or installs it, with faulthandler or without."""
    elsewhere = "crash_stacks.use_alternate_stack()\n_t = threading.Thread(target=install)\n_t.start()\n_t.join()\n"
    for steps in ("install()\n", "faulthandler.enable()\ninstall()\n", elsewhere):
        script = steps + "def crashing():\n    faulthandler._stack_overflow()\ncrashing()\n"
        ended = crash(tmp_path, script)
        assert (-signal.SIGSEGV, 1, 1) == (ended.status, stacks_in(ended.file), stacks_in(ended.stderr)), steps
        (tmp_path / "stacks").unlink()


def test_core_dump(tmp_path: Path) -> None:
    """The kernel dumps core where it does so without the handler."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("this machine allows no core dumps")
    dumped = []
    for before in ("", "install()"):
        script = f"""\
import resource
resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
pid = os.fork()
if pid == 0:
    {before}
    crashing()
_, status = os.waitpid(pid, 0)
say(os.WTERMSIG(status), os.WCOREDUMP(status))
"""
        ended = crash(tmp_path, script)
        dumped.append(ended.lines[0])
    assert dumped[0] == dumped[1]
    assert dumped[0].startswith(f"{int(signal.SIGSEGV)} ")
    assert 1 == ended.file.count(" in crashing\n")


def test_python_twin_installs_nothing(tmp_path: Path) -> None:
    """Without the C extension the result is False, and the process ends as before."""
    script = "say(crash_stacks.install(FILE))\ncrash_stacks.check()\ncrash_stacks.uninstall(FILE)\ncrashing()\n"
    ended = crash(tmp_path, script, pure=True)
    assert (-signal.SIGSEGV, ["False"], "", "") == (ended.status, ended.lines, ended.file, ended.stderr)


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b"])
def test_bad_paths(path: str) -> None:
    """A path that cannot be opened is an error of the caller."""
    with pytest.raises(ValueError, match=r"too long|null byte"):
        crash_stacks.install(path)


def test_nothing_is_left_after_uninstall(tmp_path: Path) -> None:
    """The signals have their default action; faulthandler prints as if nothing had been installed."""
    script = "install()\ncrash_stacks.uninstall(FILE)\ncrash_stacks.uninstall(FILE)\ncrash_stacks.check()\n"
    ended = crash(tmp_path, script + "say(libc.signal(signal.SIGSEGV, None), libc.signal(signal.SIGABRT, None))\n")
    assert ["0 0"] == ended.lines  # what they replace is SIG_DFL
    for between, stderr in (("", 0), ("faulthandler.enable()\n", 1)):
        for steps in (script + between, between + script):
            ended = crash(tmp_path, steps + "crashing()\n")
            assert (-signal.SIGSEGV, "", stderr) == (ended.status, ended.file, stacks_in(ended.stderr))


def test_uninstall_below_faulthandler(tmp_path: Path) -> None:
    """Handlers that were installed later keep working."""
    for check in ("", "crash_stacks.check()\n"):
        steps = "install()\nfaulthandler.enable()\n" + check + "crash_stacks.uninstall(FILE)\ncrashing()\n"
        ended = crash(tmp_path, steps)
        assert (-signal.SIGSEGV, "", 1) == (ended.status, ended.file, stacks_in(ended.stderr))


def test_latest_path(tmp_path: Path) -> None:
    """A later call replaces the path; uninstalling the earlier path changes nothing."""
    ended = crash(tmp_path, "crash_stacks.install('first')\ninstall()\ncrash_stacks.uninstall('first')\ncrashing()\n")
    assert (-signal.SIGSEGV, 1) == (ended.status, stacks_in(ended.file))
    assert not (tmp_path / "first").exists()
