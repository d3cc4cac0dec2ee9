"""One model of a process: what the snapshot of its record holds, what it does now, and how it ended.

All views are functions of it. A period of its life is ``later.since(earlier)``.
"""

from __future__ import annotations

import operator
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from monitel import Severity
from monitel.attributes import whole
from monitel.blackbox.activity import Doing, Wait
from monitel.blackbox.context_page import quantile
from monitel.blackbox.death import Death, Deaths, End, death_of
from monitel.blackbox.discovery import SILENT_NS
from monitel.blackbox.forms import DEVICE_STAGE_TIME, NUMBER, REPORTED, STEP_TIME, Definition, LogRecord
from monitel.blackbox.journal import Account
from monitel.blackbox.process import Owner
from monitel.blackbox.reading import Record
from monitel.runs.history import RunTime
from monitel.stats.window import OpenWindow
from monitel.training.activities import Stage
from monitel.training.counters import DOWN, LOST

STEPS, SKIPPED, TIME = "training.steps", "training.steps.skipped", "training.time"
RECOMPILATIONS, RECOMPILING = "training.recompilations", "training.recompilation.time"
COMPLETED = "completed"
#: Statuses of processes that somebody else has ended.
STOPPED = frozenset({"interrupted", "preempted"})

#: The begin of the words for a death by ``os._exit(0)``: the program has ended as it wanted.
EXITED = "ended with exit code 0 "
#: The words for the end of the telemetry of a process that has replaced its program.
EXEC = "replaced by exec"
_CTRL_C = "killed by SIGINT"
_NOWHERE = Path()
_SEVERITIES = frozenset(Severity)
_OUTSIDE = frozenset({"startup", "init", "shutdown", DOWN, LOST})  # activities outside of the training loop
_FEW = 10  # samples of a window
_LONGEST = 200  # characters of a name
_INSTALLED = re.compile(r"[/\\]((site|dist)-packages|python3\.\d+|src[/\\]monitel(_\w+)?)[/\\]|^<")


class State(str, Enum):
    ALIVE = "alive"
    SILENT = "silent"  # it runs, or is stopped, and its heartbeat is too old
    DEAD = "dead"
    ENDED = "ended"  # by itself, or it has ended its telemetry


class JobName(NamedTuple):
    """The names that the processes of one job have in common; empty if there is none."""

    namespace: str = ""
    service: str = ""
    run: str = ""

    @property
    def own_service(self) -> str:
        """The service; empty if it is the name that OpenTelemetry gives a process without one."""
        return "" if self.service.startswith("unknown_service") else self.service


class Total(NamedTuple):
    """The samples of one series, added up."""

    count: int = 0  # type: ignore[assignment]  # hides tuple.count
    sum: float = 0.0  # in the unit of the series
    windows: int = 0  # of which the largest sample is known
    largest: float = 0.0  # sum of these samples

    def plus(self, other: Total) -> Total:
        return Total(*map(operator.add, self, other))

    def since(self, earlier: Total) -> Total:
        """Return the samples after an earlier total. A total that has fallen has begun again."""
        rest = Total(*map(operator.sub, self, earlier))
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


class StageKey(NamedTuple):
    group: str  # of ranks; empty for all
    stage: str
    device: bool = False  # it is measured there


class PastEvent(NamedTuple):
    time_ns: int
    severity: int  # of OpenTelemetry
    name: str
    attributes: Mapping[str, Any]

    @property
    def level(self) -> str:
        """The name of the severity; its number if it has none."""
        return Severity(self.severity).name if self.severity in _SEVERITIES else str(self.severity)


