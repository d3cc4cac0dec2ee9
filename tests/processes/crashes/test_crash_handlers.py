"""The handler for crashes beside handlers in C of other libraries, and in damaged processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.processes.promises.test_crash import BEGIN as CRASHING
from tests.processes.promises.test_crash import stacks_in
from tests.support.scripts import needs_c

from monitel.crash_stacks import read_crash

if TYPE_CHECKING:
    from tests.support.scripts import Run

pytestmark = needs_c

BEGIN = (
    CRASHING
    + """\
from monitel import crash_stacks
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def install():
    assert crash_stacks.install("stacks")
"""
)


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


def test_earlier_handler_gets_the_details(train: Run, tmp_path: Path, library: str) -> None:
    """The code and the address, or the code and the sender, as without monitel; it decides the status."""
    for name, crash in (("SIGSEGV", "crashing()\n"), ("SIGABRT", "os.abort()\n")):
        found = []
        for install in ("", "install()\n"):
            steps = f"{library}library.end_process(signal.{name})\n{install}say(os.getpid())\n"
            pid, line = train(BEGIN + steps + crash, returncode=42).stdout.splitlines()
            found.append(line.replace(pid, "PID"))
        assert found[0] == found[1] != ""
        crashed = read_crash((tmp_path / "stacks").read_text())
        assert signal.Signals[name] == (crashed.signal if crashed else None)
        (tmp_path / "stacks").unlink()


def test_later_handler_that_chains(train: Run, tmp_path: Path, library: str) -> None:
    """The handler above calls monitel's as a function: the stacks are written, then the process ends."""
    ended = train(BEGIN + library + "install()\nlibrary.chain(signal.SIGSEGV)\ncrashing()\n", returncode=-11)
    assert ("chained\n", 1, 1) == (ended.stdout, stacks_in((tmp_path / "stacks").read_text()), stacks_in(ended.stderr))


def test_handler_that_recovers(train: Run, tmp_path: Path, library: str) -> None:
    """The process goes on, with that handler alone; a later crash is recorded."""
    script = """\
library.recover(signal.SIGSEGV)
install()
say(library.fault(), library.fault())
crash_stacks.check()
os.abort()
"""
    assert "-1 -1\n" == train(BEGIN + library + script, returncode=-signal.SIGABRT).stdout
    crashed = read_crash((tmp_path / "stacks").read_text())
    assert signal.SIGSEGV == (crashed.signal if crashed else None)


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


def test_damaged_interpreter(train: Run, tmp_path: Path) -> None:
    """If the stacks cannot be read, the file has the signal and a note, and the exit status is the same."""
    ended = train(BEGIN + DAMAGE + "crashing()\n", returncode=-11)
    text = (tmp_path / "stacks").read_text()
    crashed = read_crash(text)
    assert signal.SIGSEGV == (crashed.signal if crashed else None)
    for each in (text, ended.stderr):
        assert "(the other stacks cannot be read)" in each


def test_many_stacks_are_cut(train: Run, tmp_path: Path) -> None:
    """The file and stderr have at most 256 KiB. A symbolic link in the place of the file is not followed."""
    script = """\
names = {}
ready, over = threading.Semaphore(0), threading.Event()
names.update(ready=ready, over=over)
long = "x" * 400
exec(f"def {long}(depth):\\n    {long}(depth - 1) if depth else (ready.release(), over.wait())\\n", names)
for _ in range(20):
    threading.Thread(target=names[long], args=[90], daemon=True).start()
    ready.acquire()
"""
    ended = train(BEGIN + script + "install()\ncrashing()\n", returncode=-11)
    assert 200 << 10 < len((tmp_path / "stacks").read_text()) <= 256 << 10
    assert 100 << 10 < len(ended.stderr) <= 256 << 10
    link = "open('target', 'w').close()\nos.symlink('target', 'link')\ncrash_stacks.install('link')\ncrashing()\n"
    ended = train(BEGIN + link, returncode=-11)
    assert (1, b"") == (stacks_in(ended.stderr), (tmp_path / "target").read_bytes())


def test_several_threads_at_once(train: Run, tmp_path: Path) -> None:
    """The first one writes the stacks, and the process ends of its signal or that of another one."""
    script = """\
install()
together = threading.Barrier(9)
def crash():
    together.wait()
    ctypes.memset(8, 0, 1)
for i in range(8):
    threading.Thread(target=crash, daemon=True).start()
together.wait()
threading.Event().wait(60)
"""
    ended = train(BEGIN + script, returncode=-11)
    for text in ((tmp_path / "stacks").read_text(), ended.stderr):
        assert 1 == text.count(" in waiting\n") == text.count("fatal signal")
