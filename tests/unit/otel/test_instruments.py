"""Instruments of windows, counters, waits and numbers: while a reader collects, and when sources come and go."""

from threading import Thread
from typing import Any

import pytest
from tests.unit.otel.providers import Backend

import monitel
from monitel import Stat
from monitel.stats.definition import TORCHS
from monitel.testing import ManualClock

DEADLINE = 60.0


def in_thread(function: Any) -> None:
    """Call a function in a thread, which must end in time."""
    thread = Thread(target=function, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "deadlock"


@pytest.mark.usefixtures("installed")
def test_first_window_of_a_stat_closes_in_a_collection(backend: Backend, clock: ManualClock) -> None:
    """Creating the instruments inside the callback does not deadlock, even for many Stats."""
    for number in range(50):
        Stat(f"loss.{number}", TORCHS, 60.0).add(1)  # destructed with an open window
        monitel.stat(f"registered.loss.{number}").add(1)
    clock.advance(60)
    in_thread(backend.collect)
    values = backend.values()
    assert {1} == {values[f"loss.{number}.count"] for number in range(50)}
    assert {1} == {values[f"registered.loss.{number}.count"] for number in range(50)}