@dataclass(frozen=True)
class Process:
    """A process at one moment: now, or at its end. A number that is not known is None, a text is empty.

    Times are Unix ns, 0 if unknown. Ages are ns before the moment. Totals are those of its life up to its last
    snapshot, or of a period.
    """

    # Its names. Attributes ``training.*`` of torch.distributed come before those of the resource.
    job: JobName = JobName()  # noqa: RUF009  immutable
    box: Path = _NOWHERE  # the box, or the spool that holds its record
    owner: Owner | None = None
    parent: str = ""  # the key of the process that has started it
    pid: int | None = None  # in its namespace
    host: str = ""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    attempt: int | None = None

    # Its state, and how it ended.
    state: State = State.ALIVE
    death: str = ""  # in words such as ``killed by SIGKILL``
    status: str = ""  # ``completed``, ``failed``, ``interrupted`` or ``preempted``
    exception: tuple[str, str, str] | None = None  # type, message and place of the last one that was not caught
    time_ns: int = 0  # the moment
    started_ns: int = 0  # begin of its record
    before_ns: int = 0  # begin of its run, if it has had another run before; otherwise 0
    seen_ns: int = 0  # the end, or the last sign of life
    observed: bool = False  # another process has seen the end

    # What it does. Waits are the longest first, ranges the outermost first.
    step: int | None = None  # that it has set itself
    step_age_ns: int | None = None
    activity: str = ""
    activity_age_ns: int | None = None
    stage: Stage | None = None
    thread: int = 0  # of the training; 0 if unknown
    waits: tuple[Wait, ...] = ()
    ranges: tuple[Wait, ...] = ()

    # Totals. Recompilations are those of code that was compiled before; their time is that of all threads.
    first_step: int | None = None  # that the program has set
    made: int = 0  # steps, skipped ones included
    unmade_ns: int = 0  # of the activities of the loop, after the last of these steps
    skipped: int = 0  # optimizer steps
    step_time: Total = NO_SAMPLES  # seconds from step to step
    stages: Mapping[StageKey, Total] = field(default_factory=dict)  # seconds
    activities: Mapping[str, int] = field(default_factory=dict)  # ns
    recompilations: int = 0
    recompiling_ns: int = 0

    # Numbers of a row: shares are those of the last ten seconds that were observed.
    step_p50: float | None = None  # seconds
    step_p99: float | None = None
    rate: float | None = None  # steps per second over the last ten seconds
    data: float | None = None  # share of waiting for data
    waiting: float | None = None  # share of waiting for other ranks
    goodput: float | None = None  # of the run over all attempts
    cpu: float | None = None  # cores
    memory: int | None = None  # resident bytes
    gpu: float | None = None  # share of time in which its GPU, or the busiest of several, was busy with any process
    gpu_memory: int | None = None  # bytes of the process on all GPUs
    value_name: str = ""
    value: float | None = None
    event: PastEvent | None = None  # the last one, other than logged numbers
    problem: str = ""  # why the record cannot be read

    # What is left of it.
    run_time: RunTime | None = None  # over all attempts; of rank zero
    accounts: Mapping[str, Account] = field(default_factory=dict)
    spool: str = ""
    store: str = ""  # the folder of its run, which may be missing
    stored: bool = False  # something is in the spool, even if that is not an item
    collected: bool = False  # the record was moved to ``box``
    events: Sequence[PastEvent] = ()  # that no backend has
    stacks: str = ""  # live, if it was asked; of a crash; otherwise of the main thread in the last second
    silence: Sequence[str] = ()  # sentences about why a silent process has no heartbeat
    kernel: Any = None  # its KernelState
    record: Record | None = None
    earlier: Process | None = None  # the report of its earlier pipeline, which has its own items

    @property
    def reports(self) -> list[Process]:
        return [*(self.earlier.reports if self.earlier else ()), self]

    @property
    def key(self) -> str:
        """Process id and start, as ``parent`` has them."""
        return "" if self.owner is None else f"{self.owner.pid}-{self.owner.start}"

    @property
    def runs(self) -> bool:
        return self.state in {State.ALIVE, State.SILENT}

    @property
    def makes_steps(self) -> bool:
        return self.made > 0 or self.step is not None

    @property
    def has_died(self) -> bool:
        """True if it has ended without a shutdown, be it by ``os._exit(0)``."""
        return self.state is State.DEAD or bool(self.death)

    @property
    def how(self) -> str:
        """The words for its end."""
        unknown = "died of an unknown cause" if self.state is State.DEAD else "ended for an unknown reason"
        return self.death or self.status or unknown

    @property
    def is_replaced(self) -> bool:
        """True if it has called ``exec``: its telemetry has ended, the process has not."""
        return self.death == EXEC

    @property
    def silent_ns(self) -> int:
        """Time since the last sign of life; 0 if unknown."""
        return max(self.time_ns - self.seen_ns, 0) if self.seen_ns and self.state is not State.ALIVE else 0

    @property
    def age_ns(self) -> int | None:
        """Time since the begin of the record of a process that runs."""
        return max(self.time_ns - self.started_ns, 0) if self.runs and self.started_ns else None

    @property
    def loop_ns(self) -> int:
        return sum(time_ns for name, time_ns in self.activities.items() if name not in _OUTSIDE and time_ns > 0)

    @property
    def usual_step(self) -> float | None:
        return self.step_p50 or self.mean_step

    @property
    def mean_step(self) -> float | None:
        """The mean seconds from step to step, evaluations and checkpoints between steps included."""
        if self.step_time.count:
            seconds = self.step_time.sum / self.step_time.count
        else:
            timed = self.made if self.made > 1 else 0  # the begin of a single step is unknown
            seconds = (self.loop_ns - self.unmade_ns) / 1e9 / timed if timed else 0.0
        return seconds if seconds > 0 else None

    @property
    def mean_rate(self) -> float | None:
        return None if self.mean_step is None else 1 / self.mean_step

    @property
    def failure(self) -> str:
        """The exception in words, such as ``ValueError: no file (train.py:30)``; empty without one."""
        if self.exception is None:
            return ""
        kind, message, place = self.exception
        first = message.strip().partition("\n")[0]
        return f"{kind}{f': {first}' if first else ''}{f' ({place})' if place else ''}"

    @property
    def last_place(self) -> str:
        """File, line and function of the application in the thread that crashed; else in the main thread at the end."""
        stack = self.stacks[max(self.stacks.find("Current thread "), 0) :].partition("\n\n")[0]
        frames = re.findall(r'^  File "(.*)", line (\d+) in (\S+)$', stack, re.MULTILINE)
        own = [each for each in frames if not _INSTALLED.search(each[0])] or frames
        return "{}:{} in {}".format(*own[0]) if own else ""

    @property
    def open_windows(self) -> list[tuple[Definition, OpenWindow]]:
        """The newest window of each Stat, unless a backend has it, in the order of their names."""
        if self.record is None or self.collected:
            return []
        last = self.record.settled.get("metrics", 0)
        newest = {each.window.serial: each for each in self.record.windows if not 0 < each.item <= last}
        found = [(each.series, each.window) for each in newest.values()]
        return sorted(found, key=lambda pair: (pair[0].name, str(pair[0].attributes)))

    @property
    def undelivered(self) -> dict[str, int]:
        """The telemetry that no backend has acknowledged.

        It is the number of ``items`` (windows, logged numbers and spans), ``events``, open ``windows``, and of
        ``samples`` in these. Of a record that was collected, the items include everything.
        """
        waiting = Counter({} if self.record is None else self.record.waiting)
        if self.collected:
            return {"items": waiting.total(), "events": 0, "windows": 0, "samples": 0}
        opened = [] if self.record is None or "metrics" in self.record.off else self.record.open_windows
        samples = sum(each.window.count for each in opened)
        items = waiting["metrics"] + waiting["traces"]
        return {"items": items, "events": waiting["logs"], "windows": len(opened), "samples": samples}

    def but(self, **changes: Any) -> Process:
        """Return the process with other fields. ``dataclasses.replace()`` takes ten times as long."""
        found = object.__new__(Process)
        vars(found).update(vars(self), **changes)
        return found

    def since(self, earlier: Process) -> Process:
        """Return the process with the totals of the time between two moments."""
        rests = {key: total.since(earlier.stages.get(key, NO_SAMPLES)) for key, total in self.stages.items()}
        return self.but(
            made=max(self.made - earlier.made, 0),
            unmade_ns=self.unmade_ns - earlier.unmade_ns,
            skipped=0,
            first_step=None,
            step_time=self.step_time.since(earlier.step_time),
            stages={key: rest for key, rest in rests.items() if rest.count},
            activities={
                name: rest
                for name, time_ns in self.activities.items()
                if (rest := time_ns - earlier.activities.get(name, 0)) > 0
            },
            recompilations=max(self.recompilations - earlier.recompilations, 0),
            recompiling_ns=max(self.recompiling_ns - earlier.recompiling_ns, 0),
        )

    def after(self, earlier: Process) -> Process:
        """Return this process after an earlier pipeline. If that was of the same run, its series are added."""
        if self.before_ns != earlier.before_ns:
            return self.but(earlier=earlier)
        totals = {key: total.plus(self.stages.get(key, NO_SAMPLES)) for key, total in earlier.stages.items()}
        return self.but(
            rank=earlier.rank if self.rank is None else self.rank,
            first_step=earlier.first_step if self.first_step is None else self.first_step,
            step_time=earlier.step_time.plus(self.step_time),
            stages={**self.stages, **totals},
            run_time=self.run_time or earlier.run_time,
            earlier=earlier,
        )


