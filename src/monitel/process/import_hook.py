"""A callback that runs when a module is first imported.

It serves modules that take long to import and that many jobs never need, such as the compiler.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from monitel.process.os_threads import Lock

_log = logging.getLogger("monitel")
_lock = Lock()


class AfterImport(MetaPathFinder):
    """Calls a function once a module is loaded: now, or right after its first import, in the importing thread.

    If the import fails, the function runs after the next one. What it raises then is logged, and the import continues.
    """

    def __init__(self, module: str, function: Callable[[], None]) -> None:
        self._module = module
        self._function = function
        sys.meta_path.insert(0, self)
        if sys.modules.get(module) is not None:  # after insert(): otherwise a concurrent import would be missed
            import_module(module)  # waits until another thread has imported all of it
            if self.cancel():
                function()

    def cancel(self) -> bool:
        """Stop waiting for the module, and return whether it was still awaited."""
        with _lock:
            waiting = self in sys.meta_path
            if waiting:  # a new list, because an import that iterates over the old one would skip a finder
                sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        return waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module through the finders behind this one, and watch its execution."""
        finders = list(sys.meta_path)
        if fullname != self._module or self not in finders:
            return None
        # Some old finders, such as those of copies of six, have no find_spec(); imports skip them, too.
        behind = [each for each in finders[finders.index(self) + 1 :] if hasattr(each, "find_spec")]
        spec = next((found for each in behind if (found := each.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            with suppress(AttributeError, TypeError):  # a loader in C: the function is not called
                self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        execute, own = loader.exec_module, vars(loader).get("exec_module")

        def exec_module(module: ModuleType) -> None:
            is_awaited = module.__name__ == self._module  # other modules may share the loader
            if is_awaited and own is None:  # first, because the method of a proxy, as of wrapt, calls this one
                del loader.exec_module
            elif is_awaited:
                loader.exec_module = own
            execute(module)
            if is_awaited:
                self._executed()

        loader.exec_module = exec_module

    def _executed(self) -> None:
        if not self.cancel():
            return
        try:
            self._function()
        except Exception:
            _log.warning("the callback after the import of %s failed", self._module, exc_info=True)
