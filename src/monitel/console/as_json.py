"""The processes as JSON, for programs: the report of ``monitel autopsy``, and the rows of ``monitel top``.

The forms are documented in docs/reference/commands.md; later versions only add fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from monitel.text import rfc3339, to_json

if TYPE_CHECKING:
    from monitel.blackbox.activity import Wait
    from monitel.console.job import Job
    from monitel.console.live import Look
    from monitel.runs.process import PastEvent, Process
    from monitel.training.activities import Stage

_VERSION = 1
#: Fields with the attributes of the process. Empty texts are null.
_FIELDS = {
    **{each: each for each in ("pid", "host", "rank", "local_rank", "world_size", "attempt", "step", "death")},
    **{each: each for each in ("activity", "goodput", "value_name", "value", "problem")},
    "step_seconds_p50": "step_p50",
    "step_seconds_p99": "step_p99",
    "data_share": "data",
    "wait_share": "waiting",
    "cpu_cores": "cpu",
    "memory_bytes": "memory",
    "gpu_share": "gpu",
    "gpu_memory_bytes": "gpu_memory",
}


def report_as_json(processes: Sequence[Process], jobs: Iterable[Job], problems: Sequence[str], now_ns: int) -> str:
    """Return the report of ``monitel autopsy``: one object."""
    report = {
        "version": _VERSION,
        "time": rfc3339(now_ns),
        "processes": [_whole(each) for each in processes],
        "jobs": [_job(each) for each in jobs],
        "problems": list(problems),
    }
    return to_json(report)


def look_as_json(look: Look, processes: Iterable[Process], *, indent: int | None = None) -> str:
    """Return rows of ``monitel top`` in their order: a list of objects."""
    verdicts = {each.box: job.verdict for job in look.jobs for each in job.processes}
    at = {"time": rfc3339(look.time_ns)}
    rows = [{**at, **_row(each), "verdict": verdicts[each.box]._asdict()} for each in processes]
    return to_json(rows, indent=indent)


def _row(process: Process) -> dict[str, Any]:
    """Return the fields of a process that both commands have."""
    stage, job, values = process.stage, process.job, {name: getattr(process, of) for name, of in _FIELDS.items()}
    return {
        "state": process.state.value,
        **{name: None if value == "" else value for name, value in values.items()},
        **{name: getattr(job, name) or None for name in ("namespace", "service", "run")},
        "box": str(process.box),
        "started": rfc3339(process.started_ns),
        "last_seen": rfc3339(process.seen_ns),
        "steps_per_second": process.rate,
        "exception": process.exception and dict(zip(("type", "message", "place"), process.exception, strict=True)),
        "step_age_seconds": _seconds(process.step_age_ns),
        "activity_age_seconds": _seconds(process.activity_age_ns),
        "stage": stage and {**_in_progress(stage, "name"), "waits_for_ranks": stage.waits},
        "waits": [_in_progress(each, "key") for each in process.waits],
        "event": process.event and _event(process.event),
    }


def _whole(process: Process) -> dict[str, Any]:
    """Return everything about a process."""
    kernel, record = process.kernel, process.record
    return {
        **_row(process),
        "steps_per_second": process.mean_rate if process.rate is None else process.rate,
        "spool": process.spool if process.stored else None,
        "collected_in": str(process.box) if process.collected else None,
        "replaced_by_exec": process.is_replaced,
        "silence": list(process.silence),
        "ranges": [_in_progress(each, "name") for each in process.ranges],
        "windows": [
            {
                **{name: getattr(series, name) for name in ("name", "attributes", "unit")},
                **{name: getattr(numbers, name) for name in ("count", "sum", "last", "min", "max")},
                **{name: getattr(numbers, name) for name in ("first_step", "last_step")},
                "mean": numbers.sum / numbers.count if numbers.count else float("nan"),
                "start": rfc3339(numbers.start_ns),
            }
            for series, numbers in process.open_windows
        ],
        "counters": [
            {"name": name, "attributes": attributes, "value": total}
            for name, attributes, total in (record.counted if record else ())
        ],
        "events": [_event(each) for each in process.events],
        "not_delivered": process.undelivered,
        "stacks": process.stacks or None,
        "kernel": kernel
        and {"state": kernel.letter, "waiting_in": kernel.waiting_in or None, "cpu_seconds": kernel.cpu_ns / 1e9},
    }


def _job(job: Job) -> dict[str, Any]:
    ranks = {each.rank: each for each in job.processes if each.rank is not None}
    return {
        "service": job.name.service,
        "run": job.name.run,
        "attempt": job.attempt,
        "world_size": job.world_size or None,
        "ranks": [*ranks],
        "verdict": job.verdict._asdict(),
        "dead": [rank for rank, each in ranks.items() if each.state.value == "dead"],
    }


def _event(event: PastEvent) -> dict[str, Any]:
    at = rfc3339(event.time_ns)
    return {"time": at, "severity": event.level, "name": event.name, "attributes": event.attributes}


def _in_progress(found: Wait | Stage, name: str) -> dict[str, Any]:
    return {name: found[0], "seconds": _seconds(found.age_ns), "thread": found.thread or None}


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