def process_of(record: Record, *, alive: bool, deaths: Deaths | None = None) -> Process:
    """Return the process of a record as it is now, or at its death, which the caller may have observed."""
    return now(record) if alive else dead(record, death_of(record, deaths or Deaths()))


def life_of(record: Record) -> Process:
    """Return the names of a process and its totals up to its snapshot."""
    attributes, counters, doing, owner = record.attributes, record.counted, record.doing, record.owner
    counted = {name: total for name, labels, total in counters if not labels}
    activities: dict[str, int] = {}
    for name, labels, total in counters:
        if name == TIME and total and (activity := labels.get("training.activity")) is not None:
            key = "step" if activity == LOST else str(activity)[:_LONGEST]  # steps that it makes again are lost there
            activities[key] = activities.get(key, 0) + round(total * 1e9)
    step_time, stages = _times(record)
    activity, activity_s = doing.get("activity") or ("", 0.0)
    unmade_s = (doing.get("step_seconds") or 0.0) - (activity_s if activity in _OUTSIDE else 0.0)
    rank, world_size = doing.get("member") or (attributes.get("training.rank"), attributes.get("training.world_size"))
    values = last_values(record)
    loss = min(values, default=(False, False, 0, ""))
    return Process(
        job=JobName(*map(_text, map(attributes.get, ("service.namespace", "service.name", "training.run.id")))),
        box=record.path,
        store=record.store,
        owner=owner,
        parent=str(record.identity.get("parent", "")),
        pid=whole(owner.pid),
        host=_text(attributes.get("host.name")) or owner.host,
        rank=whole(rank),
        local_rank=whole(attributes.get("training.local_rank")),
        world_size=whole(world_size),
        attempt=whole(attributes.get("training.attempt")),
        time_ns=record.time_ns,
        started_ns=record.created_ns,
        before_ns=record.before_ns,
        seen_ns=record.time_ns,
        thread=whole(doing.get("thread")) or 0,
        exception=None if record.exception is None else (*map(str, record.exception),),  # type: ignore[arg-type]
        first_step=doing.get("first_step"),
        made=int(counted.get(STEPS, 0) + counted.get(SKIPPED, 0)) or doing.get("made", 0),
        unmade_ns=round(max(unmade_s, 0.0) * 1e9),
        skipped=int(counted.get(SKIPPED, 0)),
        step_time=step_time,
        stages=stages,
        step_p50=doing.get("step_p50"),
        activities=activities,
        recompilations=int(counted.get(RECOMPILATIONS, 0)),
        recompiling_ns=int(counted.get(RECOMPILING, 0) * 1e9),
        goodput=doing.get("goodput"),
        value_name=loss[-1],
        value=values.get(loss),
        event=None if record.last_event is None else event_of(record.last_event),
        spool=str(record.spool or ""),
        stacks=record.stacks or record.stack,
        record=record,
    )


