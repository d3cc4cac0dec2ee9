"""Callbacks and locks that hang stop nothing else, and an exit needs no new thread."""

import socket
from pathlib import Path

import pytest
from tests.processes.conftest import Terminate
from tests.processes.patience import SHORT, with_patience
from tests.support.hostile import url_of
from tests.support.inbox import DEADLINE
from tests.support.receiver import Receiver
from tests.support.scripts import Run
from tests.support.spools import cat, last_line

REFUSED = """\
import atexit, threading
from monitel.profiler import record_function
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, spans=True)
def hang(_options):
    threading.Event().wait()
pipeline.meter_provider.get_meter("mine").create_observable_gauge("faulty", [hang])
def refuse(_thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
def refuse_threads():  # as CPython does from 3.12 on
    threading.Thread.start = refuse
atexit.register(refuse_threads)
loss = Stat("loss", [COUNT], 1e9)
loss.add(1)
for number in range(1000):
    monitel.emit("event", number=number)
with record_function("span 0"):
    pass
print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("backend", ["healthy", "hangs"])
def test_exit_needs_no_new_thread(receiver: Receiver, blackhole: socket.socket, train: Run, backend: str) -> None:
    """If CPython refuses to start threads, the first request is sent, and everything is delivered or on disk."""
    ended = train(with_patience(REFUSED, SHORT), receiver.url if backend == "healthy" else url_of(blackhole))
    assert ended.exit_s < DEADLINE
    line = last_line(ended.stderr)
    assert (None, None if backend == "healthy" else 1002) == (line.dropped, line.spooled)
    if backend == "healthy":
        assert {*range(1000)} == {*receiver.numbers()}
        assert ([1], 1) == (receiver.values("loss.count"), len(receiver.spans()))


def test_sigterm_beside_a_held_logging_lock_loses_nothing(terminate: Terminate, tmp_path: Path) -> None:
    """If the interrupted code holds the lock that an event handler waits for, windows and totals are still kept."""
    terminate(HELD_LOCK, "")
    content = cat(tmp_path / "spool")
    assert (1, 7) == (content.values("loss.count")[-1], content.values("mine")[-1])


HELD_LOCK = """
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
pipeline = monitel_otlp.configure(spool_dir="spool", sigterm=True, export_interval=3600.0)
monitel.counter("mine").add(7)
monitel.register_event_handler(lambda event: logging.getLogger("mine").info("an event"))
loss = Stat("loss", [COUNT], 1e9)
loss.add(1)
with logging.getLogger().handlers[0].lock:
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
"""
