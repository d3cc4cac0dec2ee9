"""The command ``monitel``, the temporality of sums, and the time zone of texts, for tests in all folders."""

import time

import pytest
from tests.support.inbox import CUMULATIVE, TEMPORALITY
from tests.unit.promises.program import Program


@pytest.fixture
def program(caplog: pytest.LogCaptureFixture) -> Program:
    return Program(caplog)


@pytest.fixture(params=["cumulative", "delta"])
def temporality(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the temporality of sums that only rise, by the standard variable."""
    monkeypatch.setenv(TEMPORALITY, request.param)
    return CUMULATIVE if request.param == "cumulative" else 1


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local time is UTC, and the width of the screen is that of the stream."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("COLUMNS", raising=False)
    time.tzset()
