"""Whatever hangs is alone: a backend, a name server or an event handler leaves everything else delivering."""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import COUNT, Stat

from . import hostile
from .inbox import DEADLINE
from .spools import folders, last_line
from .test_faults import told

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp import Pipeline

    from .conftest import Run, Start
    from .receiver import Receiver

SIGNALS = ("metrics", "logs", "traces")
INTERVAL = 0.1
LATE = 0.8  # seconds, on a machine that other tests share
EXIT = 2.7  # seconds, likewise
ROUNDS = 8


def record_one_of_each(pipeline: Pipeline, number: int) -> None:
    """Record a window, an event and a span."""
    stat = Stat(f"stat{number}", [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    monitel.emit(f"event {number}")
    pipeline.tracer_provider.get_tracer("mine").start_span(f"span {number}").end()


def arrived(receiver: Receiver, signal: str, number: int) -> bool:
    """Return True if the item of a signal with this number has arrived."""
    if signal == "metrics":
        return bool(receiver.values(f"stat{number}.count"))
    if signal == "logs":
        return bool(receiver.records(f"event {number}"))
    return any(span.name == f"span {number}" for span in receiver.spans())


BEHAVIOURS = [
    hostile.drips_status_line,
    hostile.drips_headers,
    hostile.drips_body,
    hostile.drips_events,
    hostile.continues_forever,
    hostile.sends_body_forever,
    hostile.never_answers,
    hostile.never_reads,
]


@pytest.mark.parametrize("sick", SIGNALS)
@pytest.mark.parametrize("behave", [*BEHAVIOURS, "TLS"], ids=lambda each: getattr(each, "__name__", each))
def test_backend_that_hangs_stops_its_signal_alone(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, sick: str, behave: Any
) -> None:
    """The other signals arrive in every interval, the exit is in time, and every item is somewhere."""
    with hostile.Peer(hostile.never_reads if behave == "TLS" else behave) as peer:
        url = peer.url.replace("http:", "https:") if behave == "TLS" else peer.url
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{sick.upper()}_ENDPOINT", f"{url}/v1/{sick}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        pipeline = start(endpoint=None, export_interval=INTERVAL)
        others = [signal for signal in SIGNALS if signal != sick]
        for number in range(ROUNDS):
            begin = time.monotonic()
            record_one_of_each(pipeline, number)
            for signal in others:
                receiver.wait_until(lambda signal=signal, number=number: arrived(receiver, signal, number))  # type: ignore[misc]
            assert time.monotonic() - begin < LATE
        assert peer.connections
        begin = time.monotonic()
        complete = pipeline.shutdown()
        assert time.monotonic() - begin < EXIT
        assert peer.connections < 10
    accounts = pipeline.account()
    for signal in others:
        assert ROUNDS == accounts[signal].delivered
    # An answer whose status is 200 counts, even if its body does not end.
    assert ROUNDS == accounts[sick].delivered + accounts[sick].on_disk
    assert complete == (accounts[sick].on_disk == 0)
    assert (behave in {hostile.drips_body, hostile.drips_events, hostile.sends_body_forever}) or accounts[sick].on_disk


@pytest.mark.parametrize("fault", ["hangs", "raises", "exits"])
def test_event_handler_of_the_application_stops_nothing_else(
    *, receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """It is called where the pipeline closes windows whose time is over; everything else is delivered."""
    release, called = Event(), Event()

    def handle(event: monitel.Event) -> None:
        if event.window is None or event.window.definition.name != "idle" or current_thread() is main_thread():
            return
        called.set()
        if fault == "raises":
            raise OSError("no space left")
        if fault == "exits":
            raise SystemExit(3)
        release.wait(DEADLINE)

    pipeline = start(export_interval=INTERVAL)
    with monitel.register_event_handler(handle):
        idle = Stat("idle", [COUNT], 0.05)
        idle.add(1)
        assert called.wait(DEADLINE)
        for number in range(ROUNDS):
            record_one_of_each(pipeline, number)
            for signal in SIGNALS:
                receiver.wait_until(lambda signal=signal, number=number: arrived(receiver, signal, number))  # type: ignore[misc]
        receiver.wait_until(lambda: told(caplog, "event handler"))
        begin = time.monotonic()
        assert pipeline.shutdown()
        assert time.monotonic() - begin < EXIT
    release.set()
    assert 1 == len(told(caplog, "event handler"))
    assert [1] == receiver.values("idle.count")


HANDLER = """\
from threading import Event
def handle(event):
    Event().wait()
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=float(sys.argv[2]))
for number in range(1000):
    monitel.emit("event")
monitel.register_event_handler(handle)
open_window = Stat("open", [COUNT], 60.0)
open_window.add(1)
print(time.monotonic())
pipeline.shutdown()
print(time.monotonic())
os._exit(0)  # the interpreter itself flushes again, and calls the handler
"""


@pytest.mark.parametrize("interval", [0.05, 3600.0])
def test_shutdown_is_in_time_beside_an_event_handler_that_hangs(
    receiver: Receiver, train: Run, interval: float
) -> None:
    """The handler is called when the shutdown flushes the Stats: what was recorded is delivered all the same."""
    ended = train(HANDLER, receiver.url, interval, timeout=15)
    begin, end = map(float, ended.stdout.split())
    assert end - begin < EXIT
    assert 1000 == len(receiver.records("event"))
    assert [1] == receiver.values("open.count")


# A name server that does not answer. The address of the healthy backend needs no name server.
NAMES = """\
import socket
from threading import Event
def hang(*arguments, **options):
    Event().wait()
resolve = socket.getaddrinfo
def getaddrinfo(host, *arguments, **options):
    return hang() if "sick" in str(host) else resolve(host, *arguments, **options)
socket.getaddrinfo = getaddrinfo
socket.getfqdn = socket.gethostbyname = socket.gethostbyaddr = hang
"""
UNNAMED = """\
begin = time.monotonic()
pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=0.05)
assert time.monotonic() - begin < 1.0, time.monotonic() - begin
loss = Stat("loss", [COUNT], 60.0)
tracer = pipeline.tracer_provider.get_tracer("mine")
for number in range(20):
    loss.add(1)
    loss.flush()
    monitel.emit(f"event {number}")
    tracer.start_span(f"span {number}").end()
    time.sleep(0.1 if "slow" in sys.argv else 0)
if "fork" in sys.argv and os.fork() == 0:
    monitel.emit("child")
    sys.exit()
begin = time.monotonic()
assert not pipeline.force_flush(0.2)
assert time.monotonic() - begin < 1.0
print(time.monotonic())
"""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_nothing_waits_for_a_name_server(train: Run, tmp_path: Path, protocol: str) -> None:
    """configure() returns at once, the exit is in time, and all is on disk."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://sick.example:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    ended = train(NAMES + UNNAMED, env=env)
    assert ended.at - float(ended.stdout) < EXIT
    assert 60 == last_line(ended.stderr).spooled
    assert None is last_line(ended.stderr).dropped
    assert 1 == len(folders(tmp_path))


@pytest.mark.parametrize("sick", SIGNALS)
def test_name_server_that_hangs_stops_one_signal_alone(receiver: Receiver, train: Run, sick: str) -> None:
    """The other signals, at an address that needs no name server, arrive while the job runs."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        f"OTEL_EXPORTER_OTLP_{sick.upper()}_ENDPOINT": f"http://sick.example/v1/{sick}",
    }
    ended = train(NAMES + UNNAMED, "slow", env=env)
    end = float(ended.stdout)
    assert ended.at - end < EXIT
    for signal in SIGNALS:
        arrivals = [request.arrived for request in receiver.of(signal)]
        if signal == sick:
            assert [] == arrivals
        else:
            during = [at for at in arrivals if at < end]
            assert len(during) > 5
            assert max(later - earlier for earlier, later in pairwise(during)) < LATE
    assert 20 == last_line(ended.stderr).spooled
    assert None is last_line(ended.stderr).dropped


def test_child_forked_beside_a_lookup_that_hangs_ends_in_time(train: Run, tmp_path: Path) -> None:
    """It has a lookup that hangs as well, and leaves its event on disk."""
    ended = train(NAMES + UNNAMED, "fork", env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://sick.example:4318"})
    assert ended.at - float(ended.stdout) < 2 * EXIT
    assert 2 == len(folders(tmp_path))
