"""Every test of the core runs over both twins: the C window (``c``) and the Python window (``py``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import monitel as installed
from monitel import bounded_queue as _installed_queue  # noqa: F401  nothing else of the package imports it

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

_SWITCH = "MONITEL_NO_EXTENSIONS"
_PURE_ONLY = os.environ.get(_SWITCH, "0") not in {"", "0"}
_ACCUMULATORS = {"monitel._window_c": "c", "monitel._window_py": "py"}
_DEADLINE = 30.0  # seconds, for what takes a fraction of one


def _twin_of(module: ModuleType) -> str:
    return _ACCUMULATORS[module.Stat.__mro__[1].__module__]


def _own_modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "monitel"}


# The C module has process-wide state, so it is loaded once: by the import above.
_copies = {_twin_of(installed): _own_modules()}


@contextmanager
def _in_place(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Make one copy of the package the one that ``import`` finds."""
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
                import_module("monitel.bounded_queue")  # a second copy: the first was moved out of sys.modules
        _copies[twin] = modules
    if twin not in _copies:
        if os.environ.get("MONITEL_REQUIRE_EXTENSIONS") == "1":
            pytest.fail("monitel._window_c is not built, and MONITEL_REQUIRE_EXTENSIONS=1")
        pytest.skip("monitel._window_c is not built")
    assert twin == _twin_of(_copies[twin]["monitel"])
    return _copies[twin]


def pytest_report_header() -> str:
    """Say which twins run."""
    if _PURE_ONLY:
        return f"monitel twins: py ({_SWITCH} is set)"
    if "c" not in _copies:
        return "monitel twins: py (c is not built)"
    return f"monitel twins: c ({_copies['c']['monitel._window_c'].__file__}), py"


@pytest.fixture(
    params=[pytest.param(twin, marks=pytest.mark.twins) for twin in (["py"] if _PURE_ONLY else ["c", "py"])]
)
def twin(request: pytest.FixtureRequest) -> str:
    """Name the twin under test: ``c`` or ``py``."""
    _copy(request.param)  # skips or fails where it is missing
    return str(request.param)


@pytest.fixture(scope="session")
def packages() -> Callable[[], list[ModuleType]]:
    """Return the copies of the package in this process: every test begins and ends with a fresh state of both."""
    _copy("py")
    return lambda: [modules["monitel"] for modules in _copies.values()]


@pytest.fixture
def monitel(twin: str) -> Iterator[ModuleType]:
    """Give the package over one twin, and leave neither handlers nor samples behind."""
    modules = _copy(twin)
    package = modules["monitel"]
    with _in_place(modules):
        yield package
        for handle in package.handlers._handlers:
            package.unregister_event_handler(handle)
        package.flush()


@pytest.fixture
def clock(monitel: ModuleType) -> Iterator[Any]:
    """Give the clock that the Stats of the test read: it stands at monotonic 0 until advanced."""
    with monitel.testing.ManualClock() as clock:
        yield clock


@pytest.fixture
def events(monitel: ModuleType) -> Iterator[list[Any]]:
    """Collect the events of the test."""
    with monitel.testing.capture_events() as events:
        yield events


@pytest.fixture
def make_stat(monitel: ModuleType) -> Callable[..., Any]:
    """Make a Stat with all aggregations and a window of 60 s, unless told otherwise."""

    def make(
        name: str = "x", aggregations: Sequence[Any] | None = None, window_size: Any = 60.0, *args: Any, **kwargs: Any
    ) -> Any:
        chosen = list(monitel.Aggregation) if aggregations is None else aggregations
        return monitel.Stat(name, chosen, window_size, *args, **kwargs)

    return make


@pytest.fixture
def make_queue(monitel: ModuleType, twin: str) -> Callable[..., Any]:
    """Make a queue of the twin under test, large unless limits are given."""
    queue_type = monitel.bounded_queue.BoundedQueue
    assert f"monitel._bounded_queue_{twin}" == queue_type.__module__

    def make(max_items: int = 1_000_000, max_bytes: int = 1 << 40, **callbacks: Any) -> Any:
        return queue_type(max_items, max_bytes, **callbacks)

    return make


@pytest.fixture(scope="session")
def both_twins() -> dict[str, ModuleType]:
    """Give the package over each twin, by name, to compare them."""
    if _PURE_ONLY:
        pytest.skip(f"{_SWITCH} is set")
    return {twin: _copy(twin)["monitel"] for twin in ("c", "py")}


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Collect what reaches ``sys.unraisablehook``."""
    caught: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: caught.append(report.exc_value))
    return caught


class RunThreads(Protocol):
    """What the fixture ``run_threads`` gives."""

    def __call__(self, *functions: Callable[[], object]) -> None:
        """Run each function in a thread of its own."""


@pytest.fixture
def run_threads() -> RunThreads:
    """Run functions at the same time, with a deadline; what one raises fails the test."""

    def run(*functions: Callable[[], object]) -> None:
        failures: list[BaseException] = []
        together = threading.Barrier(len(functions))

        def guarded(function: Callable[[], object]) -> None:
            try:
                together.wait(_DEADLINE)
                function()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=[each], daemon=True) for each in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE)
        assert [] == [thread for thread in threads if thread.is_alive()], "deadlock"
        assert [] == failures

    return run


@dataclass
class Ended:
    """What a script has said."""

    lines: list[str]
    stderr: str


class RunScript(Protocol):
    """What the fixture ``run_script`` gives."""

    def __call__(self, source: str, *, returncode: int = 0) -> Ended:
        """Run a script to its end."""


_PRELUDE = """\
import os, sys, threading
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
def run_script(twin: str, tmp_path: Path) -> RunScript:
    """Run a script in a process of its own, over the twin under test, with a hard timeout."""
    accumulator = next(module for module, name in _ACCUMULATORS.items() if name == twin)
    environment = {**os.environ, _SWITCH: "1" if twin == "py" else "0", "PYTHONWARNINGS": "default"}

    def run(source: str, *, returncode: int = 0) -> Ended:
        script = tmp_path / "script.py"  # a file, because spawn imports the main module again
        script.write_text(_PRELUDE.format(accumulator=accumulator) + source, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", script],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=_DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipes
            stdout, stderr = process.communicate()
            pytest.fail(f"the script hangs after saying {stdout!r}, {stderr!r}")
        assert returncode == process.returncode, stderr
        return Ended(stdout.splitlines(), stderr)

    return run
