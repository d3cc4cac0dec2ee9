"""Forked children of a process with a pipeline: fork hooks, resource, DataLoader workers."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from opentelemetry.sdk.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable


class ForkHooks(Protocol):
    """The methods that :func:`register_fork_hooks` calls."""

    def before_fork(self) -> None:
        """Prepare a fork, in the parent."""

    def after_fork(self) -> None:
        """Resume after a fork, in the parent."""

    def in_child(self) -> None:
        """Start in the forked child."""


def register_fork_hooks(hooks: ForkHooks) -> None:
    """Call the methods of an object at each fork, as long as the object is alive."""
    reference = weakref.ref(hooks)

    def call(function: Callable[[ForkHooks], None]) -> None:
        if (alive := reference()) is not None:
            function(alive)

    os.register_at_fork(
        before=lambda: call(lambda each: each.before_fork()),
        after_in_parent=lambda: call(lambda each: each.after_fork()),
        after_in_child=lambda: call(lambda each: each.in_child()),
    )


def child_resource(resource: Resource) -> Resource:
    """Return the resource of a forked child: the parent's, because the SDK cannot detect resources at exit."""
    own: dict[str, str | int] = {"service.instance.id": str(uuid4()), "process.pid": os.getpid()}
    return resource.merge(Resource({name: value for name, value in own.items() if name in resource.attributes}))


def is_data_loader_worker() -> bool:
    """Return True in a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
