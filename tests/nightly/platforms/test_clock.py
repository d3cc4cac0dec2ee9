"""The choice of the system's clock: the monotonic clock of Windows ticks 64 times a second before CPython 3.13."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from monitel.clock import choose_system_clock

_NS, _TICK = 1e-9, 0.015625


def _infos(monotonic: float, counter: float, *, steady: bool = True) -> Any:
    infos = {
        "monotonic": SimpleNamespace(resolution=monotonic, monotonic=True),
        "perf_counter": SimpleNamespace(resolution=counter, monotonic=steady),
    }
    return infos.__getitem__


@pytest.mark.parametrize(
    ("infos", "fine"),
    [
        pytest.param(_infos(_NS, _NS), False, id="Linux, and Windows from 3.13 on"),
        pytest.param(_infos(4.2e-8, 4.2e-8), False, id="macOS"),
        pytest.param(_infos(_TICK, 1e-7), True, id="Windows before 3.13"),
        pytest.param(_infos(_TICK, _TICK), False, id="no clock is fine"),
        pytest.param(_infos(_TICK, 1e-7, steady=False), False, id="the fine clock can go back"),
    ],
)
def test_coarse_monotonic_clock_is_replaced(infos: Any, *, fine: bool) -> None:
    """The performance counter is used if the monotonic clock ticks too coarsely, and the counter is fine and steady."""
    chosen = choose_system_clock(infos)
    assert (time.perf_counter_ns if fine else time.monotonic_ns) == chosen.monotonic_ns
    assert time.time_ns == chosen.time_ns
