"""The end of the readings behind the screen: one thread closes them, once."""

from __future__ import annotations

import sys
import threading

import pytest

pytest.importorskip("textual")

from monitel_otlp.spool.folder import SpoolError
from monitel_otlp.terminal.app import run_app
from monitel_otlp.terminal.background import Background
from monitel_otlp.top.rank import Look

PATIENCE_S = 60.0


class Readings:
    """Notes the threads that close it."""

    def __init__(self) -> None:
        self.closed_by: list[threading.Thread] = []
        self.read = threading.Event()

    def look(self) -> Look:
        """Return no jobs."""
        self.read.set()
        return Look(0, ())

    def close(self) -> None:
        """Note the thread."""
        self.closed_by.append(threading.current_thread())


def test_thread_that_reads_closes_the_readings() -> None:
    """If it was never started, the caller does. Another call does nothing."""
    for started in (True, False):
        readings = Readings()
        background = Background(readings.look, lambda _: None, lambda _: None, PATIENCE_S, close=readings.close)
        if started:
            background.start()
            assert readings.read.wait(PATIENCE_S)
        for _ in range(2):
            background.close(PATIENCE_S)
        assert ["monitel-top" if started else threading.current_thread().name] == [
            each.name for each in readings.closed_by
        ]


def test_readings_are_closed_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen is not shown."""
    monkeypatch.setattr(sys, "__stdin__", None)
    readings = Readings()
    with pytest.raises(SpoolError, match="needs a terminal"):
        run_app(readings)
    assert [threading.current_thread()] == readings.closed_by
