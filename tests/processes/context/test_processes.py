"""The context page and forked children, also of forks in C code."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.core_conftest import RunScript

#: How to fork, each without another's knowledge: Python's way; glibc's, which runs no handler of Python; the kernel's,
#: which runs no handler at all.
FORKS = {
    "python": "os.fork",
    "glibc": "ctypes.PyDLL(None).fork",
    "kernel": "lambda: ctypes.PyDLL(None).syscall({clone}, 17, 0, 0, 0, 0)",  # SIGCHLD
}
CLONES = {"x86_64": 56, "aarch64": 220}

PRELUDE = """
import ctypes, mmap
from monitel import context_page
fork = {fork}

def read(path="context"):
    with open(path, "rb") as file:
        return context_page.read_page(file.read())

def mappings():
    with open("/proc/self/maps") as file:
        return sum("/context" in line for line in file)

def in_child(function):
    child = fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            say("child failed", repr(error))
        os._exit(0)
    assert child > 0
    assert (child, 0) == os.waitpid(child, 0)

"""


@pytest.fixture(params=FORKS)
def prelude(request: pytest.FixtureRequest) -> str:
    """Return the begin of a script, which forks in one of three ways."""
    if sys.platform != "linux":
        pytest.skip("forks in C as on Linux")
    clone = CLONES.get(platform.machine())
    if request.param == "kernel" and clone is None:
        pytest.skip(f"the number of clone() on {platform.machine()} is not known")
    return PRELUDE.replace("{fork}", FORKS[request.param].replace("{clone}", str(clone)))


def test_child_never_writes_to_the_page_of_its_parent(run_script: RunScript, prelude: str) -> None:
    """Not by steps, waits that it begins or ends, or beats."""
    ended = run_script(
        prelude
        + """
context_page.open_page("context")
monitel.set_step(7)

def work():
    monitel.set_step(8)
    guard.__exit__(None, None, None)
    with monitel.WaitCounter("of the child").guard():
        monitel.set_step(9)
        context_page.beat()
    say("child", monitel.get_step(), read() == before)
    context_page.close_page()
    monitel.set_step(10)

guard = monitel.WaitCounter("of the parent").guard()
guard.__enter__()
before = read()
in_child(work)
say(read() == before)
monitel.set_step(11)
guard.__exit__(None, None, None)
say(read().step, read().waits)
"""
    )
    assert ["child 9 True", "True", "11 ()"] == ended.lines


def test_child_can_open_a_page(run_script: RunScript, prelude: str) -> None:
    """Both processes then write to their own pages."""
    ended = run_script(
        prelude
        + """
context_page.open_page("context")
monitel.set_step(7)

def work():
    context_page.open_page("context-of-child")
    say("child", read("context-of-child").step, read("context-of-child").waits)
    monitel.set_step(8)
    with monitel.WaitCounter("of the child").guard():
        found = read("context-of-child")
        say("child", found.step, [wait.key for wait in found.waits])

in_child(work)
found = read()
say(found.step, found.waits)
monitel.set_step(9)
say(read().step, read("context-of-child").step)
"""
    )
    assert ["child 7 ()", "child 8 ['of the child']", "7 ()", "9 8"] == ended.lines


def test_wait_of_the_forking_thread_is_in_the_page_of_the_child(run_script: RunScript) -> None:
    """The wait continues in the child, as for wait_counters()."""
    ended = run_script(
        PRELUDE.replace("{fork}", FORKS["python"])
        + """
context_page.open_page("context")

def work():
    context_page.open_page("context-of-child")
    say([wait.key for wait in read("context-of-child").waits])

with monitel.WaitCounter("around the fork").guard():
    in_child(work)
"""
    )
    assert ["['around the fork']"] == ended.lines


def test_file_is_not_mapped_in_a_child_or_after_exec(run_script: RunScript, twin: str) -> None:
    """A forked child unmaps the page, even if no handler of Python runs; a new program never has it."""
    forks = ["os.fork", "ctypes.PyDLL(None).fork"] if twin == "c" else ["os.fork"]
    for fork in forks:
        ended = run_script(
            PRELUDE.replace("{fork}", fork)
            + """
import subprocess
context_page.open_page("context")
say(mappings())
in_child(lambda: say("child", mappings()))
program = "print(sum('/context' in line for line in open('/proc/self/maps')))"
say("program", subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip())
context_page.close_page()
say(mappings())
os.unlink("context")
"""
        )
        assert ["1", "child 0", "program 0", "0"] == ended.lines


def test_fork_storm_beside_writing_threads(run_script: RunScript) -> None:
    """Children of a process whose threads write all the time change nothing, and none of them fails."""
    ended = run_script(
        PRELUDE.replace("{fork}", FORKS["python"])
        + """
context_page.open_page("context")
going = True

def write():
    step = 0
    while going:
        step += 2  # children write odd steps
        monitel.set_step(step)
        with monitel.WaitCounter("of the parent").guard():
            pass

def work():
    for step in (1, 3, 5):
        monitel.set_step(step)
    context_page.beat()

monitel.set_step(0)
threads = [threading.Thread(target=write) for _ in range(2)]
for thread in threads:
    thread.start()
odd = 0
for _ in range(60):
    in_child(work)
    odd += read().step % 2
going = False
for thread in threads:
    thread.join()
found = read()
say(odd, found.waits, found.step == monitel.get_step())
"""
    )
    assert ["0 () True"] == ended.lines
