"""SIGTERM: everything is delivered or on disk, and the process ends as it would have without."""

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes.conftest import Terminate
from tests.processes.patience import with_patience
from tests.support.checks import SetEnv
from tests.support.hostile import Peer, refusing_url, url_of
from tests.support.receiver import Receiver
from tests.support.scripts import CONFIGURE, READY, RECORD, RECORDED, Run
from tests.support.spools import arrived, files, last_line, spooled

BLOCKED = """\
import asyncio, ctypes, faulthandler, signal, threading
def blocked(wait="exec sleep 60"):  # in C, without a return to Python after a signal
    ctypes.CDLL(None).system(f"echo ready; {{ {wait}; }} >/dev/null 2>&1".encode())
def wait_for(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
BEGIN = BLOCKED + CONFIGURE + RECORD
#: Until the signal has come: the input ends after it. A signal just before pause() would have no effect.
LIVE_ON = READY + "sys.stdin.read()\n"
PAUSE = LIVE_ON + "signal.pause()\n"
LATER = """\
before = signal.getsignal(signal.SIGTERM)
def later(*arguments):
    before(*arguments)
    print("later", flush=True)
signal.signal(signal.SIGTERM, later)
"""


@pytest.fixture
def dead(request: pytest.FixtureRequest, blackhole: socket.socket) -> Iterator[str]:
    """The URL of a backend that refuses connections, never answers, or sends an endless answer one byte at a time."""
    with Peer(lambda peer, connection: peer.drip(connection, b"H")) as drips:
        yield {"refuses": refusing_url(), "hangs": url_of(blackhole), "drips": drips.url}[request.param]


WHERE = [pytest.param(PAUSE, id="in Python"), pytest.param("blocked()\n", id="in C")]
LOOP = """\
async def main():
    os.write(1, b"ready\\n")
    await asyncio.sleep(60)
asyncio.run(main())
"""
#: Each child ends, even before code of monitel runs there.
FORKS = """\
for _ in range(100):
    if (pid := os.fork()) == 0:
        ctypes.CDLL(None).pause()
        os._exit(1)
    os.kill(pid, signal.SIGTERM)
    assert wait_for(pid) == -signal.SIGTERM
threading.Event().wait(1)  # in which a signal of a child would end the parent
"""
AFTER_CHILDREN = pytest.param(FORKS + PAUSE, id="after signals to children just after their fork")


@pytest.mark.parametrize("where", [*WHERE, pytest.param(LOOP, id="in an event loop"), AFTER_CHILDREN])
def test_everything_is_delivered(receiver: Receiver, terminate: Terminate, tmp_path: Path, where: str) -> None:
    """Then the signal ends the process as by default, even inside C code; further signals change nothing."""
    ended = terminate(BEGIN + where, receiver.url, signals=20)
    assert RECORDED == arrived(receiver)
    assert "monitel: exported 11 windows and numbers, 1 events\n" == ended.stderr
    assert [] == files(tmp_path)


#: It is added under a lock, so the SDK cannot collect.
LOCKED = """\
class Amount(int):
    def __radd__(self, other):
        os.write(1, b"ready\\n")
        sys.stdin.read()
