"""torch's wait counters among monitel's."""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator


torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch


@pytest.fixture
def instrumentation() -> Iterator[monitel.torch.Instrumentation]:
    """Instrument without a source that polls the wait counters."""
    with monitel.torch.instrument(stuck_after=None) as running:
        yield running


def wait(key: str, times: int = 1) -> None:
    """Wait as torch's code does."""
    for _ in range(times):
        with torch.monitor._WaitCounter(key).guard():
            pass


def test_wait_counters_of_torch_are_read(instrumentation: monitel.torch.Instrumentation) -> None:
    """After uninstrument(), the final readings are kept, with no wait in flight."""
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


def test_durations_are_in_seconds(instrumentation: monitel.torch.Instrumentation) -> None:
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


def test_earlier_waits_are_included() -> None:
    """Torch counts from its import on."""
    key = "pytorch.wait_counter.test.before"
    wait(key, 2)
    with monitel.torch.instrument():
        assert 2 == monitel.wait_counters()[key].count


def test_torch_without_the_handler_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before torch 2.10, the counters cannot be read: the source is not installed."""
    monkeypatch.delattr("torch._C._distributed_c10d._get_handler")
    theirs = torch.monitor._WaitCounter
    with monitel.torch.instrument() as running:
        assert "waits" not in running.sources
        assert "torch._C._distributed_c10d._get_handler does not exist" in running.missing["waits"]
        assert theirs is torch.monitor._WaitCounter
    assert "instrument(waits=...) has no effect here" in caplog.text


def test_changed_format_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Torch's counters are left out then. The next instrument() does not install the source."""
    with monitel.torch.instrument(stuck_after=None) as running, caplog.at_level(logging.WARNING, "monitel.torch"):
        wait("pytorch.wait_counter.test.form")

        def changed(_text: object) -> Any:
            return {"pytorch.wait_counter.test.form": {"calls": 1}}

        monkeypatch.setattr(json, "loads", changed)
        for _ in range(3):
            assert "pytorch.wait_counter.test.form" not in monitel.wait_counters()
        assert "waits" in running.sources
        assert ["torch's wait counters cannot be read any more and are left out"] == caplog.messages
    with monitel.torch.instrument(stuck_after=None) as running:
        assert "returns another format" in running.missing["waits"]


def test_nothing_is_read_during_interpreter_shutdown(
    instrumentation: monitel.torch.Instrumentation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's counters may be destroyed by then."""
    wait("pytorch.wait_counter.test.end")
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    assert "pytorch.wait_counter.test.end" not in monitel.wait_counters()
