"""The rows as JSON, for programs.

The form is documented in docs/reference/commands.md; later versions only add fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel import Severity
from monitel.console.autopsy.as_json import stage_as_json
from monitel.console.text import rfc3339, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel.console.autopsy.findings import PastEvent
    from monitel.console.top.rank import Look, Rank
    from monitel.console.verdict.rules import Verdict

_SEVERITIES = {int(each): each.name for each in Severity}


def look_as_json(look: Look, ranks: Iterable[Rank], *, indent: int | None = None) -> str:
    """Return rows as ASCII: a list of objects. Numbers that JSON does not have are strings: NaN, Infinity.

    Args:
        look: The look that the rows are from.
        ranks: The rows, in their order.
        indent: Spaces per level; None for one line.
    """
    verdicts = {rank.box: job.verdict for job in look.jobs for rank in job.ranks}
    rows = [_row(rank, verdicts[rank.box], look.time_ns) for rank in ranks]
    return to_json(rows, indent=indent)


def _row(rank: Rank, verdict: Verdict, time_ns: int) -> dict[str, Any]:
    return {
        "time": rfc3339(time_ns),
        "pid": rank.pid,
        "rank": rank.rank,
        "step": rank.step,
        "state": rank.state.value,
        "death": rank.death or None,
        "last_seen": rfc3339(rank.seen_ns),
        "host": rank.host or None,
        "namespace": rank.job.namespace or None,
        "service": rank.job.service or None,
        "run": rank.job.run or None,
        "attempt": rank.attempt,
        "world_size": rank.world_size,
        "step_age_seconds": _seconds(rank.step_age_ns),
        "steps_per_second": rank.rate,
        "step_seconds_p50": rank.step_p50,
        "step_seconds_p99": rank.step_p99,
        "data_share": rank.data,
        "wait_share": rank.waiting,
        "goodput": rank.goodput,
        "value_name": rank.value_name or None,
        "value": rank.value,
        "activity": rank.activity or None,
        "activity_age_seconds": _seconds(rank.activity_age_ns),
        "stage": stage_as_json(rank.stage),
        "waits": [
            {"key": each.key, "seconds": _seconds(each.age_ns), "thread": each.thread or None} for each in rank.waits
        ],
        "event": None if rank.event is None else _event(rank.event),
        "verdict": verdict._asdict(),
        "box": str(rank.box),
        "problem": rank.problem or None,
    }


def _event(event: PastEvent) -> dict[str, Any]:
    return {
        "time": rfc3339(event.time_ns),
        "severity": _SEVERITIES.get(event.severity, str(event.severity)),
        "name": event.name,
        "attributes": event.attributes,
    }


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
