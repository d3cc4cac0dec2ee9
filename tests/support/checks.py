"""Waiting for a condition, limits of time, warnings in the log, and variables of the environment."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import TypeVar

import pytest
from tests.support.inbox import DEADLINE

import monitel
from monitel_otlp.config.settings import grpc_is_installed

NEEDS_GRPC = pytest.mark.skipif(not grpc_is_installed(), reason="the extra monitel-otlp[grpc] is not installed")
#: The values of a parameter of tests.
PROTOCOLS = ["http/protobuf", pytest.param("grpc", marks=NEEDS_GRPC)]

EXIT = 2.2  # seconds: two for the exit of a pipeline, the rest for the end of the interpreter

#: Tests that run side by side wait for each other; ``.ci/nightly`` runs those with the marker ``timed`` alone.
_SLACK = 1.0 if os.environ.get("MONITEL_STRICT_LIMITS") == "1" else 5.0


Found = TypeVar("Found")


def limit(seconds: float) -> float:
    """Return a limit of time, which is five times as long without MONITEL_STRICT_LIMITS: other programs run, too."""
    return seconds * _SLACK


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Fail the test if the block takes the limit of so many seconds or more."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < limit(seconds), f"took {took:.3f} s, expected less than {limit(seconds):g} s"


def wait_for(look: Callable[[], Found], expected: Callable[[Found], object], what: str = "the condition") -> Found:
    """Look until what is found is as expected, and return it; fail the test after ``DEADLINE`` seconds."""
    deadline, pause = time.monotonic() + DEADLINE, Event()
    while not expected(found := look()):
        assert time.monotonic() < deadline, f"{what} does not hold within {DEADLINE:g} s, but:\n{found}"
        pause.wait(0.01)
    return found


def wait_until(holds: Callable[[], object], condition: str = "the condition") -> None:
    """Call ``holds`` until it returns something true; fail the test after ``DEADLINE`` seconds."""
    wait_for(holds, bool, condition)


def warnings_with(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    messages = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [message for message in messages if all(word in message for word in words)]


def ledger() -> monitel.Ledger:
    """Return the ledger of this process, which adds up to the nanosecond."""
    book = monitel.ledger()
    assert book is not None
    assert book.elapsed_ns == sum(book.activities.values())
    return book


Warned = Callable[..., list[str]]  # type of the fixture ``warned``


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Warned:
    """Return a function that returns the warnings with all of its words."""
    return partial(warnings_with, caplog)


SetEnv = Callable[..., None]  # type of the fixture ``setenv``


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch) -> SetEnv:
    """Return a function that sets variables of the environment, from a mapping or by keyword."""

    def setenv(variables: Mapping[str, object] | None = None, /, **others: object) -> None:
        for name, value in {**(variables or {}), **others}.items():
            monkeypatch.setenv(name, str(value))

    return setenv
