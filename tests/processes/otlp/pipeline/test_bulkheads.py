"""A backend, name server or event handler that hangs does not stop the delivery of anything else."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import hostile
from tests.support.checks import EXIT, PROTOCOLS, in_time, limit, warnings_with
from tests.support.inbox import DEADLINE
from tests.support.producers import has_arrived, record_one_of_each
from tests.support.spools import folders, last_line

import monitel
from monitel import COUNT, Stat
from monitel_otlp.messages.request import SIGNALS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = pytest.mark.timed


INTERVAL = 0.1
LATE = 0.8  # seconds, with a margin for other tests on the same machine
ROUNDS = 8


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


@pytest.mark.parametrize("faulty", SIGNALS)
@pytest.mark.parametrize("behave", [*BEHAVIOURS, "TLS"], ids=lambda each: getattr(each, "__name__", each))
def test_backend_that_hangs_stops_only_its_signal(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, faulty: str, behave: Any
) -> None:
    """The other signals arrive in every interval, the exit is in time, and every item is delivered or on disk."""
    with hostile.Peer(hostile.never_reads if behave == "TLS" else behave) as peer:
        url = peer.url.replace("http:", "https:") if behave == "TLS" else peer.url
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{faulty.upper()}_ENDPOINT", f"{url}/v1/{faulty}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        pipeline = start(endpoint=None, export_interval=INTERVAL)
        others = [signal for signal in SIGNALS if signal != faulty]
        for number in range(ROUNDS):
            with in_time(LATE):
                record_one_of_each(pipeline, number)
                receiver.wait_until(partial(has_arrived, receiver, number, others))
        assert peer.connections
        with in_time(EXIT):
            complete = pipeline.shutdown()
        assert peer.connections < 10
    accounts = pipeline.account()
    for signal in others:
        assert ROUNDS == accounts[signal].delivered
    # An answer with status 200 counts as delivered, even if its body does not end.
    assert ROUNDS == accounts[faulty].delivered + accounts[faulty].on_disk
    assert complete == (accounts[faulty].on_disk == 0)
    assert (behave in {hostile.drips_body, hostile.drips_events, hostile.sends_body_forever}) or accounts[
        faulty
    ].on_disk


@pytest.mark.parametrize("fault", ["hangs", "raises", "exits"])
def test_faulty_event_handler_stops_nothing_else(
    *, receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """A handler that hangs, raises or exits when the pipeline closes a window does not stop the delivery."""
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
            receiver.wait_until(partial(has_arrived, receiver, number))
        receiver.wait_until(lambda: warnings_with(caplog, "event handler"))
        with in_time(EXIT):
            assert pipeline.shutdown()
    release.set()
    assert 1 == len(warnings_with(caplog, "event handler"))
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
    """The handler hangs when the shutdown flushes the Stats; recorded items are still delivered."""
    ended = train(HANDLER, receiver.url, interval, timeout=15)
    begin, end = map(float, ended.stdout.split())
    assert end - begin < limit(EXIT)
    assert 1000 == len(receiver.records("event"))
    assert [1] == receiver.values("open.count")


# A name server that does not answer. The healthy backend has an IP address.
NAMES = """\
import socket
from threading import Event
def hang(*arguments, **options):
    Event().wait()
resolve = socket.getaddrinfo
def getaddrinfo(host, *arguments, **options):
    return hang() if "faulty" in str(host) else resolve(host, *arguments, **options)
socket.getaddrinfo = getaddrinfo
socket.getfqdn = socket.gethostbyname = socket.gethostbyaddr = hang
"""
UNNAMED = """\
begin = time.monotonic()
pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=0.05)
assert time.monotonic() - begin < 5.0, time.monotonic() - begin  # name resolution never ends here
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
assert time.monotonic() - begin < 5.0  # name resolution never ends here
print(time.monotonic())
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_waits_for_a_name_server(train: Run, tmp_path: Path, protocol: str) -> None:
    """``configure()`` returns at once, the exit is in time, and everything is on disk."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://faulty.example:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    ended = train(NAMES + UNNAMED, env=env)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert 60 == last_line(ended.stderr).spooled
    assert None is last_line(ended.stderr).dropped
    assert 1 == len(folders(tmp_path))


@pytest.mark.parametrize("faulty", SIGNALS)
def test_name_server_that_hangs_stops_only_one_signal(receiver: Receiver, train: Run, faulty: str) -> None:
    """The other signals, whose endpoint has an IP address, arrive during the run."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        f"OTEL_EXPORTER_OTLP_{faulty.upper()}_ENDPOINT": f"http://faulty.example/v1/{faulty}",
    }
    ended = train(NAMES + UNNAMED, "slow", env=env)
    end = float(ended.stdout)
    assert ended.at - end < limit(EXIT)
    for signal in SIGNALS:
        arrivals = [request.arrived for request in receiver.of(signal)]
        if signal == faulty:
            assert [] == arrivals
        else:
            during = [at for at in arrivals if at < end]
            assert len(during) > 5
            assert max(later - earlier for earlier, later in pairwise(during)) < limit(LATE)
    assert 20 == last_line(ended.stderr).spooled
    assert None is last_line(ended.stderr).dropped


def test_child_forked_beside_a_lookup_that_hangs_ends_in_time(train: Run, tmp_path: Path) -> None:
    """The child's look-up hangs as well, and its event is on disk."""
    ended = train(NAMES + UNNAMED, "fork", env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://faulty.example:4318"})
    assert ended.at - float(ended.stdout) < limit(2 * EXIT)
    assert 2 == len(folders(tmp_path))
