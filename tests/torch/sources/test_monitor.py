"""Forwarding of torch.monitor's events, and monitel's names in torch.monitor."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch
from monitel.torch.sources import torch_monitor  # noqa: E402

pytestmark = pytest.mark.torch

HOURS = timedelta(hours=100)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
OTHERS: dict[str, Any] = {
    **dict.fromkeys(
        ("stages", "steps", "loading", "waits", "compilation", "failures", "tensors", "compiled_adds"), False
    ),
    **dict.fromkeys(("checkpoints", "process_groups"), False),
    "stuck_after": None,
}


@pytest.fixture
def source() -> Iterator[torch_monitor.TorchMonitor]:
    """Install the source; the test polls it."""
    source = torch_monitor.TorchMonitor()
    source.install()
    yield source
    source.remove()


def test_events_are_forwarded_in_order(source: torch_monitor.TorchMonitor) -> None:
    """Name, timestamp and data are those of torch's event."""
    with monitel.testing.capture_events() as events:
        for number in range(3):
            torch.monitor.log_event(torch.monitor.Event("epoch", MOMENT, {"n": number, "loss": 0.5, "what": "x"}))
        assert [] == events
        source.poll()
    assert [monitel.Event("epoch", MOMENT, {"n": n, "loss": 0.5, "what": "x"}) for n in range(3)] == events


def test_stat_events_become_windows(source: torch_monitor.TorchMonitor) -> None:
    """A window has the numbers and the time of torch's event, and the event has torch's data."""
    wanted = [torch.monitor.Aggregation.MEAN, torch.monitor.COUNT, torch.monitor.SUM, torch.monitor.MAX]
    stat = torch.monitor.Stat("torch.loss", [*wanted, torch.monitor.MIN], HOURS, 3)
    before = datetime.now()  # noqa: DTZ005  naive, as torch's
    with monitel.testing.capture_events() as events:
        for sample in (1.0, 5.0, 3.0):
            stat.add(sample)
        source.poll()
    (event,) = events
    window = event.window
    assert window is not None
    assert ("torch.loss", 3, 9.0, 1.0, 5.0) == (window.name, window.count, window.sum, window.min, window.max)
    assert {"MEAN", "COUNT", "SUM", "MAX", "MIN"} == {each.name for each in window.definition.aggregations}
    assert window.start_ns < window.end_ns
    assert abs(window.end_ns / 1e9 - before.timestamp()) < 60
    assert {"mean": 3.0, "count": 3.0, "sum": 9.0, "max": 5.0, "min": 1.0} == {
        key.removeprefix("torch.loss."): value for key, value in event.data.items()
    }
    assert "torch.monitor.Stat" == event.name
    assert window.end_ns / 1e9 == pytest.approx(event.timestamp.timestamp(), abs=2e-6)


def test_window_starts_where_the_previous_one_ended(source: torch_monitor.TorchMonitor) -> None:
    """The windows of a Stat are contiguous."""
    stats = [torch.monitor.Stat("same", [torch.monitor.SUM], HOURS, 1) for _ in range(2)]
    with monitel.testing.capture_events() as events:
        for stat in stats:
            stat.add(1.0)
        source.poll()
    first, second = (event.window for event in events)
    assert first is not None
    assert second is not None
    assert first.start_ns < first.end_ns <= second.end_ns
    assert first.end_ns == second.start_ns or second.start_ns == second.end_ns - 1


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["MEAN"], (1, 2.0, 2.0, 2.0)),
        (["MEAN", "COUNT"], (2, 4.0, 2.0, 2.0)),
        (["SUM"], (1, 4.0, 4.0, 4.0)),
        (["SUM", "COUNT"], (2, 4.0, 2.0, 2.0)),
        (["MAX"], (1, 3.0, 3.0, 3.0)),
        (["MIN", "COUNT"], (2, 2.0, 1.0, 1.0)),
        (["COUNT"], (2, 0.0, 0.0, 0.0)),
    ],
)
def test_missing_aggregations_are_filled_in(
    source: torch_monitor.TorchMonitor, wanted: list[str], expected: Any
) -> None:
    """A missing number is computed from the others, or set to one of them. The event has only torch's numbers."""
    aggregations = [getattr(torch.monitor.Aggregation, name) for name in wanted]
    stat = torch.monitor.Stat("some", aggregations, HOURS, 2)
    with monitel.testing.capture_events() as events:
        stat.add(1.0)
        stat.add(3.0)
        source.poll()
    (event,) = events
    window = event.window
    assert window is not None
    assert expected == (window.count, window.sum, window.min, window.max)
    assert sorted(wanted) == sorted(each.name for each in window.definition.aggregations)
    assert len(wanted) == len(event.data)