pipeline.meter_provider.get_meter("mine").create_counter("mine").add(Amount(1))
"""
#: Writes ``ready`` when the request of a flush is about to be sent.
CONNECTS = 'sys.addaudithook(lambda event, _: event == "socket.connect" and os.write(1, b"ready\\n"))\n'
BACKENDS = [
    pytest.param("refuses", PAUSE, marks=pytest.mark.timed),
    pytest.param("hangs", PAUSE, marks=pytest.mark.timed),
    pytest.param("hangs", "blocked()\n", marks=pytest.mark.timed),
    pytest.param("drips", "blocked()\n", marks=pytest.mark.timed),
    pytest.param("hangs", CONNECTS + "pipeline.force_flush(60)\n", id="during a flush"),
    pytest.param("hangs", READY + "pipeline.shutdown()\n", id="during a shutdown"),
    pytest.param("hangs", "import atexit\natexit.register(os.write, 1, b'ready\\n')\n", id="during the exit"),
    pytest.param("refuses", LOCKED, id="inside counter.add"),
]


@pytest.mark.parametrize(("dead", "where"), BACKENDS, indirect=["dead"])
def test_what_cannot_be_delivered_is_on_disk(terminate: Terminate, dead: str, where: str) -> None:
    """Within the same time, and once; the last line has the number."""
    ended = terminate(BEGIN + where, dead)
    assert (RECORDED, 12) == (spooled(Path("spool")), last_line(ended.stderr).spooled)


MANY = """\
stats = [Stat("many", [COUNT], 3600.0, attributes={"number": number}) for number in range(2_000)]
for stat in stats: stat.add(1)
monitel.register_event_handler(lambda event: event.window and time.sleep(0.3 if event.window.name == "many" else 0))
"""


def test_each_open_window_is_recorded_beside_a_slow_handler(terminate: Terminate) -> None:
    """There are 2,000, and the handler takes 0.3 s for each: all are recorded before it is called."""
    ended = terminate(BEGIN + MANY + PAUSE, refusing_url())
    line = last_line(ended.stderr)
    assert (2_012, None) == (line.spooled, line.dropped)


def test_run_was_preempted(receiver: Receiver, terminate: Terminate, setenv: SetEnv) -> None:
    """Even if the program's handler calls monitel's, and exits by itself."""
    setenv(MONITEL_RUN_EVENTS="1")
    terminate(BEGIN + PAUSE, receiver.url)
    terminate(BEGIN + LATER.replace("print(", "sys.exit(0) or print(") + PAUSE, receiver.url, status=0)
    assert 2 * ["preempted"] == [each.attributes["run.status"] for each in receiver.records("run.ended")]


THEIRS = """\
import signal
def theirs(number, frame):
    os.write(1, b"theirs %d\\n" % number)
    {}
signal.signal(signal.SIGTERM, theirs)
"""
WITH_TRUE = BEGIN.replace("spool_dir=", "sigterm=True, spool_dir=")


DUMP = "import faulthandler, signal\nfaulthandler.register(signal.SIGTERM, all_threads=False, chain={})\n"
HANDLE = "import signal\nsignal.signal(signal.SIGTERM, {})\nhandler = signal.getsignal(signal.SIGTERM)\n"
LATE = 'monitel.emit("late")\n'
KEPT = f"{LIVE_ON}assert signal.getsignal(signal.SIGTERM) == handler\n{LATE}"
#: A handler of an event loop, which works as without monitel.
GRACEFUL = """\
async def main():
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    os.write(1, b"ready\\n")
    await asyncio.wait_for(terminated.wait(), 60)
