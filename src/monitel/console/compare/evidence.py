"""The numbers of processes: from spools, and from black boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from monitel.blackbox.death import NAME as DIED
from monitel.blackbox.forms import STEP_TIME
from monitel.console.autopsy.death_events import cause_of
from monitel.console.autopsy.records import event_of_plain, whole
from monitel.console.compare.run import Number, can_be_counted
from monitel.console.values.latest import STEPS, attributes_of, scalars_of
from monitel.run_config import flat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from monitel.blackbox.forms import LogRecord, PlainCounter
    from monitel.console.values.run_values import Key, Scalar

_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_SCOPE, _TIME, _STEP = "monitel", "training.time", "training.step"
_CONFIG, _STARTED, _ENDED, _LOG = "run.config", "run.started", "run.ended", "run.log"
_PROCESS = ("service.instance.id", "host.name", "process.pid")


@dataclass
class Process:
    """The numbers of one process.

    Attributes:
        attributes: Attributes of its resource.
        gauges: Time, and value, of each gauge.
        totals: Time, and total, of each sum.
        activities: Time, and seconds, of each activity.
        config: Its configuration by dotted name.
        started_ns: Its start, Unix ns; 0 if it is not known.
        last_ns: Its last sign of life, Unix ns.
        status: The status of its run; empty if it is not known.
        death: How it died, in words; empty if it did not die.
        alive: It runs; None if that is not known.
        spool_dir: Its spool; None if it is not known.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    gauges: dict[Key, tuple[int, Number]] = field(default_factory=dict)
    totals: dict[Key, tuple[int, Number]] = field(default_factory=dict)
    activities: dict[str, tuple[int, float]] = field(default_factory=dict)
    config: dict[str, Scalar] = field(default_factory=dict)
    started_ns: int = 0
    last_ns: int = 0
    status: str = ""
    death: str = ""
    alive: bool | None = None
    spool_dir: Path | None = None

    @property
    def run(self) -> str:
        """The run id; empty if there is none."""
        return str(self.attributes.get("training.run.id", ""))

    @property
    def pid(self) -> int | None:
        """The process id; None if it is not known."""
        return whole(self.attributes.get("process.pid"))

    @property
    def rank(self) -> int | None:
        """The rank; None if it is not known."""
        return whole(self.attributes.get("training.rank"))

    @property
    def step(self) -> int | None:
        """The last training step; None if it is not known."""
        found = self.gauges.get((_STEP, ()))
        return None if found is None or not can_be_counted(found[1].value) else int(found[1].value)

    def add_step(self, step: int, time_ns: int) -> None:
        """Set the last training step."""
        self.gauges[_STEP, ()] = time_ns, Number(step, "{step}")

    @property
    def made(self) -> int | None:
        """The number of steps that were counted; None if nothing has counted them."""
        found = [self.totals[name, ()][1].value for name in STEPS if (name, ()) in self.totals]
        counted = [each for each in found if can_be_counted(each)]
        return int(sum(counted)) if counted else None

    @property
    def timed(self) -> tuple[int, float]:
        """The number of steps with a duration, and the sum of the durations in seconds."""
        count, seconds = (self.totals.get((f"{STEP_TIME}.{suffix}", ())) for suffix in ("count", "sum"))
        if count is None or seconds is None or not can_be_counted(count[1].value):
            return 0, 0.0
        return int(count[1].value), seconds[1].value


def add_metrics(process: Process, resource_metrics: Any) -> None:
    """Add the numbers in a message to a process; the oldest message first."""
    for scope in resource_metrics.scope_metrics:
        if scope.scope.name == _SCOPE:
            for metric in scope.metrics:
                _add_metric(process, metric)


def add_counters(process: Process, counters: Iterable[PlainCounter], time_ns: int) -> None:
    """Add the counters of a process at a time, Unix ns."""
    for name, unit, _, attributes, total, *_ in counters:
        key = name, scalars_of(attributes)
        if name != _TIME:
            process.totals[key] = time_ns, Number(total, unit, True)
        elif can_be_counted(total):
            process.activities[str(dict(key[1]).get("training.activity", ""))] = time_ns, total


def identity(attributes: Mapping[str, Any]) -> str:
    """Return the identity of a process by the attributes of its resource."""
    return " ".join(str(attributes.get(name, "")) for name in _PROCESS)


def _add_metric(process: Process, metric: Any) -> None:
    kind = metric.WhichOneof("data")
    if kind not in {"gauge", "sum"}:
        return
    data = getattr(metric, kind)
    is_delta = kind == "sum" and data.aggregation_temporality == _DELTA
    into = process.gauges if kind == "gauge" else process.totals
    for time_ns, key, value in _points(metric, data):
        process.last_ns = max(process.last_ns, time_ns)
        if metric.name == _TIME and not can_be_counted(value):
            continue  # damaged
        if metric.name == _TIME:
            activity = str(dict(key[1]).get("training.activity", ""))
            before_ns, seconds = process.activities.get(activity, (0, 0.0))
            if is_delta or time_ns >= before_ns:
                process.activities[activity] = max(time_ns, before_ns), value + (seconds if is_delta else 0)
        else:
            before_ns, before = into.get(key, (0, Number(0)))
            if is_delta or time_ns >= before_ns:
                whole_value = value + (before.value if is_delta else 0)
                into[key] = max(time_ns, before_ns), Number(whole_value, metric.unit, kind == "sum")


def _points(metric: Any, data: Any) -> Iterator[tuple[int, Key, float]]:
    for point in data.data_points:
        if value := point.WhichOneof("value"):
            yield point.time_unix_nano, (metric.name, attributes_of(point.attributes)), getattr(point, value)


def add_event(process: Process, plain: LogRecord) -> None:
    """Add an event to a process."""
    event = event_of_plain(plain)
    process.last_ns = max(process.last_ns, event.time_ns)
    if event.name == _CONFIG:
        process.config.update(flat(event.attributes))
    elif event.name == _STARTED:
        process.started_ns = event.time_ns
    elif event.name == _ENDED:
        process.status = str(event.attributes.get("run.status", ""))
    elif event.name == DIED:
        process.death = cause_of(event.attributes) or "died"
        if (step := whole(event.attributes.get(_STEP))) is not None:
            process.add_step(step, event.time_ns)
    elif event.name == _LOG:
        _add_logged(process, plain, event.time_ns)


def _add_logged(process: Process, plain: LogRecord, time_ns: int) -> None:
    """Add the numbers of one ``monitel.log()`` call, whose gauges a process that was killed may not have recorded."""
    attributes = scalars_of({key: each for key, each in plain.attributes.items() if key != _STEP})
    for name, value in (plain.body if isinstance(plain.body, dict) else {}).items():
        before_ns, before = process.gauges.get((name, attributes), (0, Number(0)))
        if isinstance(value, int | float) and time_ns >= before_ns:
            process.gauges[name, attributes] = time_ns, Number(value, before.unit)
