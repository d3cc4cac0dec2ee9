"""Crashes in C code: the stacks are on stderr and in the death's event, and the process ends as without monitel."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.processes.promises.jobs import replay
from tests.support.scripts import needs_c

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = needs_c

#: The main thread crashes in ``crashing``, while another one waits in ``waiting``. The black box has the handler.
BEGIN = """\
import ctypes, faulthandler, resource, signal, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
libc = ctypes.CDLL(None)

def waiting(ready, more):
    ready.set()
    more.wait()

def all_wait():
    states = [open(f"/proc/self/task/{each}/stat").read().rpartition(")")[2].split()[0]
              for each in os.listdir("/proc/self/task") if int(each) != threading.get_native_id()]
    return {*states} <= {"S"}

def crashing(number=signal.SIGSEGV):
    while not all(all_wait() for _ in range(20)):  # the stack of a thread that runs may not be readable
        time.sleep(0.001)
    if number == signal.SIGSEGV:
        ctypes.memset(8, 0, 1)
    os.kill(os.getpid(), number)
    os._exit(99)

def configure():
    monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool", export_interval=3600.0)
    monitel.emit("before")
    monitel.set_step(7)

def into_file():
    faulthandler.enable(open("other", "w"))

_ready = threading.Event()
threading.Thread(target=waiting, args=[_ready, threading.Event()], daemon=True).start()
_ready.wait()
"""
OURS, THEIRS = "monitel: fatal signal", "Fatal Python error"


def stacks_in(text: str) -> int:
    """Return the number of times that a text has the stacks of both threads, in complete lines."""
    crashing, waiting = text.count(" in crashing\n"), text.count(" in waiting\n")
    assert crashing == waiting, text
    return crashing


def death(receiver: Receiver, folder: Path) -> dict[str, Any]:
    """Deliver what the dead process has left, and return the attributes of its death."""
    receiver.requests.clear()
    replay(folder / "spool", receiver.url)
    assert {"before", "process.died"} <= {*receiver.record_names()}
    return receiver.records("process.died")[-1].attributes


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE"])
def test_stacks_of_all_threads_are_on_stderr_and_in_the_event(
    receiver: Receiver, train: Run, tmp_path: Path, name: str
) -> None:
    """Once, with the signal; the exit status is that of the signal."""
    number = signal.Signals[name]
    ended = train(BEGIN + f"configure()\nprint(os.getpid(), flush=True)\ncrashing(signal.{name})\n", returncode=-number)
    pid = ended.stdout.strip()
    details = "code 1, address 0x0*8" if name == "SIGSEGV" else f"code 0, sender {pid}"  # by the kernel, or a process
    first = ended.stderr.splitlines()[0]
    assert re.fullmatch(rf"{OURS} {number:d} \({name}\), {details}, thread {pid}, time \d+\.\d{{9}}", first)
    assert 1 == stacks_in(ended.stderr)
    died = death(receiver, tmp_path)
    assert ("signal", name, 7) == (
        died["process.exit.reason"],
        died["process.exit.signal"],
        died["training.step"],
    )
    assert 1 == stacks_in(died["code.stacktrace"])
    expected = rf"process {pid} on .*: killed by {name} at step 7, [0-9.]+ m?s after it was set"
    assert re.fullmatch(expected, died["message"])


@pytest.mark.parametrize(
    ("steps", "stderr", "others"),
    [
        pytest.param("faulthandler.enable(); configure()", THEIRS, 0, id="before"),
        pytest.param("configure(); faulthandler.enable()", THEIRS, 0, id="after"),
        pytest.param("into_file(); configure()", OURS, 1, id="for another file"),
        pytest.param("configure(); faulthandler.enable(); faulthandler.disable()", OURS, 0, id="off again"),
    ],
)
def test_faulthandler_of_the_application_wins(
    *, receiver: Receiver, train: Run, tmp_path: Path, steps: str, stderr: str, others: int
) -> None:
    """Stderr has the stacks once, by its handler if that is for stderr; so have its file, and the event."""
    ended = train(
        BEGIN + f"{steps}\nprint(faulthandler.is_enabled())\nsys.stdout.flush()\ncrashing()\n", returncode=-11
    )
    assert (1, True) == (stacks_in(ended.stderr), ended.stderr.startswith(stderr))
    assert (stderr == OURS) == (THEIRS not in ended.stderr)
    other = tmp_path / "other"
    assert others == stacks_in(other.read_text() if other.exists() else "")
    assert f"{stderr == THEIRS or others == 1}\n" == ended.stdout
    assert 1 == stacks_in(death(receiver, tmp_path)["code.stacktrace"])


IN_CPP = """\
def crashing():
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.abort, ctypes.c_void_p), None)
    libc.pthread_join(thread, None)
