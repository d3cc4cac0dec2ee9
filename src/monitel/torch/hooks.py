"""Hooks in torch. A name that this version of torch lacks raises Missing: then the source that needs it stays off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound="Callable[..., Any]")
COMPILER = "torch._dynamo"  #: The module of torch.compile that traces; torch.optim loads it too.
NO_GRAPH = -1  #: The result of :func:`current_graph`'s function outside of backward.


class Missing(Exception):  # noqa: N818  instrument() handles it; users never see it
    """This version of torch, or the machine, lacks what a source needs."""


class Source:
    """A source of telemetry in torch, or hooks that several sources need: ``needs`` are installed before it, once."""

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
        """Do at exit what cannot wait for the final collection of exporters."""

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
    """Mark a hook for torch.compile as ``torch.compiler.disable`` does, which would load the compiler."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def compile_only_below(function: Callable[..., Any]) -> None:
    """Have torch.compile skip the frame of a function, but not the functions that it calls."""
    _set_compilation(function, below="DEFAULT")


def never_compile(function: Callable[..., Any]) -> None:
    """Have torch.compile skip a hook and all that it calls; between two graphs it would be compiled otherwise."""
    _set_compilation(function, below="SKIP")


def _set_compilation(function: Callable[..., Any], below: str) -> None:
    module = "torch._C._dynamo.eval_frame"
    with suppress(Missing):
        action: Any = find(module, "_FrameAction")
        strategy = find(module, "_FrameExecStrategy")(action.SKIP, getattr(action, below))
        find(module, "set_code_exec_strategy")(function.__code__, strategy)


class Patch:
    """Replaces a function of a module, a class or an object by ``call``, which gets the original and its arguments."""

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
    """Replaces a function in all loaded modules of its package. Other modules keep the original."""

    def __init__(self, package: str, name: str, call: Callable[..., Any]) -> None:
        super().__init__(sys.modules[package], name, call)
        self._package = package
        self._replace(self._original, self.replacement)

    def remove(self) -> None:
        super().remove()
        self._replace(self.replacement, self._original)

    def _replace(self, old: object, new: object) -> None:
        for path, module in list(sys.modules.items()):
            if f"{path}.".startswith(f"{self._package}.") and getattr(module, "__dict__", {}).get(self._name) is old:
                setattr(module, self._name, new)
