"""Crashes in C code: the death's event has the stacks, and the process ends as without monitel."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.processes.promises.jobs import replay
from tests.support.receiver import Receiver
from tests.support.scripts import Run

#: The main thread crashes in ``crashing``, while another one waits in ``waiting``. The black box has the handler.
BEGIN = """\
import ctypes, faulthandler, resource, signal, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
libc = ctypes.CDLL(None)

def waiting(ready, more):
    ready.set()
    more.wait()

def until_all_wait(process):  # but the caller: faulthandler may crash at the stack of a thread that runs
    in_a_row = 0
    while in_a_row < 20:
        try:
            states = {open(f"/proc/{process}/task/{each}/stat").read().rpartition(")")[2].split()[0]
                      for each in os.listdir(f"/proc/{process}/task") if int(each) != threading.get_native_id()}
        except OSError:  # a thread has ended
            continue
        in_a_row = in_a_row + 1 if states <= {"S"} else 0
        time.sleep(0.001)

def crashing(number=signal.SIGSEGV):
    until_all_wait(os.getpid())
    if number == signal.SIGSEGV:
        ctypes.memset(8, 0, 1)
    os.kill(os.getpid(), number)
    os._exit(99)

def configure(**options):
    monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool", export_interval=3600.0, **options)
    monitel.emit("before")
    monitel.set_step(7)

def into_file():
    faulthandler.enable(open("other", "w"))

def shut_down():
    monitel_otlp.configure(endpoint=None, spool_dir="spool").shutdown()

_ready = threading.Event()
threading.Thread(target=waiting, args=[_ready, threading.Event()], daemon=True).start()
_ready.wait()
"""


def stacks_in(text: str) -> int:
    """Return the number of times that a text has the stacks of both threads, in complete lines."""
    crashing, waiting = text.count(" in crashing\n"), text.count(" in waiting\n")
    assert crashing == waiting, text
    return crashing


def death(receiver: Receiver) -> dict[str, Any]:
    receiver.requests.clear()
    replay(receiver.url)
    assert {"before", "process.died"} <= {*receiver.record_names()}
    return receiver.records("process.died")[-1].attributes


#: A child sends the signal to the thread of C++, so that all others wait.
IN_CPP = """\
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 warns of a fork beside threads
def crashing():
    until_all_wait(os.getpid())
    known, thread, job = {*os.listdir("/proc/self/task")}, ctypes.c_ulong(), os.getpid()
    libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
    native, = {*os.listdir("/proc/self/task")} - known
    if not os.fork():
        until_all_wait(job)
        libc.tgkill(job, int(native), signal.SIGABRT)
        os._exit(0)
    libc.pthread_join(thread, None)
crashing()
"""
CRASHES = {
    "thread of C++": (IN_CPP, signal.SIGABRT),
    "thread of Python": ("thread = threading.Thread(target=crashing)\nthread.start()\nthread.join()\n", signal.SIGSEGV),
    "stack overflow": ("def crashing():\n    faulthandler._stack_overflow()\ncrashing()\n", signal.SIGSEGV),
    **{
        number.name: (f"crashing(signal.{number.name})\n", number)
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
    },
}


@pytest.mark.parametrize("crash", CRASHES)
def test_event_has_the_signal_and_the_stacks_of_all_threads(receiver: Receiver, train: Run, crash: str) -> None:
    """Wherever it crashes. Nothing is printed, and the exit status is that of the signal."""
    script, number = CRASHES[crash]
    ended = train(BEGIN + "configure()\nprint(os.getpid(), flush=True)\n" + script, returncode=-number)
    assert "" == ended.stderr
    died = death(receiver)
    assert ("signal", 7) == (died["process.exit.reason"], died["training.step"])
    assert (number.name, 1) == (died["process.exit.signal"], stacks_in(died["code.stacktrace"]))
    expected = rf"process {ended.stdout.strip()} on .*: killed by {number.name} at step 7, [0-9.]+ m?s after it was set"
    assert re.fullmatch(expected, died["message"])


@pytest.mark.parametrize(
    ("steps", "stderr", "file"),
    [
        pytest.param("faulthandler.enable(); configure()", 1, 0, id="before"),
        pytest.param("configure(); faulthandler.enable()", 1, 0, id="after"),
        pytest.param("into_file(); configure()", 0, 1, id="for another file"),
        pytest.param("configure(); into_file(); shut_down()", 0, 1, id="after the end"),
        pytest.param("configure(); shut_down()", 0, 0, id="not used, after the end"),
        pytest.param("configure(black_box=False)", 0, 0, id="not used, without a box"),
    ],
)
def test_faulthandler_of_the_application_wins(
    *, receiver: Receiver, train: Run, tmp_path: Path, steps: str, stderr: int, file: int
) -> None:
    """The stacks are where the application wants them, and the event has that of the main thread at the snapshot."""
    ended = train(BEGIN + f"{steps}\ncrashing()\n", returncode=-11)
    other = tmp_path / "other"
    assert (stderr, file) == (stacks_in(ended.stderr), stacks_in(other.read_text() if other.exists() else ""))
    assert ("Fatal" in ended.stderr) == bool(stderr)
    if not steps.endswith(("shut_down()", "False)")):
        assert " in waiting\n" not in death(receiver).get("code.stacktrace", "")


@pytest.mark.parametrize("loss", ["faulthandler.disable()", "os.closerange(900, 1100); faulthandler.disable()"])
def test_handler_returns_when_the_application_has_removed_it(receiver: Receiver, train: Run, loss: str) -> None:
    """Within a second or so, with a new descriptor if the application has closed the first one."""
    wait = "while not faulthandler.is_enabled(): time.sleep(0.001)\n"
    train(BEGIN + f"configure()\n{loss}\n{wait}crashing()\n", returncode=-11, timeout=60)
    assert 1 == stacks_in(death(receiver)["code.stacktrace"])


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
    """The signal ends the child as by default. The parent's crash is recorded."""
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
    assert "SIGABRT" == death(receiver)["process.exit.signal"]
    assert 1 == len(receiver.records("process.died"))


def test_signal_that_the_process_survives(train: Run) -> None:
    """Its stacks are removed ten seconds later; a symbolic link in the place of the file is not followed."""
    script = """\
from monitel.process import crash_stacks
signal.signal(signal.SIGABRT, lambda *_: None)
crash_stacks.write_to("stacks")
for age, kept in (0, True), (11, False):
    os.kill(os.getpid(), signal.SIGABRT)
    then = time.time() - age
    os.utime("stacks", (then, then))
    crash_stacks.write_to("stacks")
    assert kept == ("Fatal Python error: Aborted" in open("stacks").read()), age
os.symlink("target", "link")
try:
    crash_stacks.write_to("link")
except OSError:
    assert not os.path.exists("target")
    print("refused")
"""
    assert "refused\n" == train(BEGIN + script).stdout


def test_number_of_a_closed_descriptor_may_be_that_of_another_file(train: Run) -> None:
    """The other file is neither emptied nor replaced."""
    script = """\
from monitel.process import crash_stacks
crash_stacks.write_to("stacks")
weights = open("weights", "w")
for call in crash_stacks.write_to, crash_stacks.stop:
    number, = (int(each) for each in os.listdir("/proc/self/fd")
               if os.path.realpath(f"/proc/self/fd/{each}") == os.path.realpath("stacks"))
    os.dup2(weights.fileno(), number)  # the application has closed it, and opened its own
    os.write(number, b"hours")
    os.utime("weights", (0, 0))
    call("stacks")
    os.write(number, b" of ")
print(open("weights").read())
"""
    assert "hours of hours of \n" == train(BEGIN + script).stdout