crashing()
"""
CRASHES = {
    "thread of C++": (
        IN_CPP,
        signal.SIGABRT,
    ),
    "thread of Python": (
        "thread = threading.Thread(target=crashing)\nthread.start()\nthread.join()\n",
        signal.SIGSEGV,
    ),
    "stack overflow": ("def crashing():\n    faulthandler._stack_overflow()\ncrashing()\n", signal.SIGSEGV),
}


@pytest.mark.parametrize("crash", CRASHES)
def test_crash_may_be_anywhere(receiver: Receiver, train: Run, tmp_path: Path, crash: str) -> None:
    """In a thread that Python does not know, in any other, and where the stack is full."""
    script, number = CRASHES[crash]
    ended = train(BEGIN + "configure()\n" + script, returncode=-number)
    assert 1 == stacks_in(ended.stderr)
    died = death(receiver, tmp_path)
    assert (number.name, 1) == (died["process.exit.signal"], stacks_in(died["code.stacktrace"]))


@pytest.mark.parametrize(
    ("handler", "order"),
    [("signal.SIG_IGN", "handle configure"), ("lambda *_: os.write(1, b'handled\\n')", "configure handle")],
)
def test_signal_of_the_application_is_not_a_crash(train: Run, handler: str, order: str) -> None:
    """The application ignores or handles the signal in Python, before or afterwards, and goes on."""
    steps = {"handle": f"signal.signal(signal.SIGABRT, {handler})\n", "configure": "configure()\n"}
    script = "".join(steps[step] for step in order.split())
    end = "os.kill(os.getpid(), signal.SIGABRT)\nprint('goes on', flush=True)\nos._exit(0)\n"
    ended = train(BEGIN + script + end)
    assert ("handled\ngoes on\n" if "handled" in handler else "goes on\n", "") == (ended.stdout, ended.stderr)


def test_crash_of_a_forked_child_is_not_the_parents(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """The child has no handler: the signal ends it as by default. The parent's crash is recorded."""
    script = """\
configure()
if (pid := os.fork()) == 0:
    os.dup2(os.open("child", os.O_WRONLY | os.O_CREAT), 2)
    crashing()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
crashing(signal.SIGABRT)
"""
    ended = train(BEGIN + script, returncode=-signal.SIGABRT)
    assert (f"{-signal.SIGSEGV:d}\n", "") == (ended.stdout, (tmp_path / "child").read_text())
    assert 1 == stacks_in(ended.stderr)
    assert "SIGABRT" == death(receiver, tmp_path)["process.exit.signal"]
    assert 1 == len(receiver.records("process.died"))


def test_stderr_that_nobody_reads_does_not_keep_the_process(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """The pipe is full: the process ends of its signal after a second or so, and the event has the stacks."""
    full = """\
configure()
read, write = os.pipe()
os.dup2(write, 2)
os.set_blocking(2, False)
try:
    while True: os.write(2, b"x" * 4096)
except OSError:
    os.set_blocking(2, True)
crashing()
"""
    train(BEGIN + full, returncode=-11, timeout=60)
    assert 1 == stacks_in(death(receiver, tmp_path)["code.stacktrace"])


def test_file_in_the_place_of_stderr_is_left_alone(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Descriptor 2 is a file with data, after the program has closed stderr."""
    script = "configure()\ndata = open('data', 'wb', buffering=0)\nos.dup2(data.fileno(), 2)\ncrashing()\n"
    train(BEGIN + script, returncode=-11)
    assert b"" == (tmp_path / "data").read_bytes()
    assert 1 == stacks_in(death(receiver, tmp_path)["code.stacktrace"])


def test_without_a_black_box_python_ends_as_before(train: Run) -> None:
    """Nothing is installed, and nothing is printed."""
    script = BEGIN.replace("export_interval", "black_box=False, export_interval") + "configure()\ncrashing()\n"
    assert "" == train(script, returncode=-11).stderr


def test_end_of_the_pipeline_removes_the_handler(train: Run) -> None:
    """A crash after the shutdown is as without monitel."""
    script = BEGIN + "configure()\nmonitel_otlp.configure(endpoint=None, spool_dir='spool').shutdown()\nprint()\n"
    ended = train(script + "sys.stdout.flush()\ncrashing()\n", returncode=-11)
    assert 0 == stacks_in(ended.stderr)