asyncio.run(main())
"""
#: Scripts, their status and output, and whether they record ``late`` after the signal.
HANDLERS: dict[str, tuple[str, int, str, bool]] = {
    # With sigterm=True: it gets the signal once, after the delivery, and decides the status.
    "previous": (THEIRS.format("sys.exit(7)") + WITH_TRUE + PAUSE, 7, f"theirs {signal.SIGTERM:d}\n", False),
    "ignored": (HANDLE.format("signal.SIG_IGN") + BEGIN + KEPT, 0, "", True),
    "ignored, with True": (HANDLE.format("signal.SIG_IGN") + WITH_TRUE + KEPT, 0, "", True),
    # With "auto" the application's stays the only one, in Python or in C, and the pipeline ends at exit.
    "kept": (HANDLE.format("lambda *_: None") + BEGIN + KEPT, 0, "", True),
    "kept, in C": (DUMP.format(False) + BEGIN + LIVE_ON + LATE, 0, "", True),
    # A later one that calls monitel's decides: everything is flushed, and the pipeline continues.
    "later": (BEGIN + LATER + LIVE_ON + LATE, 0, "later\n", True),
    "later, in C": (BEGIN + LATER + 'blocked("cat; sleep 1.5")\n' + LATE, 0, "later\n", True),
    "later, which exits": (BEGIN + LATER.replace('print("later", flush=True)', "os._exit(7)") + PAUSE, 7, "", False),
    "later, after the shutdown": (BEGIN + LATER + "pipeline.shutdown()\n" + LIVE_ON, 0, "later\n", False),
    "of an event loop": (BEGIN + GRACEFUL + LATE, 0, "", True),
    # Python cannot see a handler of a C library.
    "previous, in C": (DUMP.format(False) + WITH_TRUE + LIVE_ON, 0, "", False),
    "later, of a C library": (BEGIN + DUMP.format(True) + "pipeline.force_flush(60)\n" + LIVE_ON, 0, "", False),
}


@pytest.mark.parametrize("handler", HANDLERS)
def test_handlers_of_the_application_are_called(receiver: Receiver, terminate: Terminate, handler: str) -> None:
    """From before or later, in Python or in C: everything is delivered once, and they decide what happens then."""
    script, status, printed, late = HANDLERS[handler]
    ended = terminate(script, receiver.url, status=status)
    assert printed == ended.stdout.replace("ready\n", "")
    assert (RECORDED[0], [*RECORDED[1], *["late"] * late]) == arrived(receiver)
    assert ("faulthandler.register" in script) == ended.stderr.count("most recent call first")
    assert ("os._exit" not in script) == ended.stderr.count("monitel: exported")


def test_previous_handler_may_continue(receiver: Receiver, terminate: Terminate) -> None:
    """The pipeline has ended, and another ``configure()`` records again."""
    wait = READY + "while not seen: time.sleep(0.01)\n"
    late = LATE + CONFIGURE + "monitel.emit('again')\nassert pipeline.shutdown()\nprint('end')\n"
    script = "seen = []\n" + THEIRS.format("seen.append(number)") + WITH_TRUE + wait + late
    assert "theirs 15\nend\n" == terminate(script, receiver.url, status=0).stdout
    assert ["checkpoint", "again"] == receiver.record_names()


EXEC = "os.execvp('sh', ['sh', '-c', 'echo ready; exec sleep 60'])\n"


@pytest.mark.parametrize(
    "script", [WITH_TRUE.replace("sigterm=True", "sigterm=False") + PAUSE, BEGIN + EXEC], ids=["sigterm=False", "exec"]
)
def test_nothing_is_handled(receiver: Receiver, terminate: Terminate, script: str) -> None:
    """The signal ends the process at once, if the pipeline leaves it alone, or ``exec`` has removed the handler."""
    assert ("", []) == (terminate(script, receiver.url).stderr, receiver.requests)


def test_launcher_handles_nothing(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """``torchrun`` passes the signal on, and is not a run; it is recognized by its command line."""
    script = tmp_path / "torchrun"
    check = "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    begin = with_patience("import signal, sys\nimport monitel, monitel_otlp\n")
    script.write_text(f"{begin}{CONFIGURE}monitel.emit('x')\n{check}")
    run(script, receiver.url, env={"MONITEL_RUN_EVENTS": "1"})
    assert ["x"] == receiver.record_names()


NO_DESCRIPTOR = """
import os, resource, sys, time
import monitel, monitel_otlp

monitel_otlp.configure(endpoint=sys.argv[1]).shutdown()  # imports what it needs
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), before[1]))
monitel_otlp.configure(endpoint=sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, before)
monitel.emit("recorded")
print("ready", flush=True)
while True:  # nothing wakes a sleep if the signal arrives just before it
    time.sleep(0.1)
"""


def test_job_that_has_no_descriptor_left_is_not_stopped(receiver: Receiver, terminate: Terminate) -> None:
    """The thread for C code needs two; Python's handler delivers without them."""
    terminate(NO_DESCRIPTOR, receiver.url)
    assert "recorded" in {each.name for each in receiver.records()}


def test_end_that_fails_does_not_keep_the_process_alive(receiver: Receiver, terminate: Terminate) -> None:
    """The exception is logged, and the signal ends the process, inside C code too."""
    fail = "monitel_otlp.Pipeline._terminate = lambda *_: sys.exit('no')\n"
    for where in (PAUSE, "blocked()\n"):
        assert "SystemExit: no" in terminate(fail + BEGIN + where, receiver.url).stderr


TEMPORARY = "before = signal.signal(signal.SIGTERM, lambda *_: None)\nsignal.signal(signal.SIGTERM, before)\n"
#: An event loop takes Python's wake-up descriptor, and releases it.
TEMPORARY_LOOP = """\
async def handle():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)
asyncio.run(handle())
"""


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("temporary", [TEMPORARY, TEMPORARY_LOOP])
def test_handler_that_a_library_restores_decides_again(
    receiver: Receiver, terminate: Terminate, where: str, temporary: str
) -> None:
    """As trainers and event loops do for some time; the writer takes the descriptor again in its next round."""
    rounds = "for _ in range(2): assert pipeline.force_flush(60)\n"
    terminate(BEGIN + temporary + rounds + where, receiver.url)
    assert (11, ["checkpoint"]) == (receiver.values("loss.count")[-1], receiver.record_names())


