"""The report for programs: valid JSON, and the documented fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.paths import ROOT
from tests.unit.console.known_processes import NOW, SECOND, dead_process, rank_of

from monitel.console.as_json import report_as_json
from monitel.console.job import jobs_of

if TYPE_CHECKING:
    from monitel.console.process import Process


def strict(text: str) -> Any:
    """Return the value of a text that is JSON by the standard, without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def report(*processes: Process) -> Any:
    """Return the decoded report."""
    return strict(report_as_json(processes, jobs_of(processes), ["a problem"], NOW))


def test_findings_are_in_the_object() -> None:
    """Times are UTC, durations seconds."""
    found = report(dead_process())
    (process,) = found.pop("processes")
    (job,) = found.pop("jobs")
    assert (["killed by SIGSEGV"], [2]) == ([process["death"]], job["dead"])
    assert {"version": 1, "time": "2026-01-02T05:00:45.000000Z", "problems": ["a problem"]} == found
    expected = {
        "state": "dead",
        "pid": 31337,
        "rank": 2,
        "attempt": 1,
        "started": "2026-01-02T03:04:05.000000Z",
        "last_seen": "2026-01-02T04:04:05.000000Z",
        "death": "killed by SIGSEGV",
        "step": 1199,
        "step_age_seconds": 4.0,
        "steps_per_second": 8.25,
        "activity": "data",
        "activity_age_seconds": 3.0,
        "stage": {"name": "forward", "seconds": 2.0, "waits_for_ranks": True, "thread": 7},
        "waits": [{"key": "all_reduce", "seconds": 41.0, "thread": 7}],
        "waits_left_out": 2,
        "counters": [{"name": "training.samples", "attributes": {}, "value": 9592}],
        "not_delivered": {"items": 120, "events": 14, "windows": 2, "samples": 8},
    }
    assert expected == {name: process[name] for name in expected}
    loss = process["windows"][1]
    assert ("train.loss", {"split": "train"}, 4, 2.5) == tuple(
        loss[name] for name in ("name", "attributes", "count", "mean")
    )
    assert {"time", "severity", "name", "attributes"} == {*process["events"][0]}


def test_every_field_is_documented() -> None:
    """The reference names the fields of the report, of a process and of a job."""
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    found = report(rank_of(0, waits={"a": 2 * SECOND / SECOND}), rank_of(1))
    fields = {*found, *found["processes"][0], *found["jobs"][0]}
    assert set() == {name for name in fields if f"`{name}`" not in page}
