"""A window that was just closed, as the collecting code passes it to its Stat.

The C code and its Python twin make the same two tuples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from monitel.histogram import Histogram


class Snapshot(NamedTuple):
    """The samples with known values: the fields of :class:`monitel.Window` after its definition, in the same order.

    ``count`` is 0 in a window of pending samples only; ``min`` and ``max`` are infinite then.
    """

    start_ns: int
    end_ns: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    sum: float
    min: float
    max: float
    last: float
    discarded: int
    first_step: int | None
    last_step: int | None
    stddev: float | None
    histogram: Histogram | None


class Reserved(NamedTuple):
    """The pending samples of the same window.

    Attributes:
        samples: The :class:`monitel.pending.PendingSamples` that collect them.
        slots: Number of samples for which the window reserved a slot.
        first: The window's first sample is pending.
        last: The window's last sample is pending.
    """

    samples: Any
    slots: int
    first: bool
    last: bool
