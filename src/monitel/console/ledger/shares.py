"""The time of a run: its parts in percent, which add up to 100, and the largest loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monitel.activities import ACTIVITIES
from monitel.training_time import DOWN, LOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel.console.text import Screen


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


_ORDER = {name: number for number, name in enumerate((*ACTIVITIES, DOWN, LOST))}  # of activities of the same length


class Part(NamedTuple):
    """The time of one activity.

    Attributes:
        name: The activity; empty for the sum of several ones.
        time_ns: Its time, above 0.
        percent: Its share. All parts of a run add up to 100.
    """

    name: str
    time_ns: int
    percent: int

    @property
    def share(self) -> str:
        """The share in words."""
        return f"{self.percent} %" if self.percent else "<1 %"


def parts_of(activities: Mapping[str, int]) -> list[Part]:
    """Return the parts of a run's time: ``step``, then the losses, the largest first.

    Args:
        activities: Nanoseconds by activity. Those without time are left out.
    """
    found = [(name, time_ns) for name, time_ns in activities.items() if time_ns > 0]
    found.sort(key=lambda each: (each[0] != "step", -each[1], _ORDER.get(each[0], len(_ORDER)), each[0]))
    percents = apportion([time_ns for _, time_ns in found], 100)
    return [Part(*each, percent) for each, percent in zip(found, percents, strict=True)]


def largest_loss(parts: Sequence[Part]) -> Part | None:
    """Return the largest part that is not ``step``; None if there is none."""
    return next((part for part in parts if part.name != "step"), None)


def first_parts(parts: Sequence[Part], limit: int) -> list[Part]:
    """Return the parts of at least 1 %; if they are more than ``limit``, the last one is the sum of the others."""
    shown = [part for part in parts if part.percent]
    if len(shown) <= limit:
        return shown
    others = shown[limit - 1 :]
    return [
        *shown[: limit - 1],
        Part("", sum(part.time_ns for part in others), sum(part.percent for part in others)),
    ]


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Return integers in the ratio of the parts that add up to ``total`` (by the largest remainder).

    Each is the exact share, rounded up or down. A share below 1 is rounded up only if there is no other way. Without
    parts above 0 all are 0.

    Example:
        >>> apportion([1, 1, 1], 100), apportion([374, 621, 5], 100)
        ([34, 33, 33], [38, 62, 0])
    """
    whole = sum(parts)
    if whole <= 0:
        return [0] * len(parts)
    shares, remainders = zip(*(divmod(part * total, whole) for part in parts), strict=True)
    order = sorted(range(len(parts)), key=lambda each: (not remainders[each], not shares[each], -remainders[each]))
    rounded_up = {*order[: total - sum(shares)]}
    return [share + (number in rounded_up) for number, share in enumerate(shares)]


_ENOUGH = 95  # percent in steps, above which the loss is not the news

#: The activities as they continue "of the time went into".
_PHRASES = {
    "startup": "starting up",
    "init": "initialization",
    "compile": "compilation",
    "data": "waiting for data",
    "step": "steps",
    "checkpoint.save": "saving checkpoints",
    "checkpoint.load": "loading checkpoints",
    "evaluation": "evaluation",
    "stuck": "waits that were stuck",
    "other": "work that belongs to no activity",
    "shutdown": "shutting down",
    DOWN: "downtime between attempts",
    LOST: "steps that had to be repeated after a restart",
}


def sentence(run: RunTime, screen: Screen) -> str:
    """Return the sentence for a run, in characters that the screen can show."""
    parts = parts_of(run.activities)
    loss = largest_loss(parts)
    named = "" if loss is None else _PHRASES.get(loss.name) or f'the activity "{screen.printable(loss.name)}"'
    if run.goodput is None:
        went = "no time was recorded" if loss is None else f"{loss.share} of the time went into {named}"
        return f"{went}; goodput is undefined without steps"
    steps = next((part for part in parts if part.name == "step"), None)
    if steps is not None and steps.percent >= _ENOUGH:
        more = "no loss reaches 1 %"
        if loss is not None and loss.percent:
            more = f"the largest loss is {named} ({loss.share})"
        return f"{steps.share} of the time went into steps; {more}"
    return "no time was recorded" if loss is None else f"{loss.share} of the time went into {named}"
