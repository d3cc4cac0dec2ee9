"""For every test of the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from monitel import _window, wait_counter

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes says how busy the machine is.
settings.register_profile("monitel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("monitel")


@pytest.fixture(autouse=True)
def no_wait_counters() -> Iterator[None]:
    """Forget the keys that a test was the first to use: exporters report all that the process knows."""
    before = set(wait_counter._waits)
    yield
    for key in wait_counter._waits.keys() - before:
        del wait_counter._waits[key]
    wait_counter._ended.clear()


@pytest.fixture(autouse=True)
def no_step() -> Iterator[None]:
    """Begin and end each test without a training step; there is no public way to forget one."""
    _window.set_step(None)
    yield
    _window.set_step(None)
