"""Crashes under bad conditions: descriptors, file system, stderr, damaged state, forks, several threads."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest
from tests.processes.crashes.crash_script import crash, needs_c, stacks_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_c


def test_forked_child(tmp_path: Path) -> None:
    """In a child the signal has its previous effect, with faulthandler or without; in the parent it is recorded."""
    script = """\
faulthandler.enable() if WITH else None
install()
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.dup2(write, 2)
    crashing()
os.close(write)
_, status = os.waitpid(pid, 0)
say(os.waitstatus_to_exitcode(status), os.path.exists(FILE), os.read(read, 100)[:18] or None)
crashing()
"""
    for enabled, printed in (("False", "None"), ("True", repr(b"Fatal Python error"))):
        ended = crash(tmp_path, script.replace("WITH", enabled))
        assert [f"-11 False {printed}"] == ended.lines
        assert (-signal.SIGSEGV, 1, 1) == (ended.status, stacks_in(ended.file), stacks_in(ended.stderr))
        (tmp_path / "stacks").unlink()


def test_forked_child_with_a_file(tmp_path: Path) -> None:
    """A child that installs the handler has another file; uninstalling it there leaves the parent's."""
    script = """\
install()
for install_it in (True, False):
    pid = os.fork()
    if pid == 0:
        if install_it:
            crash_stacks.install("other")
        else:
            crash_stacks.uninstall(FILE)
        crashing()
    _, status = os.waitpid(pid, 0)
    say(os.waitstatus_to_exitcode(status), os.path.exists(FILE))
crashing()
"""
    ended = crash(tmp_path, script)
    assert ["-11 False"] * 2 == ended.lines
    assert (-signal.SIGSEGV, 1, 1) == (ended.status, stacks_in(ended.file), ended.other.count(" in crashing\n"))


def test_another_program(tmp_path: Path) -> None:
    """``exec`` removes the handler."""
    ended = crash(tmp_path, "install()\nos.execvp('sh', ['sh', '-c', 'kill -SEGV $$'])\n")
    assert (-signal.SIGSEGV, "", "") == (ended.status, ended.file, ended.stderr)


@pytest.mark.parametrize("path", ["'missing/stacks'", "'link'", "'.'"])
def test_file_that_cannot_be_opened(tmp_path: Path, path: str) -> None:
    """The stacks are on stderr. A symbolic link is not followed."""
    script = f"open('target', 'w').close()\nos.symlink('target', 'link')\ncrash_stacks.install({path})\ncrashing()\n"
    for enable in ("", "faulthandler.enable()\n"):
        ended = crash(tmp_path, enable + script)
        assert (-signal.SIGSEGV, 1) == (ended.status, stacks_in(ended.stderr))
        assert (tmp_path / "target").read_bytes() == b""
        (tmp_path / "link").unlink()


def test_relative_path(tmp_path: Path) -> None:
    """The file is in the folder that was current at the call."""
    ended = crash(tmp_path, "crash_stacks.install('stacks')\nos.chdir('/')\ncrashing()\n")
    assert (-signal.SIGSEGV, 1) == (ended.status, stacks_in(ended.file))


@pytest.mark.parametrize("hard", ["hard", "256"])
def test_no_descriptors_left(tmp_path: Path, hard: str) -> None:
    """Above the soft limit there are more descriptors, which the handler uses. At the hard limit there are none."""
    script = f"""\
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
install()
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
crashing()
"""
    for enable in ("", "faulthandler.enable()\n"):
        ended = crash(tmp_path, enable + script)
        assert -signal.SIGSEGV == ended.status
        if hard == "hard":
            assert 1 == stacks_in(ended.file) == stacks_in(ended.stderr)
            (tmp_path / "stacks").unlink()
        else:
            assert bool(enable) <= stacks_in(ended.stderr) <= 1
            assert "" == ended.file


def test_closed_descriptors(tmp_path: Path) -> None:
    """The handler keeps no descriptor: files that the program opens later stay as they are."""
    script = """\
install()
os.closerange(3, 4096)
files = [open(f"data{i}", "wb") for i in range(50)]
crashing()
"""
    ended = crash(tmp_path, script)
    assert (-signal.SIGSEGV, 1, 1) == (ended.status, stacks_in(ended.file), stacks_in(ended.stderr))
    assert {b""} == {(tmp_path / f"data{i}").read_bytes() for i in range(50)}


