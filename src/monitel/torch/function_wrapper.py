"""Replacement of a function in every module of a package that has it."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from monitel.torch._compat import Missing, untraced

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class FunctionWrapper:
    """Replaces a function in all modules of its package, including modules that are imported later.

    Modules outside of the package that have imported the function before keep the original.

    Args:
        package: The package, which has been imported.
        name: The name of the function there.
        call: Called instead, with the original, its positional and its keyword arguments.

    Raises:
        Missing: The package does not have the function.
    """

    def __init__(self, package: str, name: str, call: Call) -> None:
        self._package = package
        self._name = name
        self._on = True
        self._original = original = getattr(sys.modules[package], name, None)
        if original is None:
            raise Missing(f"{package}.{name} does not exist")

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(original, args, kwargs) if self._on else original(*args, **kwargs)

        self._wrapper = untraced(wrapper)
        self._replace(original, wrapper)

    def remove(self) -> None:
        """Restore the function. If somebody else has wrapped it since, it stays and only passes calls on."""
        self._on = False
        self._replace(self._wrapper, self._original)

    def _replace(self, old: object, new: object) -> None:
        for path, module in list(sys.modules.items()):
            if f"{path}.".startswith(f"{self._package}.") and getattr(module, "__dict__", {}).get(self._name) is old:
                setattr(module, self._name, new)
