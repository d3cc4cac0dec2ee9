"""Lines beside the cells of the table: the summary of a look, the heading of a job, and the end of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.console.process import State
from monitel.console.text import duration, moment

if TYPE_CHECKING:
    from monitel.console.job import Job
    from monitel.console.live import Look
    from monitel.console.process import Process
    from monitel.console.text import Screen

_UNNAMED = "unknown_service"


def summary(look: Look) -> str:
    """Return the number of jobs and of processes in each state."""
    ranks = look.processes
    counts = [(state.value, sum(rank.state is state for rank in ranks)) for state in State]
    states = ", ".join(f"{count:,} {state}" for state, count in counts if count)
    processes = _count(len(ranks), "process", "processes")
    return f"{_count(len(look.jobs), 'job', 'jobs')}, {processes}{f': {states}' if states else ''}"


def heading(job: Job, screen: Screen) -> str:
    """Return the names of a job, and the number of its ranks that run here."""
    names = job.name
    named = names.service and not names.service.startswith(_UNNAMED)
    service = "/".join(filter(None, (names.namespace, names.service if named else "")))
    sizes = {rank.world_size for rank in job.processes if rank.world_size is not None}
    ranks = len({rank.rank for rank in job.processes if rank.rank is not None})
    hosts = sorted({rank.host for rank in job.processes if rank.host})
    parts = (
        screen.printable(service) or "job without a name",
        f"run {screen.printable(names.run)}" if names.run else "",
        f"attempt {job.attempt}" if job.attempt else "",
        f"{ranks} of {max(sizes)} ranks" if sizes else _count(len(job.processes), "process", "processes"),
        f"on {screen.printable(', '.join(hosts))}" if hosts else "",
    )
    return ", ".join(filter(None, parts))


def remark(rank: Process, screen: Screen, now_ns: int) -> str:
    """Return how a process has ended, or why its box cannot be read; empty if it runs."""
    if rank.problem:
        return f"cannot be read: {screen.printable(rank.problem)}"
    if rank.state is not State.DEAD:
        return ""
    cause = screen.printable(rank.death) or "cause unknown, as after SIGKILL or by the OOM killer"
    when = f"; last sign of life {duration(max(now_ns - rank.seen_ns, 0))} ago" if rank.seen_ns else ""
    at = f", at {moment(rank.seen_ns)}" if rank.seen_ns else ""
    return f"{cause}{when}{at}"


def _count(number_of: int, one: str, many: str) -> str:
    return f"{number_of:,} {one if number_of == 1 else many}"
