"""A call as soon as a module has been imported, for one that takes long and that many jobs never need."""

from __future__ import annotations

import logging
import sys
from importlib.abc import Loader, MetaPathFinder
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_log = logging.getLogger("monitel.torch")
_lock = Lock()


class AfterImport(MetaPathFinder):
    """Calls a function once a module is there: now, or right after its first import, in the thread that imports it.

    Whoever only looks for the module, or fails to import it, leaves it to the next. What the function raises later is
    logged, and the import goes on.

    Args:
        module: Its name.
        then: What to call.
    """

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self._module = module
        self._then = then
        sys.meta_path.insert(0, self)
        if module in sys.modules and self.cancel():  # looked up after insert(): else an import between is not heard of
            then()

    def cancel(self) -> bool:
        """Wait for it no more, and say whether it did."""
        with _lock:
            waited = self in sys.meta_path
            if waited:  # by another list: an import in another thread, which goes through this one, would skip a finder
                sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        return waited

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Have the finders behind this one find the module, and its loader call the function."""
        finders = list(sys.meta_path)
        if fullname != self._module or self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)  # without: of before Python 3.4, which imports skip as well
            spec: ModuleSpec | None = find and find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Executing(spec, spec.loader, self._executed)
                return spec
        return None

    def _executed(self) -> None:
        if not self.cancel():
            return
        try:
            self._then()
        except Exception:
            _log.warning("what waited for the import of %s has failed", self._module, exc_info=True)


class _Executing(Loader):
    """A loader that says when it has executed its module, which then has its own again.

    That one is not changed: it may be the loader of other modules too, as a zip file's is.
    """

    def __init__(self, spec: ModuleSpec, loader: Loader, executed: Callable[[], None]) -> None:
        self._spec = spec
        self._loader = loader
        self._executed = executed

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._executed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
