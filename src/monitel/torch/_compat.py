"""Every name of torch that begins with an underscore, each looked up here and nowhere else.

What a version of torch does not have is a :class:`Missing`: the source that needs it stays off, and that is said once.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from monitel.wait_counter import WaitReading

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from torch import Tensor

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_US_PER_S = 1_000_000
COMPILER = "torch._dynamo"  #: The module of torch.compile that traces; torch.optim loads it too.


class Missing(Exception):  # noqa: N818  no error of the user's
    """This torch does not have what a source needs."""


def untraced(function: _Function) -> _Function:
    """Have torch.compile call a hook where it would trace it, by the mark that ``torch.compiler.disable`` sets.

    That function itself would load the compiler. Where the mark means nothing, the graph breaks within the hook.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def compile_only_below(function: Callable[..., Any]) -> None:
    """Have torch.compile begin with what the function calls, as with nn.Module's own ``__call__``.

    Where the function is called in code that is compiled, it is compiled as part of that; and by a torch that has no
    such order, in any case.
    """
    module = "torch._C._dynamo.eval_frame"
    with suppress(Missing):
        action: Any = _find(module, "_FrameAction")
        strategy = _find(module, "_FrameExecStrategy")(action.SKIP, action.DEFAULT)
        _find(module, "set_code_exec_strategy")(function.__code__, strategy)


def loader_iterator() -> Any:
    """The class whose ``__next__`` gives a DataLoader's batches."""
    return _find("torch.utils.data.dataloader", "_BaseDataLoaderIter")


def backward_under_way() -> Callable[[], bool]:
    """What tells whether this thread runs a backward: one that begins within it is part of it."""
    graph: Callable[[], int] = _find("torch._C", "_current_graph_task_id")
    return lambda: graph() != -1


def collective_logger() -> logging.Logger:
    """The logger that failed collectives are written to, and that nobody listens to.

    Its handler is a NullHandler, so that what it is told goes nowhere (torch/distributed/c10d_logger.py).
    """
    logger: logging.Logger = _find("torch.distributed.c10d_logger", "_c10d_logger")
    return logger


def wait_totals() -> Callable[[], dict[str, WaitReading]]:
    """What reads torch's own wait counters, of C++ too, by key.

    torch has a handler for its debug server that writes them as JSON. It is called here without a server, with a
    request and an answer of our own.
    """
    handler = _find("torch._C._distributed_c10d", "_get_handler")
    request_class: Any = _find("torch._C._distributed_c10d", "_Request")
    response_class: Any = _find("torch._C._distributed_c10d", "_Response")

    class Response(response_class):  # type: ignore[misc]
        content: str | bytes = ""

        def set_content(self, content: str | bytes, content_type: str) -> None:  # noqa: ARG002  torch's signature
            self.content = content

        def set_status(self, status: int) -> None:
            """Nothing else than the content is looked at."""

    class Request(request_class):  # type: ignore[misc]
        def body(self) -> bytes:
            return b""

        def get_param(self, name: str) -> str:  # noqa: ARG002  torch's signature
            return ""

    try:
        write = handler("wait_counter_values")
    except ValueError as error:
        raise Missing(str(error)) from error

    def read() -> dict[str, WaitReading]:
        response = Response()
        write(Request(), response)
        return {
            key: WaitReading(
                totals["total_calls"] - totals["active_count"],  # torch counts a wait when it begins
                totals["total_time_us"] / _US_PER_S,
                totals["max_time_us"] / _US_PER_S,
                totals["active_count"],
            )
            for key, totals in json.loads(response.content).items()
        }

    try:
        read()
    except Exception as error:
        raise Missing(f"the handler wait_counter_values answers otherwise than it did: {error!r}") from error
    return read


def torchs_wait_counter() -> Any:
    """torch.monitor's class of this name, whatever has been put into its place."""
    return _find("torch._C._monitor", "_WaitCounter")


def modules_with(name: str, value: object) -> Iterable[ModuleType]:
    """The modules of torch that have bound ``name`` to ``value`` already; others will take it from torch.monitor."""
    return [
        module
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == "torch" and getattr(module, "__dict__", {}).get(name) is value
    ]


