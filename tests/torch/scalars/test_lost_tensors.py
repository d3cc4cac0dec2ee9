"""Tensors whose values are lost: counted, logged once per reason, and never waited for forever."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import pytest

import monitel

torch: Any = pytest.importorskip("torch", reason="has tensors on a device: torch is not installed")

from tests.torch.scalars.device_scalars import ALL, Scalars, windows  # noqa: E402
from tests.torch.scalars.later_device import later, on_later  # noqa: E402

from monitel.torch.scalars import fetcher, staging_ring  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch
ROOM = staging_ring.PAGES * staging_ring.SLOTS


def test_pages_are_reused_while_the_device_keeps_up(device: Scalars, events: list[monitel.Event]) -> None:
    """More samples than the ring holds are all recorded, though nobody polls, and no more memory is allocated."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(0.0))
    (ring,) = device.fetcher._rings.values()
    assert ring is not None
    device.answer()
    pages = {id(page) for page in (*ring._free, *ring._used)}
    for number in range(1, 3 * ROOM):
        stat.add(on_later(float(number)))
    stat.flush()
    (window,) = windows(events)
    assert (3 * ROOM, 3 * ROOM * (3 * ROOM - 1) / 2, 0) == (window.count, window.sum, device.lost)
    assert pages == {id(page) for page in (*ring._free, *ring._used)}
    assert staging_ring.PAGES == len(pages)


def test_device_too_far_behind_loses_samples(
    device: Scalars, events: list[monitel.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Memory is limited: samples beyond it are counted as lost, and logged once."""
    stat = monitel.Stat("loss", ALL, math.inf)
    for _ in range(ROOM + 10):
        stat.add(on_later(1.0))
    assert (ROOM + 10, 10) == (stat.count, device.lost)
    device.deliver()
    stat.flush()
    assert [ROOM] == [window.count for window in windows(events)]
    assert [
        "tensor values are lost: the device is too far behind (counted in training.tensors.lost)"
    ] == caplog.messages


def test_failed_device_loses_its_numbers(
    device: Scalars, events: list[monitel.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged instead of raised, and the numbers on the device are counted as lost."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    later.failure = RuntimeError("device-side assert triggered")
    device.advance()
    stat.add(on_later(2.0))
    stat.add(3.0)
    stat.flush()
    assert [(1, 3.0)] == [(window.count, window.sum) for window in windows(events)]
    assert 2 == device.lost
    assert [True] == ["the device failed: device-side assert triggered" in message for message in caplog.messages]


def test_silent_device_loses_its_numbers_after_minutes(
    monkeypatch: pytest.MonkeyPatch, device: Scalars, events: list[monitel.Event]
) -> None:
    """Windows are then logged with the known samples, so that they do not pile up."""
    with monitel.testing.ManualClock() as clock:
        stat = monitel.Stat("loss", ALL, 60.0)
        stat.add(3.0)
        stat.add(on_later(1.0))
        clock.advance(61)
        monitel.close_expired_windows()
        device.advance()
        assert [] == events
        monkeypatch.setattr(staging_ring, "_TIMEOUT_S", 0.0)
        device.advance()
    assert ([(1, 3.0)], 1) == ([(each.count, each.sum) for each in windows(events)], device.lost)


def test_pages_that_the_device_may_use_are_never_freed(device: Scalars) -> None:
    """Freeing memory after a CUDA failure, or in a forked child, would abort the process."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    (ring,) = device.fetcher._rings.values()
    assert ring is not None
    (page,) = ring._used
    later.failure = RuntimeError("device-side assert triggered")
    device.advance()
    assert page in staging_ring._abandoned_pages
    device.hooks.reset()
    assert ring in fetcher._parent_rings[-1]
    assert [] == device.fetcher.rings()


def test_host_memory_is_pinned_if_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies to pinned memory need not wait; without an accelerator other memory is used."""
    empty = Mock(side_effect=[RuntimeError("no accelerator"), "plain"])
    monkeypatch.setattr(torch, "empty", empty)
    assert "plain" == staging_ring._pinned((1, 2), torch.float64)
    assert [True, False] == [call.kwargs.get("pin_memory", False) for call in empty.call_args_list]
