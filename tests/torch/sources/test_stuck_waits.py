"""Waits that exceed a time limit, as events."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import monitel

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.testing import ManualClock

pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch
from monitel.torch.sources.waits.stuck_waits import StuckWaits

pytestmark = pytest.mark.torch


def test_stuck_wait_is_reported_once(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WARN event has key, rank, step, duration and stacks. The next wait of the key is reported again."""
    monkeypatch.setenv("RANK", "3")
    monitel.set_step(12)
    watch, counter = StuckWaits(300.0), monitel.WaitCounter("barrier")
    with monitel.testing.capture_events() as events:
        for _ in range(2):
            with counter.guard():
                for _ in range(10):
                    watch.poll()
                    clock.advance(60)
            watch.poll()
    assert ["wait.stuck"] * 2 == [event.name for event in events]
    assert monitel.Severity.WARN == events[0].severity
    stacks = str(events[0].data.pop("code.stacktrace"))
    assert " in test_stuck_wait_is_reported_once\n" in stacks
    assert len(stacks) <= 32 << 10
    assert {
        "message": "stuck in barrier for 300 s",
        "wait.key": "barrier",
        "wait.duration": 300.0,
        "training.rank": 3,
        "training.step": 12,
    } == events[0].data


def test_waits_that_end_are_not_reported(clock: ManualClock) -> None:
    """This holds even if a wait is in flight at each poll."""
    watch, counter = StuckWaits(300.0), monitel.WaitCounter("queue")
    with monitel.testing.capture_events() as events:
        for _ in range(20):
            with counter.guard():
                watch.poll()
                clock.advance(60)
    assert [] == events


@pytest.mark.parametrize("state", ["running", "quiesced"])
def test_states_of_the_worker_pool_are_not_waits(clock: ManualClock, state: str) -> None:
    """The compiler's worker pool counts how long it exists, and how long it is idle."""
    watch = StuckWaits(300.0)
    with (
        monitel.testing.capture_events() as events,
        monitel.WaitCounter(f"pytorch.wait_counter.subproc_pool.{state}").guard(),
        monitel.WaitCounter("pytorch.wait_counter.subproc_pool.job").guard(),
    ):
        for _ in range(3):
            watch.poll()
            clock.advance(300)
    assert ["pytorch.wait_counter.subproc_pool.job"] == [event.data["wait.key"] for event in events]


def test_hanging_process_reports_its_wait(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1, which never starts. The polling thread reports it while the main thread hangs."""
    script = tmp_path / "hang.py"
    script.write_text(
        """\
import os, sys
import monitel.torch
import torch.distributed as dist

def report(event):
    if event.name == "wait.stuck" and event.data["wait.key"].endswith("init_process_group"):
        print(event.severity.name, event.data["message"].rsplit(" for ")[0], event.data["training.rank"])
        main = event.data["code.stacktrace"].partition("\\n\\n")[0].splitlines()  # it waits in init_process_group
        print(main[0].partition("[")[2], main[-1].rpartition(", ")[2], "init_process_group" in str(main), flush=True)
        os._exit(0)

monitel.register_event_handler(report)
monitel.torch.instrument(stuck_after=1.5)
dist.init_process_group("gloo")
"""
    )
    environment = {
        **os.environ,
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    ended = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert 0 == ended.returncode
    assert [
        "WARN stuck in pytorch.wait_counter.c10d.init_process_group 0",
        "MainThread] (most recent call first): line 14 in <module> True",
    ] == ended.stdout.splitlines()
