"""Description of a process: its step, waits in flight, open ranges, and the activity of its training thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.activities import current, position
from monitel.readings import waits_in_flight
from monitel.stage import stage_now
from monitel.step import first_step
from monitel.training_time import goodput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MOST_IN_PROGRESS = 100  # waits, and open ranges
_LONGEST_NAME = 1_000  # characters


class Stage(NamedTuple):
    """The stage of a training step in progress.

    Attributes:
        name: The name.
        waits: The training thread waits for other ranks in it.
        age_ns: Time since its begin.
        thread: Identity of the thread; 0 if unknown.
    """

    name: str
    waits: bool
    age_ns: int
    thread: int = 0

    @classmethod
    def of(cls, doing: Mapping[str, Any], since_ns: int) -> Stage | None:
        """Return the stage in the description of a process in a snapshot, some time after it; None without one."""
        if not doing.get("stage"):
            return None
        name, waits, seconds, thread = doing["stage"]
        return cls(str(name), bool(waits), round(seconds * 1e9) + since_ns, int(thread))


def since_snapshot_ns(at_ns: int, snapshot_ns: int | None, step_age_ns: int | None) -> int:
    """Return how long the activity and the stage of a snapshot have lasted after it; 0 if they may be over.

    Args:
        at_ns: The time of the question, Unix ns.
        snapshot_ns: The time of the snapshot, Unix ns; None without one.
        step_age_ns: Time since the last step was set; None if unknown. If that was after it, they may be over.
    """
    since_ns = 0 if snapshot_ns is None else max(at_ns - snapshot_ns, 0)
    return 0 if step_age_ns is not None and step_age_ns < since_ns else since_ns


def describe(ranges: Sequence[tuple[str, float]] = ()) -> dict[str, Any]:
    """Return what this process is doing, as plain values. The end of a long name is left out.

    Args:
        ranges: Name and seconds so far of each open range.

    Returns:
        ``step``: the training step or None. ``first_step``: the first one that the program has set, or None.
        ``waits``: key, thread and seconds so far of each wait of the process. ``ranges``: name and seconds so far of
        each open range, where ranges become spans. ``activity``: name of the activity of the training thread in the
        ledger, and the seconds since it began. ``thread``: identity of that thread, 0 without a ledger. ``stage``: name
        of the stage of a step that the training thread is in, whether it waits for other ranks there, seconds so far,
        and identity of the thread; None without stages. ``goodput``: that of the run over all attempts, or None.
    """
    now_ns = time.monotonic_ns()
    stage = stage_now()
    waits = waits_in_flight()[:MOST_IN_PROGRESS]
    activity, activity_seconds = current()
    return {
        "step": monitel.get_step(),
        "first_step": first_step(),
        "waits": [(_short(key), int(thread), (now_ns - start_ns) / 1e9) for key, thread, start_ns in waits],
        "ranges": [(_short(name), seconds) for name, seconds in ranges[:MOST_IN_PROGRESS]],
        "activity": (_short(activity), activity_seconds),
        "thread": position()[0],
        "stage": None if stage is None else (stage.name, stage.waits, stage.age_ns / 1e9, stage.thread),
        "goodput": goodput(),
    }


def _short(name: object) -> str:
    return str(name)[:_LONGEST_NAME]
