"""Activities of the ledger that sources enter for the training thread."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from monitel import activities
from monitel.os_threads import get_ident

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

_NOTHING = nullcontext()


def training_activity(name: str, *, part_of: Collection[str] = ()) -> AbstractContextManager[Any]:
    """Return an activity if this is the training thread, otherwise a context manager that does nothing.

    A forked child has no training thread before its first step.

    Args:
        name: The activity.
        part_of: Activities that include this one: it does nothing within them.
    """
    thread, current, _ = activities.position()
    return activities.activity(name) if thread == get_ident() and current not in part_of else _NOTHING
