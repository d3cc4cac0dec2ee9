"""Functions that run once a module is loaded."""

import sys
from importlib import import_module
from importlib.util import spec_from_file_location
from pathlib import Path
from threading import Event, Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from monitel.process.import_hook import AfterImport

wrapt: Any = pytest.importorskip("wrapt")


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


class Proxy(wrapt.ObjectProxy):  # type: ignore[misc]
    """A loader as in wrapt's hooks: what is set on it is set on the real one."""

    def __init__(self, loader: object) -> None:
        super().__init__(loader)
        self.__self_setattr__("exec_module", self._self_execute)

    def _self_execute(self, module: object) -> None:
        self.__wrapped__.exec_module(module)


def test_finders_of_other_libraries_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of six have finders without ``find_spec()``, which imports skip."""
    found: list[str] = []

    def find_spec(name: str, *_arguments: object) -> Any:
        spec: Any = spec_from_file_location(name, tmp_path / "found.py")
        spec.loader = Proxy(spec.loader)
        return spec if name == "module_after_other_finders" else None

    monkeypatch.setattr(sys, "meta_path", [object(), SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    (tmp_path / "found.py").write_text("")
    AfterImport("module_after_other_finders", lambda: found.append("imported"))
    assert [] == found
    import_module("module_after_other_finders")
    assert ["imported"] == found
