"""Callbacks after the first import of a module."""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from threading import Barrier, Thread
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


from monitel.torch.import_hook import AfterImport

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # raised within torch
]

LATE = "late_module"  # without the prefix test_, for which pytest has its loader
DEADLINE = 30.0  # seconds


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Provide the file of a module that was never imported."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a module written twice in a second is read again
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"{LATE}.py"
    file.write_text("ran = True\n")
    yield file
    sys.modules.pop(LATE, None)


@pytest.fixture
def calls() -> list[object]:
    """Provide a list to which callbacks append."""
    return []


@pytest.fixture
def hook(module: Path, calls: list[object]) -> AfterImport:
    """Wait for the module. The callback records the module's attribute ``ran``."""
    return AfterImport(LATE, lambda: calls.append(sys.modules[LATE].ran))


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.usefixtures("module")
def test_callback_runs_once_the_module_is_loaded(loaded: bool, calls: list[object]) -> None:
    """The callback runs immediately if the module is loaded, otherwise after the import, unless it is cancelled."""
    if loaded:
        importlib.import_module(LATE)
    else:
        cancelled = AfterImport(LATE, lambda: calls.append("cancelled"))
        assert [True, False] == [cancelled.cancel(), cancelled.cancel()]
    hooks = [AfterImport(LATE, lambda: calls.append(sys.modules[LATE].ran)) for _ in range(2)]
    assert [True, True] * loaded == calls
    importlib.import_module(LATE)
    assert [True, True] == calls
    assert [] == [hook for hook in hooks if hook in sys.meta_path]


@pytest.mark.usefixtures("module")
def test_failed_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The import succeeds."""

    def fail() -> None:
        raise ValueError("no such name")

    AfterImport(LATE, fail)
    assert importlib.import_module(LATE).ran
    assert f"the callback after the import of {LATE} failed" in caplog.text


@pytest.mark.usefixtures("hook")
def test_original_loader_is_restored(module: Path) -> None:
    """Once the module is loaded, it holds no reference to the hook."""
    late = importlib.import_module(LATE)
    assert late.__spec__ is not None
    assert late.__spec__.loader is late.__loader__
    assert SourceFileLoader is type(late.__loader__)
    assert module.read_text() == inspect.getsource(late)


def test_concurrent_imports_run_the_callback_once(hook: AfterImport, module: Path, calls: list[object]) -> None:
    """The thread that executes the module runs it at the end, while other threads look for the module."""
    module.write_text(f"import importlib.util\nran = importlib.util.find_spec({LATE!r}) is __spec__\n")
    together = Barrier(8, timeout=DEADLINE)
    found: list[bool] = []

    def look_and_import() -> None:
        together.wait()
        looked_for = find_spec(LATE)
        found.append(looked_for is not None and importlib.import_module(LATE).ran)

    threads = [Thread(target=look_and_import, daemon=True) for _ in range(together.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert [True] * together.parties == found
    assert [True] == calls
    assert hook not in sys.meta_path
