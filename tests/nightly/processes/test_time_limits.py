"""The two seconds of an exit and of SIGTERM, by the clock; ``tests/processes`` checks the content on any machine."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support import hostile
from tests.support.checks import EXIT, limit
from tests.support.hostile import Peer
from tests.support.inbox import Answer
from tests.support.receiver import Receiver
from tests.support.scripts import CONFIGURE, PRINT_TIME, READY, TRAIN, Ended, Run, Terminate
from tests.support.spools import last_line, spooled

pytestmark = pytest.mark.timed

#: Ten closed windows, an open one, and an event.
ALL = ([*range(1, 12)], ["checkpoint"])
#: A failed attempt, or a pause that the backend has requested, would take an hour.
PATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
BLOCKED = 'import ctypes\nctypes.CDLL(None).system(b"echo ready; exec sleep 60 >/dev/null 2>&1")\n'


@pytest.fixture
def url(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[str]:
    """The URL of a backend that refuses, never answers, answers too slowly, or requests a pause."""
    kind = request.param
    with ExitStack() as stack:
        if kind == "refuses":
            yield "http://127.0.0.1:9"
        elif kind in {"never reads", "drips"}:
            behave = hostile.never_reads if kind == "never reads" else hostile.drips_headers
            yield stack.enter_context(Peer(behave)).url
        elif kind == "accepts no connection":
            full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            yield hostile.url_of(full)
        else:
            receiver.rule(lambda _request: Answer(503, {"Retry-After": "3600"}))
            yield receiver.url


def check_exit(ended: Ended) -> None:
    assert ended.at - float(ended.stdout.splitlines()[-1]) < limit(EXIT)


@pytest.mark.parametrize(
    "url", ["refuses", "never reads", "drips", "accepts no connection", "requests a pause"], indirect=True
)
def test_exit_beside_a_dead_backend(train: Run, tmp_path: Path, url: str) -> None:
    """Everything is on disk within two seconds."""
    check_exit(train(TRAIN + PRINT_TIME, url, env=PATIENT))
    assert ALL == spooled(tmp_path / "spool")


QUEUES = {
    "events": "monitel.emit('event', number=number)",
    "windows": "stat = stats[number % 100]; stat.add(number); stat.flush()",
    "ranges": "with record_function(f'range {number}'): pass",
}
FILL = """\
from threading import Thread
from monitel.profiler import record_function
stats = [Stat(f"stat{number}", [COUNT], 3600.0) for number in range(100)]
for number in range(100_000):
    PRODUCE
def work():
    while True:
        sum(range(1000))
Thread(target=work, daemon=True).start()
"""


@pytest.mark.parametrize("kind", QUEUES)
def test_exit_with_full_queues_loses_nothing(train: Run, kind: str) -> None:
    """Each of 100,000 items is on disk within two seconds, beside a thread that never waits."""
    configure = CONFIGURE.replace(")", ", spans={'budget': 200_000})", 1)
    ended = train(configure + FILL.replace("PRODUCE", QUEUES[kind]) + PRINT_TIME, "http://127.0.0.1:9", timeout=120)
    check_exit(ended)
    line = last_line(ended.stderr)
    assert (True, None) == ((line.spooled or 0) >= 100_000, line.dropped)


@pytest.mark.parametrize("where", [READY + "sys.stdin.read()\n", BLOCKED])
@pytest.mark.parametrize("url", ["refuses", "never reads", "drips"], indirect=True)
def test_sigterm_beside_a_dead_backend(terminate: Terminate, tmp_path: Path, url: str, where: str) -> None:
    """Everything is on disk within two seconds, in Python and in C."""
    terminate(TRAIN + where, url)
    assert ALL == spooled(tmp_path / "spool")


HANGING = """\
import threading
entered = threading.Event()
def hang(*_):
    entered.set()
    threading.Event().wait()
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
"""
HANGS = {
    "callback": "pipeline.meter_provider.get_meter('mine').create_observable_gauge('hangs', [hang])\nentered.wait()\n",
    "event handler": "Stat('open', [COUNT], 60.0).add(1)\nmonitel.register_event_handler(hang)\n",
    "disk": "os.open = os.pwrite = hang\n",
}
SHUTDOWN = "print(time.monotonic())\npipeline.shutdown()\nprint(time.monotonic())\nsys.stdout.flush()\nos._exit(0)\n"


@pytest.mark.parametrize("what", HANGS)
def test_shutdown_beside_something_that_hangs(train: Run, receiver: Receiver, what: str) -> None:
    """The backend has everything else within two seconds."""
    emit = "for number in range(100): monitel.emit('event')\n"
    script = HANGING + (HANGS[what] + emit if what != "event handler" else emit + HANGS[what]) + SHUTDOWN
    ended = train(script, receiver.url, env={"MONITEL_BLACK_BOX": "0"})
    begin, end = map(float, ended.stdout.split())
    assert end - begin < limit(EXIT)
    assert 100 == len(receiver.records("event"))


def test_fork_beside_a_callback_that_hangs(train: Run, receiver: Receiver) -> None:
    fork = "begin = time.monotonic()\nif os.fork() == 0: os._exit(0)\nprint(time.monotonic() - begin)\nos._exit(0)\n"
    ended = train(
        HANGING + HANGS["callback"] + fork.replace("os._exit(0)\n", "sys.stdout.flush(); os._exit(0)\n"), receiver.url
    )
    assert float(ended.stdout.split()[-1]) < limit(0.5)