def test_wait_in_flight_is_reported(receiver: Receiver, terminate: Terminate) -> None:
    """A job that hangs and is ended shows the wait in which it hung, and the activity keeps its time."""
    hang = 'with monitel.activity("evaluation"), monitel.WaitCounter("w").guard():\n    os.write(1, b"ready\\n")\n'
    terminate(BEGIN + hang + "    while True: time.sleep(60)\n", receiver.url)
    assert {1} == {*receiver.values("w.wait.active")}
    times = {point.attributes["training.activity"]: point.value for point in receiver.points("training.time")}
    assert {"startup", "evaluation", "shutdown"} <= {*times}


def test_signal_after_the_shutdown_ends_the_process(receiver: Receiver, terminate: Terminate) -> None:
    """The default action is restored, for code in C too, and after a shutdown in another thread."""
    for end in ("pipeline.shutdown()\n", "thread = threading.Thread(target=pipeline.shutdown)\nthread.start()\n"):
        join = "thread.join()\n" if "thread" in end else ""
        ended = terminate(BEGIN + end + join + "blocked()\n", receiver.url)
        assert 1 == ended.stderr.count("monitel: exported")


CHILD = """\
reading, writing = os.pipe()
libc = ctypes.{library}(None)
pid = {fork}
if pid == 0:
    {begin}
    libc.write(writing, b"!", 1)
    {wait}
    os._exit(1)
os.read(reading, 1)  # Python forgets a signal that comes inside fork()
os.kill(pid, signal.SIGTERM)
assert wait_for(pid) == {status}
"""
PLAIN_CHILD = {"library": "CDLL", "fork": "os.fork()", "begin": "", "wait": "libc.pause()", "status": -signal.SIGTERM}
#: With the GIL from the fork to the end: in the child, its lock may be that of a thread which is not there.
FORK_IN_C = {**PLAIN_CHILD, "library": "PyDLL", "fork": "(sys.setswitchinterval(60), libc.fork())[1]"}
#: Beginnings of scripts, their children, the status of the parent, and the events.
CHILDREN: dict[str, tuple[str, dict[str, Any], int, list[str]]] = {
    # Process.terminate() of multiprocessing: the child has the default action, even inside C code.
    "ends": (BEGIN, PLAIN_CHILD, -signal.SIGTERM, ["checkpoint"]),
    "ends, forked by C": (BEGIN, FORK_IN_C, -signal.SIGTERM, ["checkpoint"]),
    # The application's handler runs in the child, and in the parent after the delivery.
    "has the previous handler": (
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n" + WITH_TRUE,
        {**PLAIN_CHILD, "wait": "while True: time.sleep(1)", "status": 7},
        7,
        ["checkpoint"],
    ),
    # By a second pipeline, as ranks that a launcher forks, even inside C code.
    "handles it itself": (
        BEGIN,
        {**PLAIN_CHILD, "begin": f"{CONFIGURE.strip()}; monitel.emit('child')", "wait": "libc.sleep(60)"},
        -signal.SIGTERM,
        ["checkpoint", "child"],
    ),
}


#: Nothing protects a child that C code forks without the GIL: it has the locks of threads that are not there.
_BY_C = pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="relies on the GIL")


@pytest.mark.parametrize(
    "child", [pytest.param(each, marks=_BY_C) if each.endswith("by C") else each for each in CHILDREN]
)
def test_signal_of_a_forked_child_is_its_own(receiver: Receiver, terminate: Terminate, child: str) -> None:
    """The child ends as without monitel, or after its own delivery; the parent goes on."""
    begin, words, status, names = CHILDREN[child]
    ended = terminate(begin + CHILD.format(**words) + PAUSE, receiver.url, status=status)
    assert (RECORDED[0], names) == (receiver.values("loss.count"), sorted(receiver.record_names()))
    assert len(names) == ended.stderr.count("monitel: exported")


def test_process_one_of_a_container_lives_on(receiver: Receiver, terminate: Terminate) -> None:
    """The kernel does not apply the default action there: each signal flushes, and the pipeline continues."""
    script = f"""\
pid, os.getpid = os.getpid(), lambda: 1
{CONFIGURE}{RECORD}os.getpid = lambda: pid
monitel.emit("before")
os.write(1, b"ready\\n")
sys.stdin.read()  # it ends after the signal
monitel.emit("after")
"""
    terminate(BLOCKED + script, receiver.url, status=0)
    assert (RECORDED[0], ["checkpoint", "before", "after"]) == arrived(receiver)
