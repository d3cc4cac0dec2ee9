"""FIFOs, callbacks and locks that hang stop nothing else, and an exit needs no new thread."""

import socket
from pathlib import Path

import pytest
from tests.processes.conftest import Terminate
from tests.processes.patience import SHORT, with_patience
from tests.support.checks import PROTOCOLS
from tests.support.hostile import url_of
from tests.support.inbox import DEADLINE
from tests.support.receiver import Receiver
from tests.support.scripts import Run
from tests.support.spools import cat, last_line

FIFOS = """\
for name in (".git", "ca.pem"):
    os.mkfifo(name)
begin = time.monotonic()
pipeline = monitel_otlp.configure(spool_dir="spool", run_events=True)
monitel.emit("event")
monitel.counter("c").add(1)
pipeline.force_flush(0.5)
print(time.monotonic() - begin)
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fifo_in_the_place_of_a_file_stops_nothing(receiver: Receiver, train: Run, protocol: str) -> None:
    """To open one waits for a writer: ``.git`` counts as missing, and certificates are reported."""
    env = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "ca.pem",
        "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"https://127.0.0.1:{receiver.port}/v1/logs",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.url}/v1/metrics",
    }
    ended = train(with_patience(FIFOS, SHORT), env=env, timeout=60)
    assert float(ended.stdout) < DEADLINE
    assert {1} == {*receiver.values("c")}
    assert "check OTEL_EXPORTER_OTLP_CERTIFICATE: ca.pem: not a regular file" in ended.stderr
    assert 3 == last_line(ended.stderr).spooled


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
