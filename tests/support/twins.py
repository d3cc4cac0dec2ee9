"""Fixtures of tests that run with both twins of windows: in C (``c``) and in Python (``py``)."""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.scripts import Run

import monitel as installed

_SWITCH = "MONITEL_NO_EXTENSIONS"
_PURE_ONLY = os.environ.get(_SWITCH, "0") not in {"", "0"}
_ACCUMULATORS = {"monitel.stats._window_c": "c", "monitel.stats._window_py": "py"}


def _twin_of(module: ModuleType) -> str:
    return _ACCUMULATORS[module.Stat.__mro__[1].__module__]


def _own_modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "monitel"}


_LATE = ("monitel.testing", "monitel.stats.histogram")  # are imported on demand
[*map(import_module, _LATE)]  # not while the other twin is in its place
# The C module has process-wide state, so it is loaded only once: by the import above.
_copies = {_twin_of(installed): _own_modules()}


@contextmanager
def _in_place(modules: dict[str, ModuleType]) -> Iterator[None]:
    previous = _own_modules()
    if previous.get("monitel") is modules.get("monitel"):
        yield
        return
    for name in previous:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        modules.update(_own_modules())
        for name in modules:
            del sys.modules[name]
        sys.modules.update(previous)


def _copy(twin: str) -> dict[str, ModuleType]:
    if twin == "py" and twin not in _copies:
        modules: dict[str, ModuleType] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(_SWITCH, "1")
            with _in_place(modules):
                [*map(import_module, _LATE)]  # with a second copy: the first was moved out of sys.modules
        _copies[twin] = modules
    if twin not in _copies:
        if os.environ.get("MONITEL_REQUIRE_EXTENSIONS") == "1":
            pytest.fail("monitel.stats._window_c is not built, and MONITEL_REQUIRE_EXTENSIONS=1")
        pytest.skip("monitel.stats._window_c is not built")
    assert twin == _twin_of(_copies[twin]["monitel"])
    return _copies[twin]


def pytest_report_header() -> str:
    if _PURE_ONLY:
        return f"monitel twins: py ({_SWITCH} is set)"
    if "c" not in _copies:
        return "monitel twins: py (c is not built)"
    return f"monitel twins: c ({_copies['c']['monitel.stats._window_c'].__file__}), py"


_MARKS = {"c": [pytest.mark.twins], "py": [pytest.mark.twins, pytest.mark.python_twin]}


@pytest.fixture(params=[pytest.param(twin, marks=_MARKS[twin]) for twin in (["py"] if _PURE_ONLY else ["c", "py"])])
def twin(request: pytest.FixtureRequest) -> str:
    _copy(request.param)  # skips or fails if the twin is missing
    return str(request.param)


def packages() -> list[ModuleType]:
    """Return the copies of the package in this process: both twins, once a test of twins has run."""
    return [modules["monitel"] for modules in _copies.values()]


@pytest.fixture
def monitel(twin: str) -> Iterator[ModuleType]:
    """Yield the package with one twin; remove handlers and samples afterwards."""
    modules = _copy(twin)
    package = modules["monitel"]
    with _in_place(modules):
        yield package
        for handle in package.handlers._handlers:
            package.unregister_event_handler(handle)
        package.flush()


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield the clock of the test's Stats, of the twin under test if there is one: it moves only by advance()."""
    package = request.getfixturevalue("monitel") if "monitel" in request.fixturenames else installed
    with package.testing.ManualClock() as clock:
        yield clock


@pytest.fixture
def events(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    package = request.getfixturevalue("monitel") if "monitel" in request.fixturenames else installed
    with package.testing.capture_events() as events:
        yield events


MakeStat = Callable[..., Any]  # type of the fixture ``make_stat``


@pytest.fixture
def make_stat(monitel: ModuleType) -> MakeStat:
    """Return a function that creates a Stat, by default with all aggregations and a window of 60 s."""

    def make(
        name: str = "x", aggregations: Sequence[Any] | None = None, window_size: Any = 60.0, *args: Any, **kwargs: Any
    ) -> Any:
        chosen = list(monitel.Aggregation) if aggregations is None else aggregations
        return monitel.Stat(name, chosen, window_size, *args, **kwargs)

    return make


@pytest.fixture
def clean_profiler() -> Iterator[None]:
    """Forget warnings and steps of other tests, and check that the test leaves no listeners."""
    profiler = installed.profiler
    import_module("monitel.profiler.profiles")._warned.clear()
    yield
    with profiler.record_function("probe"):
        assert profiler.ranges.current_range() is None, "a listener is left"
    assert [] == [each for each in gc.callbacks if each.__module__.startswith("monitel")]
    profiler.KinetoStepTracker._step_dict.clear()
    profiler.KinetoStepTracker._current_step = 0


@pytest.fixture(scope="session")
def both_twins() -> dict[str, ModuleType]:
    if _PURE_ONLY:
        pytest.skip(f"{_SWITCH} is set")
    return {twin: _copy(twin)["monitel"] for twin in ("c", "py")}


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    caught: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: caught.append(report.exc_value))
    return caught


_PRELUDE = """\
import faulthandler, os, sys, threading, warnings

faulthandler.enable()
warnings.simplefilter("default")
import monitel
from monitel import COUNT, SUM, Stat

assert monitel.Stat.__mro__[1].__module__ == {accumulator!r}

def say(*words):  # unbuffered, so that no fork copies what another process has said
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def within(seconds, function):  # where it may hang: SIGALRM ends the process
    import signal
    signal.alarm(seconds)
    function()
    signal.alarm(0)

"""


@pytest.fixture
def run_script(twin: str, tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that runs a script with a twin in a separate process, and returns its lines."""
    path = tmp_path / "script.py"  # a file, because a spawned process imports the main module again
    accumulator = next(module for module, name in _ACCUMULATORS.items() if name == twin)

    def run_script(source: str) -> list[str]:
        path.write_text(_PRELUDE.format(accumulator=accumulator) + source, encoding="utf-8")
        return Run(tmp_path)(path, env={_SWITCH: f"{twin == 'py':d}"}).stdout.splitlines()

    return run_script


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
