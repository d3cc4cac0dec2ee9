"""The choice of the system's clock: the monotonic clock of Windows ticks 64 times a second before CPython 3.13."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from monitel.clock import choose_system_clock

if TYPE_CHECKING:
    from tests.nightly.platforms.conftest import RunOn

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


_MEASURE = """
import json, time
import monitel
from monitel import Stat, MIN
from monitel.profiler import ranges, record_function

def a_millisecond():
    begin = time.perf_counter_ns()
    while time.perf_counter_ns() < begin + 1_000_000:
        pass

events, ended, activities = [], [], []
monitel.register_event_handler(events.append)
timed = Stat("timed", [MIN], 3600.0)
with ranges.listen(ended=ended.append):
    for number in range(40):
        with record_function("timed"), timed.time():
            a_millisecond()
        before = monitel.ledger().activities.get("checkpoint.save", 0)
        with monitel.activity("checkpoint.save"):
            a_millisecond()
        activities.append(monitel.ledger().activities.get("checkpoint.save", 0) - before)
ticks = []
monitel.register_event_handler(lambda event: ticks.append(time.monotonic_ns()))
windows = Stat("windows", [MIN], 0.002)
deadline = time.perf_counter() + 20
while len(ticks) == len(set(ticks)) and time.perf_counter() < deadline:
    windows.add(1.0)
two_in_a_tick = len(ticks) > len(set(ticks))
monitel.flush()
print(json.dumps([
    min(event.data["timed.min"] for event in events if "timed.min" in event.data) >= 0.001,
    min(each.monotonic_end_ns - each.monotonic_start_ns for each in ended) >= 1_000_000,
    min(activities) >= 1_000_000,
    two_in_a_tick,
    time.monotonic_ns() % 15_625_000,
]))
"""


def test_durations_and_windows_have_a_fine_clock(run_on: RunOn) -> None:
    """With a monotonic clock that ticks 64 times a second a millisecond is never zero, and windows can be shorter."""
    assert [True, True, True, True, 0] == json.loads(
        run_on("windows", "-c", _MEASURE, env={"MONITEL_NO_EXTENSIONS": "1"}).stdout
    )
