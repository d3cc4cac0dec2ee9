"""``Stat.add`` in code that torch.compile compiles."""

from __future__ import annotations

import logging
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from monitel.process.import_hook import AfterImport
from monitel.stats.stat import Stat
from monitel.torch.hooks import COMPILER, Missing, Source, find

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("monitel.torch")
_on = False
_warned = False
_hooked = False
#: Both are set once the compiler is loaded.
_at_compile_time: Callable[[Callable[[Any], None]], None] | None = None
_outside: Callable[[Stat, Any], None] | None = None


class CompiledAdds(Source):
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
    if _hooked:
        return
    try:
        _at_compile_time = find(f"{COMPILER}.comptime", "comptime")
        # disable(): neither add() nor the event handlers it runs are to be compiled
        _outside = torch.compiler.disable(lambda stat, v: stat.add(v))
        _trace_instead(Stat.add, _traced)
        _hooked = True
    except Missing as missing:
        _log.warning("Stat.add() in compiled code breaks the graph with this torch version: %s", missing)


def _traced(self: Stat, v: Any) -> None:  # noqa: ARG001  _plan() looks them up by name
    """Stand in for ``Stat.add`` in tracing; ``_plan()`` finds the arguments by the names of these locals."""
    outside = _outside  # noqa: F841
    _at_compile_time(_plan)  # type: ignore[misc]  # it is set before anything is traced


def _plan(context: Any) -> None:
    """Schedule the call of ``add`` after the graph. Runs while the compiler traces ``_traced``."""
    global _warned
    if not _on:
        context.graph_break("Stat.add() in compiled code requires monitel.torch.instrument()")
    try:
        planned = _call_after_graph(context, "outside", "self", "v")
    except Exception:
        planned = False
        reason = "this torch version lacks the required compiler hooks"
    else:
        reason = "it is inside an operation with a separate graph, such as a checkpoint"
    if not planned and not _warned:
        _warned = True
        _log.warning("Stat.add() in compiled code records nothing: %s", reason)


def _trace_instead(method: Callable[..., Any], substitute: Callable[..., None]) -> None:
    """Have the compiler trace ``substitute`` where a method, in Python or C, is called. This cannot be undone.

    For a method in C, torch has a public function, which has no effect on a method in Python. Calls of the latter are
    intercepted where the compiler starts to trace them. The mark ``_torchdynamo_inline`` would lose ``self`` at a graph
    break.
    """
    if not isinstance(method, FunctionType):
        torch.compiler.substitute_in_graph(method, skip_signature_check=True)(substitute)
        return
    traced: Any = find(f"{COMPILER}.variables", "UserFunctionVariable")
    call = traced.call_function

    def call_function(self: Any, tracing: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.fn is method:
            return call(traced(substitute), tracing, [*self.self_args(), *args], kwargs)
        return call(self, tracing, args, kwargs)

    traced.call_function = call_function


def _call_after_graph(context: Any, function: str, *arguments: str) -> bool:
    """Have the compiled code call a function after its graph has run.

    This is how torch.compile treats a ``print`` among the ``reorderable_logging_functions``. It drops such calls for
    functions that the compiled function calls, so the call is added to the outermost function's list.

    Args:
        context: The compiler context.
        function: The name of a local of the traced function that holds the function to call.
        arguments: The names of locals that hold the arguments.

    Returns:
        Whether the call was scheduled. It cannot be while a graph within this one is traced.
    """
    tracing = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    if tracing.output.current_tracer.parent is not None:
        return False
    known = tracing.symbolic_locals
    tracing.output.root_tx.debug_locals.append((known[function], [known[name] for name in arguments]))
    return True
