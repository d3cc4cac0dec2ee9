"""Contenders of a race with and without ``monitel.torch.instrument()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def instrumented(options: Mapping[str, Any] | None, names: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return a function for ``race.timed`` that instruments torch, or restores it, and returns the names of the code.

    Args:
        options: Options of ``monitel.torch.instrument()``; None to restore torch.
        names: The names.
    """
    import monitel.torch

    def prepare() -> dict[str, Any]:
        running = monitel.torch.instrument(**(options or {}))
        if options is None:
            running.uninstrument()
        return names

    return prepare
