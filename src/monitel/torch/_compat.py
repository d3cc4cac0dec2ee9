"""The private names of torch that monitel uses. No other module looks one up.

A name that a version of torch lacks raises :class:`Missing`. Unless the caller has a fallback, the source that needs it
is then not installed, and a warning is logged once.
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
    from collections.abc import Callable

    from torch import Tensor

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_US_PER_S = 1_000_000
COMPILER = "torch._dynamo"  #: The module of torch.compile that traces; torch.optim loads it too.


class Missing(Exception):  # noqa: N818  instrument() handles it; users never see it
    """This version of torch lacks a name that a source needs."""


def untraced(function: _Function) -> _Function:
    """Mark a hook so that torch.compile calls it instead of tracing it, as ``torch.compiler.disable`` does.

    That function itself would load the compiler. A version of torch that ignores the mark breaks the graph at the hook.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def compile_only_below(function: Callable[..., Any]) -> None:
    """Have torch.compile skip the frame of a function and compile the functions it calls, as for nn.Module.__call__.

    Inside code that is compiled already, the function is compiled with that code. A version of torch without this
    feature compiles the function in any case.
    """
    _set_compilation(function, below="DEFAULT")


def never_compile(function: Callable[..., Any]) -> None:
    """Have torch.compile skip the frame of a function and those of the functions it calls.

    Otherwise a hook that runs between two graphs would be compiled, frame by frame. A version of torch without this
    feature does that.
    """
    _set_compilation(function, below="SKIP")


def _set_compilation(function: Callable[..., Any], below: str) -> None:
    module = "torch._C._dynamo.eval_frame"
    with suppress(Missing):
        action: Any = _find(module, "_FrameAction")
        strategy = _find(module, "_FrameExecStrategy")(action.SKIP, getattr(action, below))
        _find(module, "set_code_exec_strategy")(function.__code__, strategy)


def loader_iterator() -> Any:
    """Return the base class of DataLoader iterators, whose ``__next__`` returns a batch."""
    return _find("torch.utils.data.dataloader", "_BaseDataLoaderIter")


NO_GRAPH = -1  #: The result of :func:`current_graph`'s function outside of backward.


def current_graph() -> Callable[[], int]:
    """Return the function that returns the number of the backward pass that this thread is running, or NO_GRAPH."""
    graph: Callable[[], int] = _find("torch._C", "_current_graph_task_id")
    return graph


def backward_is_compiled() -> bool:
    """Return whether torch compiles backward, and with it all hooks (compiled autograd)."""
    compiled = sys.modules.get(f"{COMPILER}.compiled_autograd")
    return compiled is not None and bool(getattr(compiled, "compiled_autograd_enabled", False))


def autograd_engine() -> tuple[Any, str, Any]:
    """Return the owner and the name of the object through which Python runs the autograd engine, and its class.

    Its method ``run_backward`` runs backward; ``queue_callback`` has a function called at the end of the backward pass
    under way.
    """
    owner, engine = _find("torch.autograd.variable", "Variable"), "_execution_engine"
    if not hasattr(owner, engine):
        raise Missing(f"torch.autograd.variable.Variable.{engine} does not exist")
    return owner, engine, _find("torch._C", "_ImperativeEngine")


def without_overrides() -> Any:
    """Return a context manager in which neither subclasses of Tensor nor modes see the functions that are called."""
    return _find("torch._C", "DisableTorchFunction")


def places_that_wait() -> list[tuple[Any, str]]:
    """Return the objects, with the names of their attributes, through which Python waits for other ranks.

    ``_op`` of an operator is the function that runs it. Compiled code, too, calls an operator that waits through this
    attribute, and the compiler does not look at it.
    """
    work, store = (_find("torch.distributed", name) for name in ("Work", "Store"))
    packet = _find("torch.ops", "_c10d_functional").wait_tensor
    return [
        (work, "wait"),
        (_find("torch._C", "Future"), "wait"),
        (store, "get"),
        (store, "wait"),
        (packet, "_op"),
        (packet.default, "_op"),
    ]


def collective_logger() -> logging.Logger:
    """Return the logger to which torch.distributed writes failed collectives.

    Its only handler is a NullHandler, so the records are otherwise discarded (torch/distributed/c10d_logger.py).
    """
    logger: logging.Logger = _find("torch.distributed.c10d_logger", "_c10d_logger")
    return logger


