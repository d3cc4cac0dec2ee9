"""Fixtures for all tests of the repository: every test starts with a fresh state."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import monitel
from monitel import run_events

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import ModuleType

# Tests, and the scripts that they run, compare all events.
os.environ.setdefault("MONITEL_RUN_EVENTS", "0")
# The time of an example depends on the load of the machine.
settings.register_profile("monitel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In `make test` every run has the same examples, so that a failure is caused by the change.
settings.register_profile("test", settings.get_profile("monitel"), derandomize=True, database=None)
settings.register_profile("fuzz", settings.get_profile("monitel"), print_blob=True)
settings.load_profile("test")

_FUZZ_FACTOR = 5
_test_numbers = count()


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


@contextmanager
def _left_as_found(package: ModuleType) -> Iterator[None]:
    """Remove new handlers, named Stats, counters and wait counters, and the step, at the end."""
    state = package._window, package.handlers, package.registry._stats, package.wait_counter
    window, handlers, stats, wait_counter = state
    counters = package.counter.__globals__
    counted = [counters[name] for name in ("_counters", "_first_of_name")]
    found = {*handlers._handlers}, {*stats}, {*wait_counter._waits}
    found_counters = [{*each} for each in counted]
    window.set_step(None)  # there is no public way to forget the step
    package.activities._open()
    package.training_time._forget()
    yield
    for handle in {*handlers._handlers} - found[0]:
        package.unregister_event_handler(handle)
    for identity in {*stats} - found[1]:
        del stats[identity]
    for key in {*wait_counter._waits} - found[2]:
        del wait_counter._waits[key]
    wait_counter._ended.clear()
    for each, before in zip(counted, found_counters, strict=True):
        for name in {*each} - before:
            del each[name]
    counters["_items"], counters["_names"] = (tuple(each.items()) for each in counted)
    package.registry._items = tuple(stats.items())
    wait_counter._items = tuple(wait_counter._waits.items())
    window.set_step(None)


@pytest.fixture(scope="session")
def packages() -> Callable[[], list[ModuleType]]:
    """Return the copies of the package in this process; the core's tests use two."""
    return lambda: [monitel]


@pytest.fixture(autouse=True)
def fresh_state(packages: Callable[[], list[ModuleType]]) -> Iterator[None]:
    """Start each test without the handlers, Stats, counters, wait counters, step and run of other tests."""
    with ExitStack() as stack:
        stack.callback(run_events._forget)
        for package in packages():
            stack.enter_context(_left_as_found(package))
        yield
    if (names := sys.modules.get("monitel_otel.names")) is not None:
        names.NAMES.forget()
    if (start_points := sys.modules.get("monitel_otlp.metrics.start_points")) is not None:
        start_points._latest.clear()  # clocks of tests run ahead


@pytest.fixture(scope="session")
def boxes_of_session() -> Iterator[Path]:
    """Make a folder in memory, if there is one, that is removed at the end."""
    memory = Path("/dev/shm")  # noqa: S108  the folder has a new name
    usable = os.access(memory, os.W_OK | os.X_OK)
    with TemporaryDirectory(
        prefix="monitel-tests-", dir=memory if usable else None, ignore_cleanup_errors=True
    ) as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def own_boxes(boxes_of_session: Path) -> Iterator[Path]:
    """Let the test, and the programs that it starts, have their black boxes in a new folder, which is removed."""
    folder, variable = boxes_of_session / f"{next(_test_numbers)}", "MONITEL_BLACK_BOX_DIR"
    previous = os.environ.get(variable)
    os.environ[variable] = str(folder)
    yield folder
    if previous is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = previous
    rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def usual_logging() -> Iterator[None]:
    """Remove what an example has configured: its handler prints to a stream that is closed after the test."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def valid_output(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check everything that the exporters' receivers have accepted in the test by the rules of OTLP's data model.

    A test that breaks rules on purpose has the marker ``invalid_output`` with the reason and the names of the rules.
    """
    failures = request.session.testsfailed
    yield
    inbox = sys.modules.get("exporters.otlp.tests.inbox")
    undisturbed = inbox is None or inbox.all_accepted()
    accepted = inbox.take_accepted() if inbox is not None else []
    broken = [name for mark in request.node.iter_markers("invalid_output") for name in mark.args[1:]]
    if accepted and request.session.testsfailed == failures:
        import_module("exporters.otlp.tests.validity.requests").assert_valid(
            accepted, undisturbed=undisturbed, broken=broken
        )
