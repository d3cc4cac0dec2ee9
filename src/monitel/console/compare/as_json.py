"""A comparison as JSON, for programs.

The form is documented in docs/reference/commands.md; later versions only add fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel.console.compare.rows import MISSING, attributes_of_runs, config_of
from monitel.console.text import rfc3339, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.compare.rows import Settings
    from monitel.console.compare.run import Run

_VERSION = 1


def comparison_as_json(runs: Sequence[Run], problems: Sequence[str], now_ns: int) -> str:
    """Return a comparison as ASCII: one object. Numbers that JSON does not have are strings: NaN, Infinity."""
    compared = {
        "version": _VERSION,
        "time": rfc3339(now_ns),
        "runs": [_run(each) for each in runs],
        "config_differs": _settings(config_of(runs)),
        "attributes_differ": _settings(attributes_of_runs(runs)),
        "problems": list(problems),
    }
    return to_json(compared)


def _run(run: Run) -> dict[str, Any]:
    return {
        "run": run.label,
        "source": run.source,
        "outcome": run.outcome,
        "started": None if run.started_ns is None else rfc3339(run.started_ns),
        "last_seen": None if run.last_ns is None else rfc3339(run.last_ns),
        "duration_seconds": None if run.duration_ns is None else run.duration_ns / 1e9,
        "attempts": run.attempts,
        "goodput": run.goodput,
        "activities": {name: time_ns / 1e9 for name, time_ns in run.activities.items()},
        "steps": run.steps,
        "last_step": run.last_step,
        "steps_per_second": run.rate,
        "values": [
            {"name": name, "attributes": dict(attributes), "unit": each.unit, "value": each.value, "total": each.total}
            for (name, attributes), each in run.numbers.items()
        ],
        "config": run.config,
        "attributes": run.attributes,
        "left_out": run.left_out,
    }


def _settings(settings: Settings) -> dict[str, list[Any]]:
    """Return a list for each setting, with null where a run does not have it."""
    return {name: [None if each is MISSING else each for each in values] for name, values in settings.differing.items()}