def wait_totals() -> Callable[[], dict[str, WaitReading]]:
    """Return a function that reads torch's wait counters, including those of C++, by key.

    torch's debug server has a handler that writes the counters as JSON (torch 2.10 and later). The function calls it
    without a server, with a request and a response defined here.
    """
    handler = _find("torch._C._distributed_c10d", "_get_handler")
    request_class: Any = _find("torch._C._distributed_c10d", "_Request")
    response_class: Any = _find("torch._C._distributed_c10d", "_Response")

    class Response(response_class):  # type: ignore[misc]
        content: str | bytes = ""

        def set_content(self, content: str | bytes, content_type: str) -> None:  # noqa: ARG002  torch's signature
            self.content = content

        def set_status(self, status: int) -> None:
            """Ignore the status; only the content is used."""

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
        raise Missing(f"the handler wait_counter_values returns another format: {error!r}") from error
    return read


def plain_tensor_check() -> Callable[[Tensor], bool]:
    """Return a function that returns whether a tensor holds its numbers itself.

    The numbers of a subclass with ``__torch_dispatch__`` may be anywhere. Within a transform of torch.func, such as
    vmap, one tensor may stand for several, and none of them can be copied to the outside.
    """
    default = torch.Tensor.__torch_dispatch__
    try:
        transform = _find("torch._C._functorch", "peek_interpreter_stack")
    except Missing:
        return lambda tensor: type(tensor).__torch_dispatch__ is default
    return lambda tensor: type(tensor).__torch_dispatch__ is default and transform() is None


def compilations() -> Callable[[], list[Any]] | None:
    """Return the function that lists the latest compilations, or None while the compiler is not loaded.

    Loading it takes a second.
    """
    if "torch._dynamo.utils" not in sys.modules:
        return None
    listing: Callable[[], list[Any]] = _find("torch._dynamo.utils", "get_compilation_metrics")
    return listing


def compilation_callbacks() -> tuple[list[Callable[..., None]], list[Callable[..., None]]]:
    """Return the compiler's lists of callbacks for the start and for the end of a compilation."""
    handler = _find(f"{COMPILER}.callback", "callback_handler")
    try:
        return handler.start_callbacks, handler.end_callbacks
    except AttributeError as error:
        raise Missing(f"{COMPILER}.callback: {error}") from error


def compilation_scopes() -> Any:
    """Return the object whose ``install_callbacks()`` returns a context manager around each compilation."""
    handler = _find(f"{COMPILER}.callback", "callback_handler")
    if not hasattr(handler, "install_callbacks"):
        raise Missing(f"{COMPILER}.callback.callback_handler.install_callbacks does not exist")
    return handler


def group_timers() -> Any:
    """Return the module whose ``_WaitCounter`` torch.distributed uses around each set-up of a process group.

    Its key ends with the name of the function (torch/distributed/c10d_logger.py).
    """
    module = "torch.distributed.c10d_logger"
    _find(module, "_WaitCounter")
    return import_module(module)


def when_cuda_is_initialized(function: Callable[[], None]) -> None:
    """Call a function when the job initializes CUDA, in the initializing thread; now if that has happened already."""
    _find("torch.cuda", "_lazy_call")(function)


def attach_out_of_memory_observer(observe: Callable[..., None]) -> None:
    """Have the CUDA allocator call a function before it raises, with device, requested bytes, limit and free bytes.

    The observer cannot be detached. It is called with the GIL held and without the allocator's lock
    (torch/csrc/cuda/Module.cpp, CUDACachingAllocator.cpp).
    """
    _find("torch._C", "_cuda_attach_out_of_memory_observer")(observe)


def trace_instead(method: Callable[..., Any], substitute: Callable[..., None]) -> None:
    """Have the compiler trace ``substitute`` where a method, in Python or C, is called. This cannot be undone.

    For a method in C, torch has a public function, which has no effect on a method in Python. Calls of the latter are
    intercepted where the compiler starts to trace them. The mark ``_torchdynamo_inline`` would lose ``self`` at a graph
    break.
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
    """Return ``comptime``, which a traced function calls to run a function during tracing, with a compiler context."""
    comptime: Callable[[Callable[[Any], None]], None] = _find(f"{COMPILER}.comptime", "comptime")
    return comptime


def call_after_graph(context: Any, function: str, *arguments: str) -> bool:
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


def _find(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Missing(f"{module}.{name} does not exist: {error}") from error
