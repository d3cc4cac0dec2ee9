"""Exceptions of notebook cells: IPython shows them and continues, so Python's hooks do not see them."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_EVENT = "post_run_cell"


class CellErrors:
    """Calls a function with each exception that ends a cell of the running IPython shell, until it is removed.

    IPython calls it after it has shown the exception, and in the same cell that creates it, too. It is not imported:
    without a running shell nothing happens. The exception is not kept.

    Args:
        report: Called with the exception, in the thread that runs the cell.
    """

    def __init__(self, report: Callable[[BaseException], object]) -> None:
        self._report = report
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        self._shell = None if get_shell is None else get_shell()
        if self._shell is not None:
            self._shell.events.register(_EVENT, self._after_cell)

    def remove(self) -> None:
        """Stop. Idempotent."""
        shell, self._shell = self._shell, None
        if shell is not None:
            with suppress(ValueError):  # somebody else has removed it
                shell.events.unregister(_EVENT, self._after_cell)

    def _after_cell(self, result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
        if error is not None:
            self._report(error)