@pytest.mark.parametrize("enable", ["", "os.dup2(1, 2)\ninto_file()\nos.close(2)\n"])
def test_process_without_stderr(tmp_path: Path, enable: str) -> None:
    """Descriptor 2 is the first file that the program opens: nothing is written into it."""
    script = "data = open('data', 'wb', buffering=0)\nassert 2 == data.fileno()\ndata.write(b'1')\n"
    for steps in (enable + "install()\n" + script, enable + script + "install()\n"):
        ended = crash(tmp_path, steps + "crashing()\n", stderr="closed")
        assert (-signal.SIGSEGV, 1, bool(enable)) == (ended.status, stacks_in(ended.file), stacks_in(ended.other))
        assert b"1" == (tmp_path / "data").read_bytes()
        (tmp_path / "stacks").unlink()


def test_stderr_that_is_closed_later(tmp_path: Path) -> None:
    """Its number is that of a file with data: nothing is written into it."""
    script = "install()\nos.close(2)\ndata = open('data', 'wb', buffering=0)\nassert 2 == data.fileno()\ncrashing()\n"
    ended = crash(tmp_path, script)
    assert (-signal.SIGSEGV, 1, "") == (ended.status, stacks_in(ended.file), ended.stderr)
    assert b"" == (tmp_path / "data").read_bytes()


def test_all_standard_streams_closed(tmp_path: Path) -> None:
    """The descriptors that the handler opens are not taken for stderr."""
    ended = crash(tmp_path, "install()\nfor each in (0, 1, 2):\n    os.close(each)\ncrashing()\n")
    assert (-signal.SIGSEGV, 1) == (ended.status, stacks_in(ended.file))


def test_stderr_in_a_file(tmp_path: Path) -> None:
    """Earlier text is kept."""
    ended = crash(tmp_path, "install()\nos.write(2, b'before\\n')\ncrashing()\n", stderr="file")
    assert (-signal.SIGSEGV, 1, 1) == (ended.status, stacks_in(ended.file), stacks_in(ended.stderr))
    assert ended.stderr.startswith("before\nmonitel: fatal signal")


@pytest.mark.parametrize(
    "reader",
    [
        pytest.param("os.set_blocking(2, False)\nwhile True:\n    os.write(2, b'x' * 4096)\n", id="does not read"),
        pytest.param("os.close(read)\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nraise OSError\n", id="is gone"),
    ],
)
def test_stderr_without_a_reader(tmp_path: Path, reader: str) -> None:
    """The process ends of its signal, after some seconds at most. The file is complete."""
    script = "install()\nread, write = os.pipe()\nos.dup2(write, 2)\nos.close(write)\ntry:\n"
    script += "".join(f"    {line}\n" for line in reader.splitlines())
    ended = crash(tmp_path, script + "except OSError:\n    os.set_blocking(2, True)\ncrashing()\n")
    assert (-signal.SIGSEGV, 1) == (ended.status, stacks_in(ended.file))


def test_size(tmp_path: Path) -> None:
    """The file and stderr have at most 256 KiB, however many stacks there are; a second crash adds nothing beyond."""
    script = """\
names = {}
ready, over = threading.Semaphore(0), threading.Event()
names.update(ready=ready, over=over)
long = "x" * 400
exec(f"def {long}(depth):\\n    {long}(depth - 1) if depth else (ready.release(), over.wait())\\n", names)
for _ in range(20):
    threading.Thread(target=names[long], args=[90], daemon=True).start()
    ready.acquire()
install()
if os.fork() == 0:
    install()
    crashing()
os.wait()
crashing()
"""
    ended = crash(tmp_path, script)
    assert -signal.SIGSEGV == ended.status
    assert 200 << 10 < len(ended.file) <= 256 << 10
    assert 100 << 10 < len(ended.stderr) <= 512 << 10


DAMAGE = """\
def damage(code):  # its file name is at address 16
    size = ctypes.sizeof(ctypes.c_void_p)
    for at in range(0, 400, size):
        if ctypes.c_void_p.from_address(id(code) + at).value == id(code.co_filename):
            ctypes.c_void_p.from_address(id(code) + at).value = 16
            return
    raise LookupError

install()
damage(waiting.__code__)
"""


