"""``Stat.add`` in code that torch.compile compiles."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from monitel.stats import Stat
from monitel.torch._compat import COMPILER, call_after_graph, compile_time, trace_instead
from monitel.torch.import_hook import AfterImport

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("monitel.torch")
_on = False
_said = False
_taught = False
_at_compile_time: Callable[[Callable[[Any], None]], None] | None = None  # both are there once the compiler is
_outside: Callable[[Stat, Any], None] | None = None


class CompiledAdds:
    """Has a compiled function add its samples right after its graph, each time that it runs.

    The compiler traces :func:`_traced` where it meets ``Stat.add``: nothing of that comes into the graph, whose
    operations stay as they were, and ``Stat.add`` itself is what it was. What is added is read when the graph has
    run. In the body of an operation that is a graph of its own, such as a checkpoint or a branch of ``torch.cond``,
    samples are left out, which is said once.

    The compiler is not loaded for this. It has no way to forget; while no source is installed, ``add`` breaks the graph
    as it did before.
    """

    def install(self) -> None:
        """Tell the compiler once it is there."""
        global _on
        _on = True
        self._compiler = AfterImport(COMPILER, _teach)

    def remove(self) -> None:
        """Compile no further ``add``; what is compiled goes on to add."""
        global _on
        _on = False
        self._compiler.cancel()


def _teach() -> None:
    global _at_compile_time, _outside, _taught
    if not _taught:
        _at_compile_time = compile_time()
        # disable(): what adding runs, handlers too, is nothing to compile
        _outside = torch.compiler.disable(lambda stat, v: stat.add(v))
        trace_instead(Stat.add, _traced)
        _taught = True


def _traced(self: Stat, v: Any) -> None:  # noqa: ARG001  they are looked up by name
    """What is traced in the place of ``Stat.add``, and what its names say is what _plan() finds."""
    outside = _outside  # noqa: F841
    _at_compile_time(_plan)  # type: ignore[misc]  # it is traced once it is there


def _plan(context: Any) -> None:
    """Have the call made after the graph; runs while the compiler is at ``_traced``."""
    global _said
    if not _on:
        context.graph_break("Stat.add() in compiled code is of monitel.torch.instrument()")
    try:
        planned = call_after_graph(context, "outside", "self", "v")
    except Exception:
        planned = False
        reason = "this torch does not do what it takes"
    else:
        reason = "it is in the body of an operation, such as a checkpoint"
    if not planned and not _said:
        _said = True
        _log.warning("a Stat.add() in compiled code adds nothing: %s", reason)
