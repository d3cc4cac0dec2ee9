"""``Stat.add`` in code that torch.compile compiles."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from monitel.import_hook import AfterImport
from monitel.stats import Stat
from monitel.torch._compat import COMPILER, call_after_graph, compile_time, trace_instead

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("monitel.torch")
_on = False
_warned = False
_hooked = False
#: Both are set once the compiler is loaded.
_at_compile_time: Callable[[Callable[[Any], None]], None] | None = None
_outside: Callable[[Stat, Any], None] | None = None


class CompiledAdds:
    """Lets compiled functions add their samples right after their graph, each time they run.

    Where the compiler meets ``Stat.add`` it traces :func:`_traced` instead. The operations of the graph stay the same,
    and ``Stat.add`` itself is unchanged. The sample is read after the graph has run. In the body of an operation with a
    separate graph, such as a checkpoint or a branch of ``torch.cond``, samples are not recorded; that is logged once.

    Installing does not load the compiler. The hook cannot be removed from the compiler. After ``remove()``, ``add()``
    causes a graph break again.
    """

    def install(self) -> None:
        """Set the hook once the compiler is loaded."""
        global _on
        _on = True
        self._compiler = AfterImport(COMPILER, _hook_compiler)

    def remove(self) -> None:
        """Stop compiling ``add``. Functions that are compiled already continue to add."""
        global _on
        _on = False
        self._compiler.cancel()


def _hook_compiler() -> None:
    global _at_compile_time, _outside, _hooked
    if not _hooked:
        _at_compile_time = compile_time()
        # disable(): neither add() nor the event handlers it runs are to be compiled
        _outside = torch.compiler.disable(lambda stat, v: stat.add(v))
        trace_instead(Stat.add, _traced)
        _hooked = True


def _traced(self: Stat, v: Any) -> None:  # noqa: ARG001  _plan() looks them up by name
    """Stand in for ``Stat.add`` in tracing; ``_plan()`` finds the arguments by the names of these locals."""
    outside = _outside  # noqa: F841
    _at_compile_time(_plan)  # type: ignore[misc]  # it is set before anything is traced


def _plan(context: Any) -> None:
    """Schedule the call of ``add`` after the graph. Runs while the compiler traces ``_traced``."""
    global _warned
    if not _on:
        context.graph_break("Stat.add() in compiled code requires monitel.torch.instrument(compiled_adds=True)")
    try:
        planned = call_after_graph(context, "outside", "self", "v")
    except Exception:
        planned = False
        reason = "this torch version lacks the required compiler hooks"
    else:
        reason = "it is inside an operation with a separate graph, such as a checkpoint"
    if not planned and not _warned:
        _warned = True
        _log.warning("Stat.add() in compiled code records nothing: %s", reason)
