"""Fork hooks. On a platform without ``fork()``, such as Windows, they are never called."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["register_at_fork"]


def register_at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Call :func:`os.register_at_fork` if the platform has it; else do nothing."""
    if not hasattr(os, "register_at_fork"):
        return
    hooks = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
    os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook is not None})
