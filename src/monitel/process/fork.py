"""Fork hooks, and chains, which a forked child can read.

On a platform without ``fork()``, such as Windows, the hooks are never called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

__all__ = ["Chain", "chained", "register_at_fork", "unchained"]

_Item = TypeVar("_Item")

#: The last item, and the chain of those before it; None without items. An item is added in constant time, and without a
#: lock that a forked child may find locked, as that of a dict or a list (CPython without the GIL).
Chain = tuple[_Item, "Chain[_Item]"] | None


def chained(items: Iterable[_Item]) -> Chain[_Item]:
    """Return the chain of these items."""
    chain: Chain[_Item] = None
    return reduce(lambda before, item: (item, before), items, chain)


def unchained(chain: Chain[_Item]) -> list[_Item]:
    """Return the items of a chain, in the order in which they were added."""
    items = []
    while chain is not None:
        item, chain = chain
        items.append(item)
    return items[::-1]


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
