"""The report as JSON, for programs.

The form is documented in docs/reference/commands.md; later versions only add fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel import Severity
from monitel.console.text import rfc3339, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.blackbox.activity import Stage
    from monitel.console.autopsy.comparison import Comparison
    from monitel.console.autopsy.findings import Findings
    from monitel.console.autopsy.kernel_state import KernelState

_VERSION = 1
_SEVERITIES = {int(each): each.name for each in Severity}
_EXCEPTION = "type", "message", "place"


def report_as_json(
    processes: Sequence[Findings], comparisons: Sequence[Comparison], problems: Sequence[str], now_ns: int
) -> str:
    """Return the report as ASCII: one object. Numbers that JSON does not have are strings: NaN, Infinity."""
    report = {
        "version": _VERSION,
        "time": rfc3339(now_ns),
        "processes": [_process(each) for each in processes],
        "jobs": [_comparison(each) for each in comparisons],
        "problems": list(problems),
    }
    return to_json(report)


def _process(found: Findings) -> dict[str, Any]:
    left = found.undelivered
    return {
        "state": found.state.value,
        **found.identity._asdict(),
        "source": str(found.source),
        "spool": None if found.spool is None else str(found.spool),
        "collected_in": None if found.collected_in is None else str(found.collected_in),
        "started": rfc3339(found.started_ns),
        "last_seen": rfc3339(found.seen_ns),
        "death": found.death or None,
        "exception": None if found.exception is None else dict(zip(_EXCEPTION, found.exception, strict=True)),
        "replaced_by_exec": found.replaced,
        "silence": list(found.silence),
        "step": found.step,
        "step_age_seconds": _seconds(found.step_age_ns),
        "steps_per_second": found.steps_per_second,
        "activity": found.activity or None,
        "activity_age_seconds": _seconds(found.activity_age_ns),
        "stage": stage_as_json(found.stage),
        "waits": [
            {"key": each.key, "seconds": _seconds(each.age_ns), "thread": each.thread or None} for each in found.waits
        ],
        "waits_left_out": found.waits_left_out,
        "ranges": [
            {"name": each.name, "seconds": _seconds(each.age_ns), "thread": each.thread or None}
            for each in found.ranges
        ],
        "windows": [
            {
                **{name: getattr(each, name) for name in ("name", "attributes", "unit", "count", "sum", "mean")},
                **{name: getattr(each, name) for name in ("last", "min", "max", "first_step", "last_step")},
                "start": rfc3339(each.start_ns),
            }
            for each in found.windows
        ],
        "counters": [each._asdict() for each in found.counters],
        "events": [
            {
                "time": rfc3339(each.time_ns),
                "severity": _SEVERITIES.get(each.severity, str(each.severity)),
                "name": each.name,
                "attributes": each.attributes,
            }
            for each in found.events
        ],
        "not_delivered": left._asdict(),
        "stacks": found.stacks or None,
        "kernel": None if found.kernel is None else _kernel(found.kernel),
        "problems": found.problems,
    }


def stage_as_json(stage: Stage | None) -> dict[str, Any] | None:
    """Return a stage in progress in the types of JSON."""
    if stage is None:
        return None
    return {
        "name": stage.name,
        "seconds": _seconds(stage.age_ns),
        "waits_for_ranks": stage.waits,
        "thread": stage.thread or None,
    }


def _kernel(kernel: KernelState) -> dict[str, Any]:
    return {
        "state": kernel.letter,
        "waiting_in": kernel.waiting_in or None,
        "threads": dict(kernel.threads),
        "cpu_seconds": kernel.cpu_ns / 1e9,
        "tracer": kernel.tracer or None,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    names = next(iter(comparison.ranks.values())).identity
    return {
        **{name: getattr(names, name) for name in ("service", "run", "attempt", "world_size")},
        "ranks": list(comparison.ranks),
        "dead": list(comparison.dead),
        "late": sorted({rank for wait in comparison.waits for rank in wait.late}),
        "waits": [
            {
                "key": each.key,
                "waiting": [{"rank": rank, "seconds": _seconds(age_ns)} for rank, age_ns in each.waiting.items()],
                "missing": each.missing,
            }
            for each in comparison.waits
        ],
        "last_steps": [{"step": step, "ranks": ranks} for step, ranks in comparison.steps.items()],
    }


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
