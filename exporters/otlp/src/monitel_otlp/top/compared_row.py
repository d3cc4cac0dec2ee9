"""A row with the facts behind it that other rows are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from monitel_otlp.top.period import History
    from monitel_otlp.top.rank import Rank


class Row(NamedTuple):
    """A row, and the facts behind it that other rows are compared with.

    Attributes:
        rank: The row.
        created_ns: Creation of the box, Unix ns; 0 if unknown.
        history: The totals of the process; None if its box was never read.
        step_seconds: Usual seconds from step to step; None if unknown.
        status: How the process has ended by itself; empty if it has not, or if that is unknown.
        thread: Identity of the training thread; 0 if unknown.
        process: Identity of the process, as the launcher of a job has that of its parent; empty if unknown.
        stepped: The process has set a step itself.
    """

    rank: Rank
    created_ns: int = 0
    history: History | None = None
    step_seconds: float | None = None
    status: str = ""
    thread: int = 0
    process: str = ""
    stepped: bool = True
