"""The time of a run: all attempts, and the time between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class RunTime(NamedTuple):
    """The time of a run up to its last heartbeat, divided into activities.

    Attributes:
        run: The run id; empty for a process without one.
        activities: Nanoseconds of each activity by name, with ``down`` (between attempts) and ``lost`` (steps that were
            done again later). Their sum is ``elapsed_ns``.
        elapsed_ns: Nanoseconds from the start of the first attempt to the last heartbeat.
        attempts: Number of processes that have taken part, one after the other.
        start_ns: Start of the first attempt, nanoseconds since the Unix epoch.
        last_ns: Time of the last heartbeat, or of the end, nanoseconds since the Unix epoch.
        ended: False if the last attempt is running, or was killed.
    """

    run: str
    activities: Mapping[str, int]
    elapsed_ns: int
    attempts: int
    start_ns: int
    last_ns: int
    ended: bool

    @property
    def goodput(self) -> float | None:
        """The share of ``step``, without what is lost, in the elapsed time; None before the first step."""
        steps_ns = self.activities.get("step")
        return None if steps_ns is None or not self.elapsed_ns else steps_ns / self.elapsed_ns
