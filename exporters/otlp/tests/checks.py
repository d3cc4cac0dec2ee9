"""Waiting for a condition, limits of time, and warnings in the log."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from .inbox import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


@contextmanager
def in_time(limit: float) -> Iterator[None]:
    """Fail the test if the block takes ``limit`` seconds or more."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < limit, f"took {took:.3f} s, expected less than {limit:g} s"


def wait_until(holds: Callable[[], object], condition: str = "the condition") -> None:
    """Call ``holds`` until it returns something true; fail the test after ``DEADLINE`` seconds."""
    deadline, pause = time.monotonic() + DEADLINE, Event()
    while not holds():
        assert time.monotonic() < deadline, f"{condition} does not hold within {DEADLINE:g} s"
        pause.wait(0.01)


def warnings_with(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """Return the messages of the warnings and errors that contain all these words."""
    messages = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [message for message in messages if all(word in message for word in words)]
