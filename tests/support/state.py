"""State of the process: each test starts with a fresh one, and fails if it leaves something that others would meet."""

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry.util._once import Once

from monitel.process import failures
from monitel.process.fork import chained
from monitel.stats import before_flush

from . import twins

_PATIENCE = 60.0  # seconds, for a thread that is about to end
_SIGNALS = (signal.SIGINT, signal.SIGTERM, *filter(None, (getattr(signal, "SIGALRM", None),)))
#: Variables of launchers, which are part of the identity of a job.
_LAUNCHERS = (
    *("TORCHELASTIC_", "SLURM_", "OMPI_COMM_WORLD_", "RAY_JOB_ID", "KUBEFLOW_", "JOB_", "SGE_", "PMI_", "MASTER_"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MPI_LOCALRANKID"),
)
#: Variables of monitel that are about tests, or set for all of them; the others are settings of somebody's job.
_KEPT = {
    *("MONITEL_RUN_EVENTS", "MONITEL_NO_EXTENSIONS", "MONITEL_REQUIRE_EXTENSIONS", "MONITEL_STRICT_LIMITS"),
    *("MONITEL_BACKENDS", "MONITEL_PROMTOOL", "MONITEL_TRACE_STORE", "MONITEL_SOAK_SECONDS", "MONITEL_SOAK_KILLS"),
}
#: Where OpenTelemetry has the providers of a process.
_PROVIDERS: dict[Any, str] = {
    metrics._internal: "_METER_PROVIDER",
    _logs._internal: "_LOGGER_PROVIDER",
    trace: "_TRACER_PROVIDER",
}
_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
_numbers = count()
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remember that a test has failed: its traceback keeps what its frames have held."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture(scope="session")
def boxes_of_session() -> Iterator[Path]:
    memory = Path("/dev/shm")
    usable = os.access(memory, os.W_OK | os.X_OK)
    with TemporaryDirectory(
        prefix="monitel-tests-", dir=memory if usable else None, ignore_cleanup_errors=True
    ) as path:
        yield Path(path)


@pytest.fixture
def own_boxes() -> Path:
    return Path(os.environ["MONITEL_BLACK_BOX_DIR"])


@pytest.fixture(autouse=True)
def fresh_state(request: pytest.FixtureRequest, boxes_of_session: Path, tmp_path: Path) -> Iterator[None]:
    """Start with a fresh state, in an empty folder and a plain environment; name what the test leaves."""
    environment, folder = _environment(), Path.cwd()
    for name in environment:
        if (
            name.startswith(("OTEL_", *_LAUNCHERS))
            or name.lower().endswith("_proxy")
            or (name.startswith("MONITEL_") and name not in _KEPT)
        ):
            del os.environ[name]
    boxes = boxes_of_session / f"{next(_numbers)}"
    os.environ["MONITEL_BLACK_BOX_DIR"] = str(boxes)
    os.environ |= {"XDG_STATE_HOME": str(tmp_path / "state"), "PWD": str(tmp_path)}
    # Without code OpenTelemetry starts it where it is installed: it reads the connections of all processes.
    os.environ["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "system_metrics"
    os.chdir(tmp_path)
    for package in twins.packages():
        _begin_again(package)
    for module, name in _PROVIDERS.items():  # the first pipeline of a process sets them
        setattr(module, name, None)
        setattr(module, f"{name}_SET_ONCE", Once())
    metrics._internal._PROXY_METER_PROVIDER = metrics._internal._ProxyMeterProvider()  # it keeps what was set
    failures._warned.clear()
    found = _State()
    yield
    left = [] if request.node.stash.get(_failed, False) else found.left()
    found.restore()
    os.chdir(folder)
    for name in {*_environment()} - {*environment}:
        del os.environ[name]
    os.environ.update(environment)
    if boxes.exists():
        rmtree(boxes, ignore_errors=True)
    assert not left, f"the test leaves {', '.join(left)}"


class _State:
    def __init__(self) -> None:
        self._environment = _environment()
        self._named = [*map(_Named, twins.packages())]
        self._handlers = [(package, {*package.handlers._handlers}) for package in twins.packages()]
        self._functions = [*before_flush._functions]
        self._stats = [(package, package.stats._window.live()) for package in twins.packages()]
        self._threads = {*threading.enumerate()}
        self._logging = _logging()
        self._signals = [*map(signal.getsignal, _SIGNALS)]

    def left(self) -> list[str]:
        for named in self._named:
            named.forget_new()
        found = {
            "a changed environment": _environment() != self._environment,
            "a changed root logger": _logging() != self._logging,
            "a changed handler of signals": [*map(signal.getsignal, _SIGNALS)] != self._signals,
            "a before_flush function": len(before_flush._functions) > len(self._functions),
        }
        return [*self._named_left(), *(words for words, is_left in found.items() if is_left)]

    def _new_handlers(self) -> list[tuple[ModuleType, Any]]:
        return [
            (package, handle)
            for package, before in self._handlers
            for handle in package.handlers._handlers
            if handle not in before
        ]

    def _named_left(self) -> Iterator[str]:
        yield from (f"the event handler {handle!r}" for _, handle in self._new_handlers())
        # Without the GIL, CPython 3.13 keeps all functions, classes and their closures once a thread has started.
        for package, known in self._stats if _GIL else ():
            rounds = 3  # a class is collected after its instances
            while (left := [each for each in package.stats._window.live() if each not in known]) and rounds:
                del left
                gc.collect()
                rounds -= 1
            yield from (f"the Stat {each.name!r}" for each in left)
        deadline = time.monotonic() + _PATIENCE
        while (left := [*{*threading.enumerate()} - self._threads]) and time.monotonic() < deadline:
            threading.Event().wait(0.005)  # threads of monitel cannot be joined by what enumerate() shows
        yield from (f"the thread {each.name!r}" for each in left)

    def restore(self) -> None:
        for named in self._named:
            named.forget_new()
        for package, handle in self._new_handlers():
            package.unregister_event_handler(handle)
        before_flush._functions[:] = self._functions
        root = logging.getLogger()
        root.handlers[:], root.level = [*self._logging[0], *filter(_is_of_pytest, root.handlers)], self._logging[1]
        for number, action in zip(_SIGNALS, self._signals, strict=True):
            if signal.getsignal(number) != action:
                signal.signal(number, action)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _logging() -> tuple[list[logging.Handler], int]:
    root = logging.getLogger()
    return [each for each in root.handlers if not _is_of_pytest(each)], root.level


def _is_of_pytest(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest.")


def _begin_again(package: ModuleType) -> None:
    package.stats._window.set_step(None)  # there is no public way to forget the step
    package.training.activities._open()
    package.training.counters._forget()
    # Those of the first copy: exporters have no other.
    if (run_events := sys.modules.get("monitel.run_events")) is not None:
        run_events._forget()
    if (names := sys.modules.get("monitel_otel.names")) is not None:
        names.NAMES.forget()


class _Named:
    """Stats, counters and wait counters, which a package keeps by name for the whole life of its process."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package
        self._registry, self._waits = package.stats.registry, package.wait_counter
        self._numbered = [package.counter.__globals__, vars(package.wait_counter)]
        self._stats, self._found = {*self._registry._stats}, [each["_all"] for each in self._numbered]

    def forget_new(self) -> None:
        self._waits.set_foreign_waits({})
        for name in {*self._registry._stats} - self._stats:
            del self._registry._stats[name]
        self._registry._items = chained(self._registry._stats.items())
        for module, found in zip(self._numbered, self._found, strict=True):
            module["_all"] = found
            module["_index"]()
