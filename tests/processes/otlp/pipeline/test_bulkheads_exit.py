"""Exit where no thread can be started, and beside a held lock: in time, and without losses."""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.hostile import refusing_url, url_of
from tests.support.inbox import DEADLINE
from tests.support.receiver import Receiver
from tests.support.scripts import Run, Terminate
from tests.support.spools import last_line
from tests.unit.promises.spool_content import cat


@contextmanager
def backend(kind: str) -> Iterator[tuple[str, Receiver | None]]:
    """Yield the URL of a backend, and the backend itself if it is healthy."""
    if kind == "healthy":
        with Receiver() as receiver:
            yield receiver.url, receiver
    elif kind == "refuses":
        yield refusing_url(), None
    else:
        with socket.create_server(("127.0.0.1", 0)) as hanging:
            yield url_of(hanging), None


def numbers(receiver: Receiver, kind: str) -> Counter[int]:
    if kind in {"events", "records"}:
        return Counter(record.attributes["number"] for record in receiver.records())
    return Counter(int(span.name.split()[1]) for span in receiver.spans())


REFUSED = """\
import atexit, threading
from opentelemetry.metrics import Observation
from monitel.profiler import record_function
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, spans=True)
if sys.argv[2] == "hangs":
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


@pytest.mark.parametrize(("answers", "callback"), [("healthy", "hangs"), ("refuses", "none"), ("hangs", "hangs")])
def test_exit_needs_no_new_thread(train: Run, answers: str, callback: str) -> None:
    """If CPython refuses to start threads, the first request is sent, and everything is delivered or on disk."""
    with backend(answers) as (url, received):
        ended = train(REFUSED, url, callback)
    assert ended.at - float(ended.stdout) < DEADLINE
    line = last_line(ended.stderr)
    assert None is line.dropped
    if received is None:
        assert 1002 == line.spooled
    else:
        assert set(range(1000)) == set(numbers(received, "events"))
        assert [1] == received.values("loss.count")
        assert 1 == len(received.spans())


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
