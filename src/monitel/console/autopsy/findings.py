"""Findings about one process: the content of its black box, without the form in which the box keeps it.

Times are Unix ns. Ages are ns before the last sign of life of the process, or before the report if it is alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from monitel.blackbox.activity import Stage
    from monitel.console.autopsy.kernel_state import KernelState


class State(str, Enum):
    """The state of a process.

    ``SILENT`` is a process that runs, or is stopped, and whose heartbeat is too old.
    """

    ALIVE = "alive"
    SILENT = "silent"
    DEAD = "dead"


class Identity(NamedTuple):
    """The names of a process; a field is empty or None if it is not known.

    Attributes:
        pid: Process id, in the namespace of the process.
        host: Host name.
        service: ``service.name``.
        run: ``training.run.id``.
        rank: ``training.rank``.
        local_rank: ``training.local_rank``.
        world_size: ``training.world_size``.
        attempt: ``training.attempt``.
    """

    pid: int | None = None
    host: str = ""
    service: str = ""
    run: str = ""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    attempt: int | None = None


class Wait(NamedTuple):
    """A wait in progress.

    Attributes:
        key: The key of the wait counter.
        age_ns: Time since its begin.
        thread: Identity of the thread; 0 if unknown.
    """

    key: str
    age_ns: int
    thread: int = 0


class OpenRange(NamedTuple):
    """A range in progress.

    Attributes:
        name: The name.
        age_ns: Time since its begin.
        thread: Identity of the thread; 0 if unknown.
    """

    name: str
    age_ns: int
    thread: int = 0


class Numbers(NamedTuple):
    """The samples of one open window.

    Attributes:
        name: Name of the Stat.
        attributes: Attributes of the Stat.
        unit: Unit of the Stat.
        count: Number of samples.
        sum: Sum of the samples.
        last: The last sample.
        min: The smallest sample.
        max: The largest sample.
        start_ns: Start of the window.
        first_step: Training step of the first sample; None if unknown.
        last_step: Training step of the last sample; None if unknown.
    """

    name: str
    attributes: Mapping[str, Any]
    unit: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    sum: float
    last: float
    min: float
    max: float
    start_ns: int
    first_step: int | None = None
    last_step: int | None = None

    @property
    def mean(self) -> float:
        """The mean of the samples; NaN without samples."""
        return self.sum / self.count if self.count else float("nan")


class CounterValue(NamedTuple):
    """The value of a counter.

    Attributes:
        name: The name.
        attributes: Its attributes.
        value: The total.
    """

    name: str
    attributes: Mapping[str, Any]
    value: float


class PastEvent(NamedTuple):
    """An event of the process.

    Attributes:
        time_ns: The time of the event.
        severity: Severity number of OpenTelemetry.
        name: The name.
        attributes: The data of the event.
    """

    time_ns: int
    severity: int
    name: str
    attributes: Mapping[str, Any]


class Undelivered(NamedTuple):
    """Telemetry that no backend has acknowledged.

    Attributes:
        items: Number of closed windows, logged numbers and spans; of a spool events, too.
        events: Number of events.
        windows: Number of open windows.
        samples: Number of samples in the open windows.
    """

    items: int = 0
    events: int = 0
    windows: int = 0
    samples: int = 0


@dataclass
class Findings:
    """All findings about one process.

    Attributes:
        source: The box, or the spool that holds the event about the death.
        state: Alive, silent or dead.
        identity: The names of the process.
        started_ns: Begin of the telemetry; 0 if unknown.
        seen_ns: The last sign of life; 0 if unknown.
        death: Signal or status that ended the process, in words; empty if unknown.
        replaced: The process has replaced its program by ``exec``: its telemetry has ended, the process has not.
        silence: Sentences about why a silent process has no heartbeat.
        step: The last training step; None if none was set.
        step_age_ns: Time since the step was set; None if unknown.
        steps_per_second: The rate; None if unknown.
        activity: Activity of the training thread; empty if unknown.
        activity_age_ns: Time since that activity began; None if unknown.
        stage: Stage of a step that the training thread is in; None if unknown.
        waits: Waits in progress, the longest first.
        waits_left_out: Number of waits in progress for which the box had no place.
        ranges: Ranges in progress, the outermost first.
        windows: Open windows, in the order of their names.
        counters: Values of counters, in the order of their names.
        events: Events, the oldest first.
        undelivered: Telemetry that no backend has acknowledged.
        stacks: Stacks of the Python threads; of a dead process without a crash that of its main thread in the last
            second; empty if unknown.
        kernel: State of a live process in the kernel; None if unknown.
        spool: The spool of the process, with telemetry that is on disk; None if there is none.
        collected_in: The spool that holds its telemetry now; None for a box.
        exception: Type, message and place of the last exception that was not caught; None without one.
        problems: Parts of the box that could not be read, in words.
    """

    source: Path
    state: State
    identity: Identity = field(default_factory=Identity)
    started_ns: int = 0
    seen_ns: int = 0
    death: str = ""
    replaced: bool = False
    silence: Sequence[str] = ()
    step: int | None = None
    step_age_ns: int | None = None
    steps_per_second: float | None = None
    activity: str = ""
    activity_age_ns: int | None = None
    stage: Stage | None = None
    waits: Sequence[Wait] = ()
    waits_left_out: int = 0
    ranges: Sequence[OpenRange] = ()
    windows: Sequence[Numbers] = ()
    counters: Sequence[CounterValue] = ()
    events: Sequence[PastEvent] = ()
    undelivered: Undelivered = field(default_factory=Undelivered)
    stacks: str = ""
    kernel: KernelState | None = None
    spool: Path | None = None
    collected_in: Path | None = None
    exception: tuple[str, str, str] | None = None
    problems: list[str] = field(default_factory=list)
