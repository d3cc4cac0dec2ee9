"""A call as soon as a module has been imported, for one that takes long and that many jobs never need."""

from __future__ import annotations

import logging
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_log = logging.getLogger("monitel.torch")


class AfterImport(MetaPathFinder):
    """Calls a function once a module is there: now, or right after its first import, in the thread that imports it.

    What the function raises later is logged, and the import goes on.

    Args:
        module: Its name.
        then: What to call.
    """

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self._module = module
        self._then = then
        if module in sys.modules:
            then()
        else:
            sys.meta_path.insert(0, self)

    def cancel(self) -> None:
        """Wait for it no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  Python's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Have others find the module, and its loader call the function."""
        if fullname != self._module:
            return None
        self.cancel()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                try:
                    self._then()
                except Exception:
                    _log.warning("what waited for the import of %s has failed", fullname, exc_info=True)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one, which is the module's own
        return spec