def now(record: Record) -> Process:
    """Return the process of a record as it is now. Ages grow with the monotonic clock, which is that of its page."""
    at_ns = record.page.unix_ns(time.monotonic_ns()) or time.time_ns()
    seen_ns = record.page.heartbeat_unix_ns or at_ns  # without a page, the lock shows that the process runs
    state = State.SILENT if at_ns - seen_ns > SILENT_NS else State.ALIVE
    return doing_at(record, at_ns).but(state=state, seen_ns=min(seen_ns, at_ns), stacks="")


def dead(record: Record, death: Death) -> Process:
    """Return the process of a record at its death."""
    found, how = doing_at(record, death.time_ns, death.doing), "" if death.end == End() else death.end.how
    return found.but(
        time_ns=time.time_ns(),
        seen_ns=death.time_ns,
        observed=death.end.time_ns > 0,
        **(REPLACED if record.owner.lives_on else ended_by(how)),
        stacks=death.stacks,
        exception=found.exception or death.exception,
    )


#: State and death of a process that has called ``exec``.
REPLACED = {"state": State.ENDED, "death": EXEC}


def ended_by(how: str) -> dict[str, Any]:
    """Return state, death and status of a process without a shutdown: Ctrl-C interrupts it, in its shutdown too."""
    if how == _CTRL_C:
        return {"state": State.ENDED, "death": "", "status": "interrupted"}
    return {"state": State.ENDED if how.startswith(EXITED) else State.DEAD, "death": how}