def test_other_events_with_the_name_of_stat_events_stay_events(source: torch_monitor.TorchMonitor) -> None:
    """Their data is not that of a Stat."""
    with monitel.testing.capture_events() as events:
        for data in ({"a.mean": 1.0, "b.mean": 2.0}, {"a.median": 1.0}, {}):
            torch.monitor.log_event(torch.monitor.Event("torch.monitor.Stat", MOMENT, data))
        source.poll()
    assert [None] * 3 == [event.window for event in events]
    assert [2, 1, 0] == [len(event.data) for event in events]


@pytest.mark.usefixtures("unraisable")
def test_handler_that_raises_loses_no_event(source: torch_monitor.TorchMonitor) -> None:
    """Every event is logged, then poll() raises the first exception."""
    received = []

    def fail(event: monitel.Event) -> None:
        received.append(event.data["n"])
        raise OSError(event.data["n"])

    with monitel.register_event_handler(fail):
        for number in range(3):
            torch.monitor.log_event(torch.monitor.Event("many", MOMENT, {"n": number}))
        with pytest.raises(OSError, match="0"):
            source.poll()
    assert [0, 1, 2] == received


def test_two_threads_forward_each_event_once(source: torch_monitor.TorchMonitor) -> None:
    """While the handlers of one poll are slow, another poll forwards the rest; nothing is lost or logged twice."""
    slow, release, numbers = threading.Event(), threading.Event(), []

    def handle(event: Any) -> None:
        numbers.append(event.data["number"])
        if event.data["number"] == 0:
            slow.set()
            release.wait(20)

    with monitel.register_event_handler(handle):
        for number in range(50):
            torch.monitor.log_event(torch.monitor.Event("event", MOMENT, {"number": number}))
        polling = threading.Thread(target=source.poll)
        polling.start()
        assert slow.wait(20)
        source.poll()
        assert set(range(50)) == set(numbers)
        release.set()
        polling.join(20)
    assert 50 == len(numbers)


def test_instrument_forwards_events_within_seconds() -> None:
    """The polling thread forwards them, and uninstrument() forwards the remaining ones."""
    received = threading.Event()
    handle = monitel.register_event_handler(lambda event: received.set() if event.name == "live" else None)
    with handle, monitel.torch.instrument(**OTHERS) as running:
        assert ("monitor",) == running.sources
        torch.monitor.log_event(torch.monitor.Event("live", MOMENT, {}))
        assert received.wait(30)
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(**OTHERS):
            torch.monitor.log_event(torch.monitor.Event("last", MOMENT, {}))
        torch.monitor.log_event(torch.monitor.Event("later", MOMENT, {}))
    assert ["last"] == [event.name for event in events]


