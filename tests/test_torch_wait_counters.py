"""torch's own wait counters among monitel's, and a word about waits that do not end."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel.torch import _compat, stuck  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def instrumentation() -> Iterator[monitel.torch.Instrumentation]:
    """Instrument, without the second's tick."""
    with monitel.torch.instrument(stuck_after=None) as running:
        yield running


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Give a clock that moves only by advance()."""
    with monitel.testing.ManualClock() as clock:
        yield clock


def wait(key: str, times: int = 1) -> None:
    """Wait as torch's own code does."""
    for _ in range(times):
        with torch.monitor._WaitCounter(key).guard():
            pass


def test_torchs_wait_counters_are_read(instrumentation: monitel.torch.Instrumentation) -> None:
    """Counted by torch, read as our own, until uninstrument(); then they stay, with nothing in flight."""
    key = "pytorch.wait_counter.test.read"
    wait(key, 3)
    with torch.monitor._WaitCounter(key).guard():
        reading = monitel.wait_counters()[key]
        assert (3, 1) == (reading.count, reading.active)
    assert (4, 0) == (monitel.wait_counters()[key].count, monitel.wait_counters()[key].active)
    assert 0 <= reading.max <= reading.total < 1
    with torch.monitor._WaitCounter(key).guard():
        instrumentation.uninstrument()
    wait(key)
    assert (4, 0) == (monitel.wait_counters()[key].count, monitel.wait_counters()[key].active)
    with monitel.torch.instrument(stuck_after=None):
        assert 6 == monitel.wait_counters()[key].count


def test_seconds_are_seconds(instrumentation: monitel.torch.Instrumentation) -> None:
    """Torch counts microseconds: a wait on a store that takes 50 ms is 0.05."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)
    key = "pytorch.wait_counter.TCPStore__wait"
    before = monitel.wait_counters().get(key, monitel.WaitReading(0, 0.0, 0.0, 0))
    with pytest.raises(torch.distributed.DistStoreError):
        store.wait(["never"], timedelta(milliseconds=50))
    after = monitel.wait_counters()[key]
    assert 1 == after.count - before.count
    assert 0.04 < after.total - before.total < 10
    assert after.max >= 0.04


def test_what_was_counted_before_is_seen() -> None:
    """Torch counts from its import on."""
    key = "pytorch.wait_counter.test.before"
    wait(key, 2)
    with monitel.torch.instrument():
        assert 2 == monitel.wait_counters()[key].count


def test_without_the_handler_the_class_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions: Python's waits are counted from then on, for torch too; afterwards the class is back."""
    key, theirs = "pytorch.wait_counter.test.replaced", torch.monitor._WaitCounter
    bound = torch.distributed.c10d_logger
    totals = _compat.wait_totals()
    monkeypatch.delattr("torch._C._distributed_c10d._get_handler")
    wait(key, 5)
    with monitel.torch.instrument() as running:
        assert {} == running.missing
        assert torch.monitor._WaitCounter is bound._WaitCounter is not theirs
        wait(key, 2)
        guard = bound._WaitCounter(key).guard()
        guard.__enter__()
        assert 1 == monitel.wait_counters()[key].active
        guard.__exit__()
        assert (3, 0) == (monitel.wait_counters()[key].count, monitel.wait_counters()[key].active)
    assert torch.monitor._WaitCounter is bound._WaitCounter is theirs
    wait(key)
    assert (3, 9) == (monitel.wait_counters()[key].count, totals()[key].count)


def test_an_answer_of_another_form_is_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and there are no such counters then."""
    with monitel.torch.instrument(stuck_after=None) as running, caplog.at_level(logging.WARNING, "monitel.torch"):
        wait("pytorch.wait_counter.test.form")

        def changed(_text: object) -> Any:
            return {"pytorch.wait_counter.test.form": {"calls": 1}}

        monkeypatch.setattr(json, "loads", changed)
        for _ in range(3):
            assert "pytorch.wait_counter.test.form" not in monitel.wait_counters()
        assert "waits" in running.sources
    assert 1 == len(caplog.records)
    with monitel.torch.instrument(stuck_after=None):  # where it is so from the beginning, the class is replaced
        wait("pytorch.wait_counter.test.form")
        assert 1 == monitel.wait_counters()["pytorch.wait_counter.test.form"].count


def test_nothing_is_read_while_the_interpreter_ends(
    instrumentation: monitel.torch.Instrumentation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own counters may be gone by then."""
    wait("pytorch.wait_counter.test.end")
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    assert "pytorch.wait_counter.test.end" not in monitel.wait_counters()


def test_a_wait_that_does_not_end_is_said_once(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A WARN event with key, rank, step and how long; the next wait of the key is another one."""
    monkeypatch.setenv("RANK", "3")
    monitel.set_step(12)
    watch, counter = stuck.Stuck(300.0), monitel.WaitCounter("barrier")
    with monitel.testing.capture_events() as events:
        for _ in range(2):
            with counter.guard():
                for _ in range(10):
                    watch.tick()
                    clock.advance(60)
            watch.tick()
    assert ["wait.stuck"] * 2 == [event.name for event in events]
    assert monitel.Severity.WARN == events[0].severity
    assert {
        "message": "stuck in barrier for 300 s",
        "wait.key": "barrier",
        "wait.duration": 300.0,
        "training.rank": 3,
        "training.step": 12,
    } == events[0].data
    monitel._window.set_step(None)


def test_waits_that_end_are_not_said(clock: ManualClock) -> None:
    """However many there are, and though one is in flight at each look."""
    watch, counter = stuck.Stuck(300.0), monitel.WaitCounter("queue")
    with monitel.testing.capture_events() as events:
        for _ in range(20):
            with counter.guard():
                watch.tick()
                clock.advance(60)
    assert [] == events


@pytest.mark.parametrize("state", ["running", "quiesced"])
def test_a_state_is_no_wait(clock: ManualClock, state: str) -> None:
    """The pool of the compiler's workers counts for how long it exists, and for how long it is idle."""
    watch = stuck.Stuck(300.0)
    with (
        monitel.testing.capture_events() as events,
        monitel.WaitCounter(f"pytorch.wait_counter.subproc_pool.{state}").guard(),
        monitel.WaitCounter("pytorch.wait_counter.subproc_pool.job").guard(),
    ):
        for _ in range(3):
            watch.tick()
            clock.advance(300)
    assert ["pytorch.wait_counter.subproc_pool.job"] == [event.data["wait.key"] for event in events]


@pytest.mark.parametrize("after", [0, -1.0, float("nan")])
def test_refused_thresholds(after: float) -> None:
    """Seconds, or None."""
    with pytest.raises(ValueError, match="stuck_after must be seconds, more than 0, or None for never"):
        monitel.torch.instrument(stuck_after=after)


def test_a_hang_is_said_while_it_lasts(tmp_path: Any) -> None:
    """In a process of its own, with its own clock: rank 1 never comes, and the thread of the bridge says so."""
    script = tmp_path / "hang.py"
    script.write_text(
        """\
import os, sys
import monitel.torch
import torch.distributed as dist

def said(event):
    if event.name == "wait.stuck" and event.data["wait.key"].endswith("init_process_group"):
        print(event.severity.name, event.data["message"].rsplit(" for ")[0], event.data["training.rank"], flush=True)
        os._exit(0)

monitel.register_event_handler(said)
monitel.torch.instrument(stuck_after=1.5)
dist.init_process_group("gloo")
"""
    )
    environment = {
        **os.environ,
        "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    }
    ended = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ("WARN stuck in pytorch.wait_counter.c10d.init_process_group 0\n", 0) == (ended.stdout, ended.returncode)
