"""Sources of telemetry in torch, and how they hook into it: its private names, and functions that are replaced.

A name that a version of torch lacks raises :class:`Missing`. Unless the caller has a fallback, the source that needs it
is then not installed, and a warning is logged once.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")
COMPILER = "torch._dynamo"  #: The module of torch.compile that traces; torch.optim loads it too.
NO_GRAPH = -1  #: The result of :func:`current_graph`'s function outside of backward.


class Missing(Exception):  # noqa: N818  instrument() handles it; users never see it
    """This version of torch, or the machine, lacks what a source needs."""


class Source:
    """A source of telemetry in torch, or hooks that several sources need.

    Attributes:
        needs: Hooks that are installed before this source, once for all that need them, and removed after it.
    """

    needs: tuple[Source, ...] = ()

    def hook(self, made: Any) -> Any:
        """Keep a Patch, or another object with ``remove()``, until the source is removed or fails to install."""
        self.__dict__.setdefault("_hooks", []).append(made)
        return made

    def unhook(self) -> None:
        """Remove these objects, the last one first."""
        hooks = self.__dict__.get("_hooks", ())
        while hooks:
            hooks.pop().remove()

    def install(self) -> None:
        """Install hooks; raise Missing if this version of torch or the machine lacks what they need."""

    def remove(self) -> None:
        """Remove the hooks and flush."""
        self.unhook()

    def poll(self) -> None:
        """Log what has happened since the last poll. It is called each second, and before each flush."""

    def end(self) -> None:
        """Do at exit what cannot wait for the final collection of exporters, during which sources stay installed."""

    def reset(self) -> None:
        """Discard what belongs to the parent, in a forked child."""


def find(module: str, name: str) -> Any:
    """Return an object of a module by its name; raise Missing if there is none."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Missing(f"{module}.{name} does not exist: {error}") from error


def current_graph() -> Callable[[], int]:
    """Return the function that returns the number of the backward pass that this thread is running, or NO_GRAPH."""
    graph: Callable[[], int] = find("torch._C", "_current_graph_task_id")
    return graph


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
        action: Any = find(module, "_FrameAction")
        strategy = find(module, "_FrameExecStrategy")(action.SKIP, getattr(action, below))
        find(module, "set_code_exec_strategy")(function.__code__, strategy)


class Patch:
    """Replaces a function of a module, a class or an object by ``call``, which gets the original and its arguments.

    It raises Missing if the owner does not have the function.

    Attributes:
        replacement: The function that stands there now.
    """

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        self._on = True
        self._original = original = getattr(owner, name, None)
        if original is None:
            raise Missing(f"{getattr(owner, '__name__', owner)}.{name} does not exist")
        self._own = vars(owner).get(name)  # None: it is that of a base class

        def replacement(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs) if self._on else original(*args, **kwargs)

        replacement.__code__ = replacement.__code__.replace()  # a separate one: the compiler configures code
        self.replacement = untraced(wraps(original)(replacement))
        setattr(owner, name, self.replacement)

    def remove(self) -> None:
        """Restore the function. If somebody else has wrapped it since, it stays and only passes calls on."""
        self._on = False
        if vars(self._owner).get(self._name) is self.replacement:
            if self._own is None:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._own)


class PackagePatch(Patch):
    """Replaces a function in all modules of its package, including modules that are imported later.

    Modules outside of the package that have imported the function before keep the original.
    """

    def __init__(self, package: str, name: str, call: Callable[..., Any]) -> None:
        super().__init__(sys.modules[package], name, call)
        self._package = package
        self._replace(self._original, self.replacement)

    def remove(self) -> None:
        """Restore the function everywhere."""
        super().remove()
        self._replace(self.replacement, self._original)

    def _replace(self, old: object, new: object) -> None:
        for path, module in list(sys.modules.items()):
            if f"{path}.".startswith(f"{self._package}.") and getattr(module, "__dict__", {}).get(self._name) is old:
                setattr(module, self._name, new)
