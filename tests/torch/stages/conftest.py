"""Fixtures for the stages of training loops: the cycles that a loop has, and work of known duration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.stages.known_work import Cycles, Work

    from monitel.testing import ManualClock


@pytest.fixture
def work(clock: ManualClock) -> Work:
    """Provide work that takes known times of the clock."""
    from tests.torch.stages.known_work import Work  # late: it imports torch, which may be missing

    return Work(clock)


@pytest.fixture
def cycles(clock: ManualClock) -> Callable[..., Cycles]:
    """Provide a function that runs an action instrumented, and returns the stages of each cycle in seconds."""
    from tests.torch.stages.known_work import logged_cycles

    from monitel.torch import instrument

    def run(action: Callable[[], object], **options: object) -> Cycles:
        assert clock.monotonic_ns() >= 0
        everything: Any = {"window_size": 0.001, **options}
        with monitel.testing.capture_events() as events, instrument(**everything):
            action()
        return logged_cycles(events)

    return run
