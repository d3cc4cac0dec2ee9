"""The numbers of one run, wherever they are from, and the metrics that are not values of the training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from monitel_otel.names import WAITS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from monitel.console.values.run_values import Key, Scalar

#: Attributes of a resource that differ between all processes, or do not describe the run.
NOT_COMPARED = {
    *("training.run.id", "training.rank", "training.local_rank", "training.node_rank", "training.attempt"),
    *("service.instance.id", "process.pid", "process.runtime.description", "instance", "job"),
}

_MOST = 2.0**53  # seconds, or steps

_OUTSIDE = {"startup", "init", "shutdown", "down"}  # activities outside of the training loop


class Number(NamedTuple):
    """A value of a run.

    Attributes:
        value: The value.
        unit: Its unit.
        total: It is a sum since the start of the run, otherwise the last one of a row of values.
    """

    value: float
    unit: str = ""
    total: bool = False


@dataclass(frozen=True)
class Run:
    """The numbers of one run. What is not known is None or empty.

    Attributes:
        label: The run id, or another name that distinguishes the run.
        source: Where the numbers are from, in words.
        outcome: How the run ended, or its state, in words.
        started_ns: The start, Unix ns.
        last_ns: The last sign of life, Unix ns.
        attempts: Number of processes of one rank that have taken part, one after the other.
        activities: Nanoseconds of each activity of rank zero, over all attempts, with ``down`` and ``lost``.
        goodput: Share of ``step`` in the time of the run.
        steps: Number of steps that were made, repeated ones included.
        last_step: The last training step.
        timed: Number of steps with a duration, and the sum of the durations in seconds.
        numbers: The last values of rank zero, by the name and the attributes of the metric.
        config: The configuration by dotted name.
        attributes: Attributes of the resource.
        left_out: Number of values, settings and attributes that were not stored.
    """

    label: str
    source: str = ""
    outcome: str = ""
    started_ns: int | None = None
    last_ns: int | None = None
    attempts: int | None = None
    activities: Mapping[str, int] = field(default_factory=dict)
    goodput: float | None = None
    steps: int | None = None
    last_step: int | None = None
    timed: tuple[int, float] = (0, 0.0)
    numbers: Mapping[Key, Number] = field(default_factory=dict)
    config: Mapping[str, Scalar] = field(default_factory=dict)
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    left_out: int = 0

    @property
    def duration_ns(self) -> int | None:
        """Time from the start to the last sign of life."""
        if self.activities:
            return sum(self.activities.values())
        if self.started_ns is None or self.last_ns is None:
            return None
        return max(self.last_ns - self.started_ns, 0)

    @property
    def rate(self) -> float | None:
        """Steps per second: by the durations of the steps, otherwise by the time of the training loop."""
        count, seconds = self.timed
        if count and seconds > 0 and math.isfinite(seconds):
            return count / seconds
        looping = looping_seconds(self.activities)
        return self.steps / looping if self.steps and looping > 0 else None


def can_be_counted(value: float) -> bool:
    """Return True if a number can be a time or a number of steps: it is finite, not negative, and not impossibly large.

    Example:
        >>> can_be_counted(12.5), can_be_counted(float("nan")), can_be_counted(-1), can_be_counted(1e300)
        (True, False, False, False)
    """
    return 0 <= value <= _MOST


def looping_seconds(activities: Mapping[str, int]) -> float:
    """Return the seconds in the training loop, by the nanoseconds of each activity."""
    return sum(time_ns for name, time_ns in activities.items() if name not in _OUTSIDE) / 1e9


def name_of(key: Key) -> str:
    """Return the name of a value with its attributes: ``loss.mean{split=val}``."""
    name, attributes = key
    listed = ", ".join(f"{attribute}={value}" for attribute, value in attributes)
    return f"{name}{{{listed}}}" if listed else name


_ACTIVE = ".wait.active"  # every wait counter has this metric, and a Stat cannot have it
_INTERNAL = {
    *("training.time", "training.goodput", "process.thread.count", "process.open_file_descriptor.count"),
    *("process.cpu.time", "process.memory.usage", "process.disk.io", "system.cpu.time", "system.memory.usage"),
    *("system.disk.io", "system.network.io", "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.memory.limit"),
    *("hw.power", "hw.temperature"),
}


def internal_metrics(names: Collection[str]) -> set[str]:
    """Return the metrics that are not values of the training.

    Args:
        names: Names of all metrics of a run. A wait counter is recognized by its metric ``<key>.wait.active``.

    Example:
        >>> sorted(internal_metrics(["loss", "process.cpu.time", "process.reward", "monitel.windows"]))
        ['monitel.windows', 'process.cpu.time']
    """
    keys = {name.removesuffix(_ACTIVE) for name in names if name.endswith(_ACTIVE)}
    waits = {f"{key}{suffix}" for key in keys for suffix in WAITS}
    return {name for name in names if name.startswith("monitel.") or name in _INTERNAL or name in waits}