def wait_counter_in_both() -> type:
    """A class to put into the place of torch's ``_WaitCounter``, which counts here as well."""
    import monitel

    theirs: Any = torchs_wait_counter()

    class Guard:
        def __init__(self, guards: tuple[Any, ...]) -> None:
            self._guards = guards

        def __enter__(self) -> None:
            for guard in self._guards:
                guard.__enter__()

        def __exit__(self, *exception: object) -> None:
            for guard in self._guards:
                guard.__exit__(*exception)

    class WaitCounter:
        """Counts for torch and for monitel."""

        def __init__(self, key: str) -> None:
            self._counters = theirs(key), monitel.WaitCounter(key)

        def guard(self) -> Guard:
            return Guard(tuple(counter.guard() for counter in self._counters))

    return WaitCounter


def plainness() -> Callable[[Tensor], bool]:
    """What tells whether a tensor holds its numbers itself.

    Those of a subclass with ``__torch_dispatch__`` may be anywhere. Within a transform of torch.func, such as vmap, one
    tensor may stand for several, and none can be copied into what is outside.
    """
    own = torch.Tensor.__torch_dispatch__
    try:
        transform = _find("torch._C._functorch", "peek_interpreter_stack")
    except Missing:
        return lambda tensor: type(tensor).__torch_dispatch__ is own
    return lambda tensor: type(tensor).__torch_dispatch__ is own and transform() is None


def compilations() -> Callable[[], list[Any]] | None:
    """What lists the latest compilations; None before anything of torch.compile was loaded, which takes a second."""
    if "torch._dynamo.utils" not in sys.modules:
        return None
    listing: Callable[[], list[Any]] = _find("torch._dynamo.utils", "get_compilation_metrics")
    return listing


def compilation_callbacks() -> tuple[list[Callable[..., None]], list[Callable[..., None]]]:
    """What the compiler calls when a compilation begins, and when it has ended: its own lists."""
    handler = _find(f"{COMPILER}.callback", "callback_handler")
    try:
        return handler.start_callbacks, handler.end_callbacks
    except AttributeError as error:
        raise Missing(f"{COMPILER}.callback: {error}") from error


def when_cuda_is_initialized(then: Callable[[], None]) -> None:
    """Call it as soon as the job initialises CUDA, in that thread; now where it has."""
    _find("torch.cuda", "_lazy_call")(then)


def attach_out_of_memory_observer(observe: Callable[..., None]) -> None:
    """Have the CUDA allocator call it before it raises, for good: device, bytes asked for, at most, and free.

    It is called with the GIL and without the allocator's lock (torch/csrc/cuda/Module.cpp, CUDACachingAllocator.cpp).
    """
    _find("torch._C", "_cuda_attach_out_of_memory_observer")(observe)


def trace_instead(method: Callable[..., Any], substitute: Callable[..., None]) -> None:
    """Have the compiler trace ``substitute`` where a method is called, one in Python or in C; for good.

    For one in C there is a public function. That has no effect on one in Python, whose calls are caught where the
    compiler begins to trace them; the mark ``_torchdynamo_inline`` would lose ``self`` where a graph is broken.
    """
    if not isinstance(method, FunctionType):
        torch.compiler.substitute_in_graph(method, skip_signature_check=True)(substitute)
        return
    traced: Any = _find(f"{COMPILER}.variables", "UserFunctionVariable")
    call = traced.call_function

    def call_function(self: Any, tracing: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.fn is method:
            return call(traced(substitute), tracing, [*self.self_args(), *args], kwargs)
        return call(self, tracing, args, kwargs)

    traced.call_function = call_function


def compile_time() -> Callable[[Callable[[Any], None]], None]:
    """What a traced function calls to have a function called while it is traced, with a context of the compiler's."""
    comptime: Callable[[Callable[[Any], None]], None] = _find(f"{COMPILER}.comptime", "comptime")
    return comptime


def call_after_graph(context: Any, function: str, *arguments: str) -> bool:
    """Have the compiled code call a function when its graph has run: the names of locals of the one that is traced.

    It is what torch.compile does with a ``print`` that is among ``reorderable_logging_functions``. It forgets that for
    a function which is called by the compiled one, so it is the outermost one's list that this goes into.

    Returns:
        Whether that can be: not where another graph within this one is traced.
    """
    tracing = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    if tracing.output.current_tracer.parent is not None:
        return False
    known = tracing.symbolic_locals
    tracing.output.root_tx.debug_locals.append((known[function], [known[name] for name in arguments]))
    return True


def _find(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Missing(f"{module}.{name} is not there: {error}") from error
