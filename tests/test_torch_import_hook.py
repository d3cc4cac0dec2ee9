"""A call as soon as a module has been imported."""

from __future__ import annotations

import importlib
import inspect
import sys
import zipfile
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec
from threading import Barrier, Thread
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

pytest.importorskip("torch", reason="monitel.torch needs it: torch is not installed")

from monitel.torch.import_hook import AfterImport

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # of torch, in torch
]

LATE = "module_that_is_late"  # not test_: pytest has a loader of its own for those
DEADLINE = 30.0  # seconds


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Give the file of a module that nobody has imported, and leave all as it was."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a module that is written twice in a second is read again
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"{LATE}.py"
    file.write_text("ran = True\n")
    yield file
    sys.modules.pop(LATE, None)


@pytest.fixture
def calls() -> list[object]:
    """Give a list for what is called to append to."""
    return []


@pytest.fixture
def hook(module: Path, calls: list[object]) -> AfterImport:
    """Wait for the module; what is called notes what the module has by then."""
    return AfterImport(LATE, lambda: calls.append(sys.modules[LATE].ran))


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.usefixtures("module")
def test_a_call_after_an_import(loaded: bool, calls: list[object]) -> None:
    """At once where the module is there; else as soon as it has been run, and not when it was cancelled."""
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
def test_a_failure_after_an_import_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The import succeeds."""

    def then() -> None:
        raise ValueError("no such name")

    AfterImport(LATE, then)
    assert importlib.import_module(LATE).ran
    assert f"what waited for the import of {LATE} has failed" in caplog.text


def test_whoever_looks_for_the_module_imports_nothing(hook: AfterImport, module: Path, calls: list[object]) -> None:
    """As often as it is looked for, what is found is the module's, and the import that follows is heard of."""
    for _ in range(3):
        spec = find_spec(LATE)
        assert spec is not None
        assert spec.loader is not None
        assert str(module) == spec.origin
        assert "ran = True\n" == spec.loader.get_source(LATE)  # type: ignore[attr-defined]  # a file's loader has it
    assert [] == calls
    assert hook in sys.meta_path
    importlib.import_module(LATE)
    assert [True] == calls
    assert hook not in sys.meta_path


def test_what_was_found_may_be_run_by_hand(hook: AfterImport, calls: list[object]) -> None:
    """By whoever looked for it, also after another import: the call is made once."""
    specs = [find_spec(LATE) for _ in range(2)]
    for spec in specs:
        assert spec is not None
        assert spec.loader is not None
        sys.modules[LATE] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[LATE])
        assert [True] == calls
    assert not hook.cancel()


@pytest.mark.usefixtures("hook")
def test_the_module_has_its_own_loader(module: Path) -> None:
    """Once it is there nothing of the hook's is left in it."""
    late = importlib.import_module(LATE)
    assert late.__spec__ is not None
    assert late.__spec__.loader is late.__loader__
    assert SourceFileLoader is type(late.__loader__)
    assert module.read_text() == inspect.getsource(late)


def test_a_loader_of_several_modules(
    monkeypatch: pytest.MonkeyPatch, module: Path, tmp_path: Path, calls: list[object]
) -> None:
    """Another module of the same zip file is not taken for the one that is waited for."""
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as writing:
        writing.write(module, module.name)
        writing.writestr("module_beside_it.py", "")
    monkeypatch.syspath_prepend(archive)
    hook = AfterImport(LATE, lambda: calls.append(sys.modules[LATE].ran))
    find_spec(LATE)
    importlib.import_module("module_beside_it")
    assert sys.modules.pop("module_beside_it")
    assert [] == calls
    assert hook in sys.meta_path
    assert importlib.import_module(LATE).__file__ == str(archive / module.name)
    assert [True] == calls


def test_an_import_that_fails_and_is_tried_again(hook: AfterImport, module: Path, calls: list[object]) -> None:
    """The call waits for the one that succeeds."""
    module.write_text("ran = False\nraise ValueError('no such file')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="no such file"):
            importlib.import_module(LATE)
        assert [] == calls
        assert hook in sys.meta_path
    module.write_text("ran = 'again'\n")
    importlib.import_module(LATE)
    assert ["again"] == calls
    assert hook not in sys.meta_path


def test_a_module_that_is_not_there_yet(hook: AfterImport, module: Path, calls: list[object]) -> None:
    """It is looked for as if nobody waited, and heard of when it is there."""
    module.unlink()
    importlib.invalidate_caches()
    assert find_spec(LATE) is None
    with pytest.raises(ModuleNotFoundError, match=LATE):
        importlib.import_module(LATE)
    module.write_text("ran = True\n")
    importlib.invalidate_caches()
    importlib.import_module(LATE)
    assert [True] == calls
    assert hook not in sys.meta_path


@pytest.mark.usefixtures("hook")
def test_a_reload(module: Path, calls: list[object]) -> None:
    """It runs the module again, of which the call is not made again."""
    late = importlib.import_module(LATE)
    module.write_text("ran = 'reloaded'\n")
    assert "reloaded" == importlib.reload(late).ran
    assert [True] == calls


@pytest.mark.usefixtures("hook")
def test_a_reload_of_what_came_by_no_import(calls: list[object]) -> None:
    """A module that somebody has put there has no loader; its reload is the first that is heard of."""
    late = sys.modules[LATE] = type(sys)(LATE)
    assert importlib.reload(late).ran
    assert [True] == calls


def test_threads_that_import_it_at_once(hook: AfterImport, module: Path, calls: list[object]) -> None:
    """It is called once, by the one that runs the module, when all of it is there; others look for it meanwhile."""
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


class Meanwhile(MetaPathFinder):
    """A finder that finds nothing, and takes a hook out as another thread may while imports look around."""

    def __init__(self, hook: AfterImport) -> None:
        self._hook = hook

    def find_spec(
        self, _name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing."""
        self._hook.cancel()
        return None


def test_whoever_imports_another_module_meanwhile_skips_no_finder(hook: AfterImport, module: Path) -> None:
    """Taking the hook out does not move the finders under an import that goes through them."""
    module.with_name("module_beside_it.py").touch()
    importlib.invalidate_caches()
    path_finder = next(finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder")
    sys.meta_path[:] = [hook, Meanwhile(hook), path_finder]
    importlib.import_module("module_beside_it")
    assert sys.modules.pop("module_beside_it")
    assert hook not in sys.meta_path


def test_a_finder_of_old(monkeypatch: pytest.MonkeyPatch, hook: AfterImport, calls: list[object]) -> None:
    """One without find_spec(), as old copies of six bring along, is passed by, as by imports."""
    monkeypatch.setattr(sys, "meta_path", [hook, object(), *sys.meta_path[1:]])
    importlib.import_module(LATE)
    assert [True] == calls
