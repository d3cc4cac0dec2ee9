"""The report of one process at its end: its steps, stages, time, items and outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.blackbox.forms import DEVICE_STAGE_TIME, STAGE_TIME, STEP_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monitel.blackbox.account import Account
    from monitel.blackbox.process import Owner
    from monitel.console.ledger.shares import RunTime

STEPS, SKIPPED, TIME = "training.steps", "training.steps.skipped", "training.time"
RECOMPILATIONS, RECOMPILING = "training.recompilations", "training.recompilation.time"

LONGEST = 200  # characters of a name
MOST = 300  # stages, and activities

_FEW = 10  # samples of a window
_TOO_LONG = 19  # digits of a number that may not fit in 64 bits
_NO_STEPS = {"startup", "init", "shutdown", "down", "lost"}  # activities outside of the training loop


class Total(NamedTuple):
    """The samples of one series, added up.

    Attributes:
        count: Number of samples.
        sum: Sum of the samples, in the unit of the series.
        windows: Number of windows of which the largest sample is known.
        largest: Sum of these samples.
    """

    count: int = 0  # type: ignore[assignment]  # hides tuple.count
    sum: float = 0.0
    windows: int = 0
    largest: float = 0.0

    def plus(self, other: Total) -> Total:
        """Return both totals as one."""
        windows, largest = self.windows + other.windows, self.largest + other.largest
        return Total(self.count + other.count, self.sum + other.sum, windows, largest)

    def since(self, earlier: Total) -> Total:
        """Return the samples after an earlier total. A total that has fallen has begun again."""
        windows, largest = self.windows - earlier.windows, self.largest - earlier.largest
        rest = Total(self.count - earlier.count, self.sum - earlier.sum, windows, largest)
        if rest.count < 0 or rest.sum < 0:
            return self
        return rest if rest.windows >= 0 and rest.largest >= 0 else Total(rest.count, rest.sum)

    @property
    def usual(self) -> float:
        """The mean without the largest sample of each window, which a single pause may be.

        Windows of a few samples count as they are.
        """
        if self.windows * _FEW > self.count:
            return self.sum / self.count
        return max(self.sum - self.largest, 0.0) / (self.count - self.windows)


NO_SAMPLES = Total()


class StageTotal(NamedTuple):
    """The time of one stage in all cycles of a process.

    Attributes:
        stage: Name of the stage.
        group: Name of the group of ranks; empty for the group of all ranks.
        device: Measured on the accelerator, not on the host.
        total: Number of cycles, and their seconds in the stage.
    """

    stage: str
    group: str
    device: bool
    total: Total


class JobName(NamedTuple):
    """The names that the processes of one job have in common.

    Attributes:
        namespace: ``service.namespace``; empty if there is none.
        service: ``service.name``.
        run: ``training.run.id``; empty if there is none.
        launcher: Identity of the parent process where the run id does not distinguish two jobs; otherwise empty.
    """

    namespace: str = ""
    service: str = ""
    run: str = ""
    launcher: str = ""


@dataclass(frozen=True)
class Report:
    """The report of one process, or of one of several pipelines that it had one after the other.

    Attributes:
        owner: The process.
        job: The job of the process.
        attempt: ``training.attempt``; 0 without a launcher that restarts ranks.
        rank: ``training.rank``; None if it is not known.
        world_size: Number of ranks in the job; None if it is not known.
        time_ns: Time of the report, or of the last sign of life, Unix ns.
        first_step: The step that the program has set first; None if it has set none.
        last_step: The last training step; None if there was none.
        steps: Number of applied optimizer steps, as counted; 0 if nothing counts them.
        skipped: Number of skipped optimizer steps.
        step_time: Seconds from step to step.
        stages: Seconds of the stages.
        activities: Nanoseconds of each activity of the process.
        run_time: The time of the run over all attempts; only in rank zero.
        accounts: The account of each signal; empty if the process was killed.
        spool_dir: The spool folder of the process.
        offline: No signal had an endpoint.
        stored: Requests are in the spool, even if they hold no item.
        status: ``completed``, ``failed``, ``interrupted`` or ``preempted``; empty if the process was killed.
        death: How the process died, in words; empty if it ended by itself.
        step_ns: Time at which a process that died has set its last step, Unix ns; None if it is not known.
        observed: ``time_ns`` is the time of the death, not only that of a sign of life before it.
        recompilations: Number of compilations of code that was compiled before.
        recompiling_ns: Nanoseconds of these compilations, in all threads.
    """

    owner: Owner
    job: JobName
    attempt: int = 0
    rank: int | None = None
    world_size: int | None = None
    time_ns: int = 0
    first_step: int | None = None
    last_step: int | None = None
    steps: int = 0
    skipped: int = 0
    step_time: Total = NO_SAMPLES
    stages: tuple[StageTotal, ...] = ()
    activities: Mapping[str, int] = field(default_factory=dict)
    run_time: RunTime | None = None
    accounts: Mapping[str, Account] = field(default_factory=dict)
    spool_dir: str = ""
    offline: bool = False
    stored: bool = False
    status: str = ""
    death: str = ""
    step_ns: int | None = None
    observed: bool = False
    recompilations: int = 0
    recompiling_ns: int = 0

    @property
    def made(self) -> int:
        """The number of steps that the process has made, skipped ones included."""
        counted = self.steps + self.skipped
        if counted or self.first_step is None or self.last_step is None:
            return counted
        return max(self.last_step - self.first_step, 0) + 1

    @property
    def step_age_ns(self) -> int | None:
        """Time from the last step to the death; None if it is not known."""
        return max(self.time_ns - self.step_ns, 0) if self.observed and self.step_ns is not None else None

    @property
    def rate(self) -> float | None:
        """Steps per second, evaluations and checkpoints between steps included; None if it is not known."""
        if self.step_time.count and self.step_time.sum > 0:
            return self.step_time.count / self.step_time.sum
        stepping_ns = sum(time_ns for name, time_ns in self.activities.items() if name not in _NO_STEPS)
        stepping_ns -= self.step_age_ns or 0
        return self.made * 1e9 / stepping_ns if self.made and stepping_ns > 0 else None


def job_of(attributes: Mapping[str, Any], launcher: str) -> JobName:
    """Return the names of the job of a process.

    Args:
        attributes: Attributes of the resource.
        launcher: Identity of the parent process; empty if it is not known.
    """
    namespace, service, run = (
        str(attributes.get(name, ""))[:LONGEST] for name in ("service.namespace", "service.name", "training.run.id")
    )
    return JobName(namespace, service, run, "" if run else launcher)


def whole(value: object) -> int | None:
    """Return a number that is at least 0, such as a rank in an attribute; None if the value is another one."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _TOO_LONG else None


def step_total(series: Iterable[tuple[str, Mapping[str, Any], Total]]) -> tuple[Total, tuple[StageTotal, ...]]:
    """Return the step time and the stages among the series of a process.

    Args:
        series: Stat name, attributes, and total of each series. Several series of one name and stage are added up.
    """
    step = Total()
    stages: dict[tuple[str, str, bool], Total] = {}
    for name, attributes, total in series:
        if total.count <= 0 or not math.isfinite(total.sum):
            continue
        if name == STEP_TIME:
            step = step.plus(total)
        elif name in {STAGE_TIME, DEVICE_STAGE_TIME}:
            texts = [str(attributes.get(each, ""))[:LONGEST] for each in ("training.stage", "training.group")]
            key = texts[0], texts[1], name == DEVICE_STAGE_TIME
            stages[key] = stages.get(key, Total()).plus(total)
    named = [StageTotal(*key, total) for key, total in sorted(stages.items()) if key[0]]
    return step, tuple(named[:MOST])
