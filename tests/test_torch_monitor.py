"""torch.monitor's events among monitel's, and monitel in the place of torch.monitor."""

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

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel.torch import monitor  # noqa: E402

pytestmark = pytest.mark.torch

HOURS = timedelta(hours=100)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
OTHERS: dict[str, Any] = {
    **dict.fromkeys(("steps", "loading", "waits", "compilation", "failures", "tensors", "compiled_adds"), False),
    "stuck_after": None,
}


@pytest.fixture
def source() -> Iterator[monitor.Monitor]:
    """Listen to torch.monitor; the test ticks."""
    source = monitor.Monitor()
    source.install()
    yield source
    source.remove()


def test_events_are_heard(source: monitor.Monitor) -> None:
    """Name, timestamp and data, in the order in which they were logged."""
    with monitel.testing.capture_events() as events:
        for number in range(3):
            torch.monitor.log_event(torch.monitor.Event("epoch", MOMENT, {"n": number, "loss": 0.5, "what": "x"}))
        assert [] == events
        source.tick()
    assert [monitel.Event("epoch", MOMENT, {"n": n, "loss": 0.5, "what": "x"}) for n in range(3)] == events


def test_stats_come_as_windows(source: monitor.Monitor) -> None:
    """With their numbers, at their time; the event reads as torch's."""
    wanted = [torch.monitor.Aggregation.MEAN, torch.monitor.COUNT, torch.monitor.SUM, torch.monitor.MAX]
    stat = torch.monitor.Stat("torch.loss", [*wanted, torch.monitor.MIN], HOURS, 3)
    before = datetime.now()  # noqa: DTZ005  likewise
    with monitel.testing.capture_events() as events:
        for sample in (1.0, 5.0, 3.0):
            stat.add(sample)
        source.tick()
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


def test_windows_of_a_stat_follow_each_other(source: monitor.Monitor) -> None:
    """One begins where the one before has ended."""
    stats = [torch.monitor.Stat("same", [torch.monitor.SUM], HOURS, 1) for _ in range(2)]
    with monitel.testing.capture_events() as events:
        for stat in stats:
            stat.add(1.0)
        source.tick()
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
def test_numbers_that_were_not_asked_for(source: monitor.Monitor, wanted: list[str], expected: Any) -> None:
    """Are made from the others, or are the one that is there; the event holds torch's own."""
    aggregations = [getattr(torch.monitor.Aggregation, name) for name in wanted]
    stat = torch.monitor.Stat("some", aggregations, HOURS, 2)
    with monitel.testing.capture_events() as events:
        stat.add(1.0)
        stat.add(3.0)
        source.tick()
    (event,) = events
    window = event.window
    assert window is not None
    assert expected == (window.count, window.sum, window.min, window.max)
    assert sorted(wanted) == sorted(each.name for each in window.definition.aggregations)
    assert len(wanted) == len(event.data)


def test_an_event_of_that_name_that_is_no_stats(source: monitor.Monitor) -> None:
    """Stays an event."""
    with monitel.testing.capture_events() as events:
        for data in ({"a.mean": 1.0, "b.mean": 2.0}, {"a.median": 1.0}, {}):
            torch.monitor.log_event(torch.monitor.Event("torch.monitor.Stat", MOMENT, data))
        source.tick()
    assert [None] * 3 == [event.window for event in events]
    assert [2, 1, 0] == [len(event.data) for event in events]


def test_a_handler_that_raises_loses_nothing(source: monitor.Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event is handed out, then the first exception comes out of the tick."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _report: None)  # where the others go
    heard = []

    def fail(event: monitel.Event) -> None:
        heard.append(event.data["n"])
        raise OSError(event.data["n"])

    with monitel.register_event_handler(fail):
        for number in range(3):
            torch.monitor.log_event(torch.monitor.Event("many", MOMENT, {"n": number}))
        with pytest.raises(OSError, match="0"):
            source.tick()
    assert [0, 1, 2] == heard


def test_instrument_hears_them_within_seconds() -> None:
    """By the bridge's thread, and what is left when it ends."""
    heard = threading.Event()
    handle = monitel.register_event_handler(lambda event: heard.set() if event.name == "live" else None)
    with handle, monitel.torch.instrument(**OTHERS) as running:
        assert ("monitor",) == running.sources
        torch.monitor.log_event(torch.monitor.Event("live", MOMENT, {}))
        assert heard.wait(30)
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(**OTHERS):
            torch.monitor.log_event(torch.monitor.Event("last", MOMENT, {}))
        torch.monitor.log_event(torch.monitor.Event("later", MOMENT, {}))
    assert ["last"] == [event.name for event in events]


def test_too_many_are_lost_and_that_is_said(
    source: monitor.Monitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory is bounded."""
    monkeypatch.setattr(monitor, "_MOST", 3)
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        for _ in range(2):
            for _ in range(3):
                torch.monitor.log_event(torch.monitor.Event("many", MOMENT, {}))
            source.tick()
    assert ["torch.monitor has logged more than 3 events in a second: some were lost"] == caplog.messages
    assert monitor._queue.maxlen == 100_000


SCRIPT = """\
import os, sys, threading, time
from datetime import datetime
import monitel.torch
from torch import monitor

def said(event):
    os.write(1, f"{event.name} {os.getpid() == main}\\n".encode())

main = os.getpid()
monitel.register_event_handler(said)
monitel.torch.instrument()
monitor.log_event(monitor.Event("before", datetime.now(), {}))
"""


def run(script: str, tmp_path: Path) -> str:
    """Run it in a process of its own; it ends well."""
    path = tmp_path / "script.py"
    path.write_text(script)
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert (0, "") == (ended.returncode, ended.stderr)
    return ended.stdout


def test_exit(tmp_path: Path) -> None:
    """A handler that stays registered crashes torch's process at its end; ours does not stay, and loses nothing."""
    assert "before True\n" == run(SCRIPT, tmp_path)


def test_fork(tmp_path: Path) -> None:
    """What the parent has taken, the parent logs; a child logs its own when it ends."""
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


def test_two_threads_do_not_hang(tmp_path: Path) -> None:
    """With a handler in Python they do, when one lets the GIL go within it."""
    hammer = """
sys.setswitchinterval(1e-6)
def log():
    for _ in range(20000):
        monitor.log_event(event)
event = monitor.Event("many", datetime.now(), {})
monitel.handlers._handlers = ()
threads = [threading.Thread(target=log) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    run(SCRIPT + hammer, tmp_path)


def test_replace_gives_monitel() -> None:
    """All names of the module, until restore(); twice is once."""
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
    """It says the same on monitel, but for whose events they are; torch.compile still works."""
    theirs = run(UNCHANGED, tmp_path)
    compiled = "import torch\nassert torch.compile(torch.sin, backend='eager')(torch.zeros(1)) == 0\n"
    ours = run(f"import monitel.torch\nmonitel.torch.replace()\n{UNCHANGED}{compiled}", tmp_path)
    assert sorted(theirs.replace("torch._C._monitor", "monitel.event").splitlines()) == sorted(ours.splitlines())
    assert "epoch" in ours
