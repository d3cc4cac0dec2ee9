"""Functions that run once a module is loaded."""

import sys
from importlib import import_module
from pathlib import Path
from threading import Event, Thread, Timer

import pytest

from monitel.process.import_hook import AfterImport


def test_function_runs_after_an_import_by_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, both threads could find half of a module."""
    begun, go_on, found = Event(), Event(), []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "events_of_the_test", (begun, go_on), raising=False)
    (tmp_path / "slow_module.py").write_text(
        "import sys\nbegun, go_on = sys.events_of_the_test\nbegun.set()\ngo_on.wait()\ncomplete = True\n"
    )
    importing = Thread(target=import_module, args=["slow_module"])
    importing.start()
    assert begun.wait(60)
    going_on = Timer(0.05, go_on.set)
    going_on.start()
    AfterImport("slow_module", lambda: found.append(hasattr(sys.modules.pop("slow_module"), "complete")))
    importing.join()
    going_on.join()
    assert [True] == found


def test_finder_of_an_old_library_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of six have finders without ``find_spec()``, which imports skip."""
    found: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    (tmp_path / "module_after_old_finder.py").write_text("")
    AfterImport("module_after_old_finder", lambda: found.append("imported"))
    assert [] == found
    import_module("module_after_old_finder")
    assert ["imported"] == found