def doing_at(record: Record, at_ns: int, doing: Doing | None = None) -> Process:
    """Return the process of a record with what it did at a time, Unix ns, as the record has it, or as given."""
    life, page, known = life_of(record), record.page, record.doing.get("step")
    made, unmade_ns, times = life.made, life.unmade_ns, page.step_times
    set_ns = None if page.step_ns is None else page.unix_ns(page.step_ns)
    if page.step is not None and set_ns is not None and set_ns > life.time_ns:  # steps since the snapshot
        last = page.step if known is None else known
        again = known is None or page.step < last  # steps may begin again in each epoch
        made += max(sum(times) - record.doing.get("timed", 0) + again, page.step - last)
        unmade_ns = life.time_ns - set_ns  # the loop has gone on
    usual = quantile(times, 0.5) or life.step_p50
    found = (doing or record.doing_at(at_ns))._asdict()
    return life.but(**found, time_ns=at_ns, made=made, unmade_ns=unmade_ns, step_p50=usual)


def _times(record: Record) -> tuple[Total, dict[StageKey, Total]]:
    """Return the step time and the stages: totals up to the snapshot, and the windows since then."""
    found = [(each[0], Total(*each[1:])) for each in record.reported]
    for each in record.windows:
        if each.series.name in REPORTED:
            numbers = each.window
            found.append((each.series, Total(numbers.count, numbers.sum, 1, numbers.max)))
    step, stages = NO_SAMPLES, dict[StageKey, Total]()
    for series, total in found:
        group, stage = (_text(series.attributes.get(each)) for each in ("training.group", "training.stage"))
        if total.count and series.name == STEP_TIME:
            step = step.plus(total)
        elif total.count and stage:
            key = StageKey(group, stage, series.name == DEVICE_STAGE_TIME)
            stages[key] = stages.get(key, NO_SAMPLES).plus(total)
    return step, stages


def last_values(record: Record, show: str | None = None) -> dict[tuple[bool, bool, int, str], float]:
    """Return the last samples of open windows, and the last logged numbers: of a name, or those of losses.

    The keys end with the names, and have the order in which one is chosen: an exact name comes before one that ends
    with it, a Stat before a logged number, and its first series before later ones.
    """
    exact = show or "loss"
    known = [(each.series, each.number, each.window.last) for each in record.windows]  # in the order of their ends
    known += [(series, 0, value) for series, _, value in sorted(record.numbers, key=lambda each: each[1])]
    return {
        (series.name != exact, series.kind == NUMBER, number, series.name): value
        for series, number, value in known
        if series.name == exact or (show is None and series.name.endswith(exact))
    }


def event_of(plain: LogRecord) -> PastEvent:
    """Return a log record as an event. A body that is a mapping becomes part of the data."""
    step = {} if plain.step is None else {"training.step": plain.step}
    data = {**(plain.body if isinstance(plain.body, dict) else {}), **step, **plain.attributes}
    if isinstance(plain.body, str):
        data = {"message": plain.body, **data}
    return PastEvent(plain.time_ns or plain.observed_ns, plain.severity, plain.name or plain.scope or "log", data)


def _text(value: object) -> str:
    return "" if value is None else str(value)[:_LONGEST]
