"""The values of a run over all its attempts: numbers, configuration and steps of rank zero."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A value of an attribute, or of a configuration, whose lists are JSON texts.
Scalar = None | bool | int | float | str

#: The name of a metric, and its attributes in the order of their names.
Key = tuple[str, tuple[tuple[str, Scalar], ...]]


class Value(NamedTuple):
    """The last value of one series.

    Attributes:
        name: Name of the metric, such as ``loss.mean``.
        attributes: Its attributes, in the order of their names.
        unit: Its unit.
        value: The value.
        time_ns: Time of the value, Unix ns.
        total: It is a sum since the start of the run, to which each attempt adds.
        before: The part of a total that is from earlier attempts.
    """

    name: str
    attributes: tuple[tuple[str, Scalar], ...]
    unit: str
    value: float
    time_ns: int
    total: bool = False
    before: float = 0.0

    @property
    def key(self) -> Key:
        """The identity of the series."""
        return self.name, self.attributes


class Progress(NamedTuple):
    """The steps of one attempt, or of several.

    Attributes:
        steps: Number of steps that were made, repeated and skipped ones included.
        last_step: The last training step; None if none was set.
        timed: Number of steps with a duration.
        seconds: Sum of these durations.
    """

    steps: int = 0
    last_step: int | None = None
    timed: int = 0
    seconds: float = 0.0

    def plus(self, later: Progress) -> Progress:
        """Return both as one."""
        last_step = self.last_step if later.last_step is None else later.last_step
        return Progress(self.steps + later.steps, last_step, self.timed + later.timed, self.seconds + later.seconds)

    def until(self, last_step: int | None) -> Progress:
        """Return the progress with the steps up to a later one, which only the ledger has recorded."""
        if last_step is None or self.last_step is None or last_step <= self.last_step:
            return self
        return self._replace(steps=self.steps + last_step - self.last_step, last_step=last_step)


NO_STEPS = Progress()


class Attempted(NamedTuple):
    """The last attempt of a run, as its ledger has it.

    Attributes:
        name: Unique name of the process.
        begin: The step at which it begins; None if it is unknown.
        last_step: The last step; None if there is none.
    """

    name: str
    begin: int | None = None
    last_step: int | None = None


@dataclass(frozen=True)
class RunValues:
    """The values of a run.

    Attributes:
        run: The run id; empty for a process without one.
        attempt: Unique name of the process that has written them.
        time_ns: Time of the writing, Unix ns.
        status: How the process ended: ``completed``, ``failed``, ``interrupted`` or ``preempted``; empty before that.
        attributes: Attributes of the resource.
        config: The configuration by dotted name.
        progress: The steps of this attempt.
        before: The steps of earlier attempts.
        values: The last value of each series.
        left_out: Number of values, parts of the configuration and attributes for which there was no room.
    """

    run: str
    attempt: str
    time_ns: int = 0
    status: str = ""
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    config: Mapping[str, Scalar] = field(default_factory=dict)
    progress: Progress = NO_STEPS
    before: Progress = NO_STEPS
    values: tuple[Value, ...] = ()
    left_out: int = 0

    def until(self, last: Attempted) -> RunValues:
        """Return the values with the steps that the ledger has recorded later, and no status of an earlier attempt."""
        if last.name == self.attempt:
            return replace(self, progress=self.progress.until(last.last_step))
        own = Progress(last_step=last.last_step)
        if last.begin is not None and last.last_step is not None:
            own = own._replace(steps=max(last.last_step - last.begin, 0) + 1)
        return replace(self, attempt=last.name, status="", before=self.before.plus(self.progress), progress=own)
