"""Fixtures for tensors on a device: the hooks that record them, and the events of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.torch.scalars.device_scalars import Scalars


@pytest.fixture
def device() -> Iterator[Scalars]:
    """Install the hooks that record tensors."""
    from tests.torch.scalars.device_scalars import scalars  # late: it imports torch, which may be missing

    with scalars() as device:
        yield device


@pytest.fixture
def events() -> Iterator[list[monitel.Event]]:
    """Collect the events of the test."""
    with monitel.testing.capture_events() as events:
        yield events
