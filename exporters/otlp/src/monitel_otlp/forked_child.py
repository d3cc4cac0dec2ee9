"""Forked children of a process with a pipeline: fork hooks, resource, DataLoader workers."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from opentelemetry.sdk.resources import Resource

from monitel.fork import register_at_fork

if TYPE_CHECKING:
    from collections.abc import Callable


_Owner = TypeVar("_Owner")


def register_fork_hooks(
    owner: _Owner,
    *,
    before: Callable[[_Owner], None],
    in_parent: Callable[[_Owner], None],
    in_child: Callable[[_Owner], None],
) -> None:
    """Call functions with an object before each fork and after it, as long as the object is alive."""
    reference = weakref.ref(owner)

    def hook(function: Callable[[_Owner], None]) -> Callable[[], None]:
        def call() -> None:
            if (alive := reference()) is not None:
                function(alive)

        return call

    register_at_fork(before=hook(before), after_in_parent=hook(in_parent), after_in_child=hook(in_child))


def child_resource(resource: Resource) -> Resource:
    """Return the resource of a forked child: the parent's, because the SDK cannot detect resources at exit."""
    own: dict[str, str | int] = {"service.instance.id": str(uuid4()), "process.pid": os.getpid()}
    return resource.merge(Resource({name: value for name, value in own.items() if name in resource.attributes}))


def is_data_loader_worker() -> bool:
    """Return True in a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
