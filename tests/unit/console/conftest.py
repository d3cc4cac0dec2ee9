"""The surroundings of texts with times."""

import time

import pytest


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local time is UTC, and the width of the screen is that of the stream."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("COLUMNS", raising=False)
    time.tzset()
