"""The launchers of processes, which tell apart two jobs that have the same names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel_otlp.top.compared_row import Row


def with_launchers(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with the launcher of its job: a forked child has the launcher of its parent."""
    processes = {row.process: row for row in rows if row.process}
    return [_renamed(row, _launcher(row, processes)) for row in rows]


def by_launcher(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the jobs among the rows of one attempt of jobs with the same names.

    The launchers distinguish jobs only if two of them have started the same rank. Otherwise each rank may have a shell
    for a parent, or the parent may be unknown.
    """
    started = {(row.rank.rank, row.rank.job.launcher) for row in rows if row.rank.job.launcher}
    if len(started) == len({rank for rank, _ in started}):
        return [[*rows]]
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.rank.job.launcher, []).append(row)
    return [*found.values()]


def _launcher(row: Row, processes: Mapping[str, Row]) -> str:
    seen = {""}
    launcher = row.rank.job.launcher
    while launcher not in seen and (parent := processes.get(launcher)) is not None:
        if (parent.rank.rank, _names(parent)) != (row.rank.rank, _names(row)):
            break
        seen.add(launcher)
        launcher = parent.rank.job.launcher
    return launcher


def _names(row: Row) -> tuple[str, ...]:
    return row.rank.job[:3]


def _renamed(row: Row, launcher: str) -> Row:
    if launcher == row.rank.job.launcher:
        return row
    return row._replace(rank=replace(row.rank, job=row.rank.job._replace(launcher=launcher)))