@pytest.mark.parametrize(("enable", "name"), [("", "SIGABRT"), ("", "SIGSEGV"), ("faulthandler.enable()\n", "SIGABRT")])
def test_damaged_interpreter(tmp_path: Path, enable: str, name: str) -> None:
    """If the stacks cannot be read, the file has the signal and a note, and the exit status is the same."""
    ended = crash(tmp_path, enable + DAMAGE + f"crashing(signal.{name})\n")
    assert -signal.Signals[name] == ended.status
    assert signal.Signals[name] == ended.crash.signal
    assert "(the other stacks cannot be read)" in ended.file
    assert "(the other stacks cannot be read)" in ended.stderr


def test_error_of_python_itself(tmp_path: Path) -> None:
    """Python has printed the stacks to stderr before it aborts. The file has the signal."""
    ended = crash(tmp_path, "install()\ndef crashing():\n    faulthandler._fatal_error_c_thread()\ncrashing()\n")
    assert stacks_in(ended.stderr) >= 1
    if sys.version_info >= (3, 13):  # Python frees the memory of faulthandler.register() without a thread state
        assert ended.status in {-signal.SIGABRT, -signal.SIGSEGV}
    else:
        assert (-signal.SIGABRT, signal.SIGABRT) == (ended.status, ended.crash.signal)


def test_crash_after_the_end_of_python(tmp_path: Path) -> None:
    """A destructor of C++ code aborts after Python has ended: there are no stacks, but the signal."""
    for enable in ("", "faulthandler.enable()\n"):
        script = "install()\nlibc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)\n"
        ended = crash(tmp_path, enable + script)
        assert -signal.SIGABRT == ended.status
        if enable:  # Python has disabled faulthandler, and with it the handler above
            assert "" == ended.file
        else:
            assert signal.SIGABRT == ended.crash.signal
            (tmp_path / "stacks").unlink()


def test_several_threads_at_once(tmp_path: Path) -> None:
    """The first one writes the stacks, and the process ends of its signal or that of another one."""
    script = """\
install()
together = threading.Barrier(9)
def crash(kind):
    together.wait()
    if kind:
        libc.abort()
    ctypes.memset(8, 0, 1)
for i in range(8):
    threading.Thread(target=crash, args=[i % 2], daemon=True).start()
together.wait()
threading.Event().wait(30)
"""
    ended = crash(tmp_path, script)
    assert ended.status in {-signal.SIGSEGV, -signal.SIGABRT}
    assert 1 == ended.file.count(" in waiting\n") == ended.file.count("fatal signal")
    assert 1 == ended.stderr.count(" in waiting\n")


def test_crash_in_a_thread_that_did_not_install(tmp_path: Path) -> None:
    """Its stack is the current one."""
    script = "threading.Thread(target=install).start()\n"
    ended = crash(tmp_path, script + "thread = threading.Thread(target=crashing)\nthread.start()\nthread.join()\n")
    assert (-signal.SIGSEGV, 1) == (ended.status, stacks_in(ended.file))
    current = ended.file.partition("Current thread")[2]
    assert " in crashing\n" in current.partition("Thread 0x")[0]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param("for _ in range(120):\n    start(threading.Event().wait)\n", id="many"),
        pytest.param("for _ in range(40):\n    start(descend, 90)\n", id="deep"),
    ],
)
def test_crashed_thread_comes_first_among_many(tmp_path: Path, others: str) -> None:
    """CPython prints the newest 100 threads, and the file is limited: its stack would be missing."""
    script = """\
def start(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()
descending = "def descend(depth):\\n  descend(depth - 1) if depth else threading.Event().wait()"
exec(compile(descending, "x" * 200, "exec"))
"""
    for enable in ("", "faulthandler.enable()\n"):
        ended = crash(tmp_path, f"{enable}{script}{others}install()\ncrashing()\n")
        assert -signal.SIGSEGV == ended.status
        for text in (ended.file, ended.stderr):
            assert 1 == text.count(" in crashing\n")
            assert " in crashing\n" in text.partition("Current thread 0x")[2].partition("\nThread 0x")[0]
        assert len(ended.file) <= 256 << 10
        (tmp_path / "stacks").unlink()
