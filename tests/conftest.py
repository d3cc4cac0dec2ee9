"""Shared by all tests: hypothesis' profiles, Ctrl-C, reports, and the fixtures of ``tests/support``."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [f"tests.support.{name}" for name in ("checks", "scripts", "twins", "state", "backends")]

# Tests, and the scripts that they run, compare all events.
os.environ.setdefault("MONITEL_RUN_EVENTS", "0")
# The time of an example depends on the load of the machine.
settings.register_profile("monitel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In `make test` every run has the same examples, so that a failure is caused by the change.
settings.register_profile("test", settings.get_profile("monitel"), derandomize=True, database=None)
settings.register_profile("fuzz", settings.get_profile("monitel"), print_blob=True)
settings.load_profile("test")

_FUZZ_FACTOR = 5


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs that tests start, even if a shell has started pytest in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # programs inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--hypothesis-profile fuzz``, run five times as many examples of each test, at random."""
    if config.getoption("--hypothesis-profile") != "fuzz":
        return
    tests: dict[int, Any] = {id(each.obj): each.obj for each in items if isinstance(each, pytest.Function)}
    for test in tests.values():
        if getattr(test, "is_hypothesis_test", False):
            own = test._hypothesis_internal_use_settings
            more = settings(own, max_examples=_FUZZ_FACTOR * own.max_examples, derandomize=False)
            test._hypothesis_internal_use_settings = more


def pytest_collection_finish() -> None:
    """Let collections of garbage leave out what was imported: else each takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape surrogates in what a test has logged: its report is sent to the main process as UTF-8."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_encodable, value))
    return value
