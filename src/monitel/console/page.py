"""The page of a run."""

from __future__ import annotations

from collections.abc import Sequence

from monitel.console.job import Job
from monitel.console.runs import Run
from monitel.runs.curves import Curve


def page(
    run: Run | None,
    jobs: Sequence[Job],
    curves: Sequence[Curve],
    *,
    title: str,
    now_ns: int,  # noqa: ARG001
    problems: Sequence[str] = (),
) -> str:
    return repr(
        (title, run, [job.verdict for job in jobs], [(c.name, len(c.points), c.last) for c in curves], problems)
    )