def test_queue_overflow_is_logged_once(
    source: torch_monitor.TorchMonitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue is limited: the oldest events are lost."""
    monkeypatch.setattr(torch_monitor, "_MAX_QUEUED", 3)
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        for _ in range(2):
            for _ in range(3):
                torch.monitor.log_event(torch.monitor.Event("many", MOMENT, {}))
            source.poll()
    assert ["torch.monitor logged more than 3 events in a second: the oldest were lost"] == caplog.messages
    assert torch_monitor._queue.maxlen == 100_000


SCRIPT = """\
import os, sys, threading, time
from datetime import datetime
import monitel.torch
from torch import monitor

def report(event):
    os.write(1, f"{event.name} {os.getpid() == main}\\n".encode())

main = os.getpid()
handle = monitel.register_event_handler(report)
monitel.torch.instrument()
monitor.log_event(monitor.Event("before", datetime.now(), {}))
"""


def run(script: str, tmp_path: Path) -> str:
    """Run a script in a process, which succeeds without a warning, and return its output."""
    path = tmp_path / "script.py"
    path.write_text(script)
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert (0, "") == (ended.returncode, ended.stderr)
    return ended.stdout


def test_handler_is_unregistered_at_exit(tmp_path: Path) -> None:
    """A handler that stays registered crashes torch at exit. Queued events are logged first."""
    assert "before True\n" == run(SCRIPT, tmp_path)


def test_forked_child_logs_only_its_events(tmp_path: Path) -> None:
    """The parent logs the events queued before the fork."""
    assert ["after False", "before True"] == sorted(
        run(
            SCRIPT
            + """
child = os.fork()
if not child:
    monitor.log_event(monitor.Event("after", datetime.now(), {}))
    sys.exit()
os.waitpid(child, 0)
""",
            tmp_path,
        ).splitlines()
    )


def test_concurrent_events_do_not_hang(tmp_path: Path) -> None:
    """With a handler in Python they would, if it released the GIL."""
    hammer = """
sys.setswitchinterval(1e-6)
def log():
    for _ in range(20000):
        monitor.log_event(event)
event = monitor.Event("many", datetime.now(), {})
monitel.unregister_event_handler(handle)
threads = [threading.Thread(target=log) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    run(SCRIPT + hammer, tmp_path)


def test_replace_puts_monitel_into_torch_monitor() -> None:
    """All names are replaced until restore(). Replacing is idempotent."""
    theirs = dict(vars(torch.monitor))
    ours = {*("Stat", "Event", "Aggregation", "MEAN", "log_event", "register_event_handler", "STAT_EVENT")}
    with monitel.torch.replace(), monitel.torch.replace():
        for name in ours | {"_WaitCounter", "TensorboardEventHandler"}:
            assert getattr(torch.monitor, name) is getattr(monitel, name)
    assert theirs == vars(torch.monitor)


UNCHANGED = """\
from datetime import datetime, timedelta
from torch.monitor import (
    Aggregation, Event, Stat, TensorboardEventHandler, _WaitCounter, log_event, register_event_handler,
    unregister_event_handler,
)

class Writer:
    def add_scalar(self, key, value, walltime):
        print(key, value)

handles = [
    register_event_handler(TensorboardEventHandler(Writer())),
    register_event_handler(lambda event: print(type(event).__module__, event.name)),
]
stat = Stat("loss", (Aggregation.SUM, Aggregation.MEAN), timedelta(seconds=3600), 2)
stat.add(1.0)
stat.add(3)
with _WaitCounter("waiting").guard():
    log_event(Event(name="epoch", timestamp=datetime.now(), data={"n": 1}))
print(sorted(value for value in stat.get().values()))
for handle in handles:
    unregister_event_handler(handle)
"""


def test_code_for_torch_monitor_runs_unchanged(tmp_path: Path) -> None:
    """Its output on monitel differs only in the module of the events, and torch.compile still works."""
    theirs = run(UNCHANGED, tmp_path)
    compiled = "import torch\nassert torch.compile(torch.sin, backend='eager')(torch.zeros(1)) == 0\n"
    ours = run(f"import monitel.torch\nmonitel.torch.replace()\n{UNCHANGED}{compiled}", tmp_path)
    assert sorted(theirs.replace("torch._C._monitor", "monitel.event").splitlines()) == sorted(ours.splitlines())
    assert "epoch" in ours
