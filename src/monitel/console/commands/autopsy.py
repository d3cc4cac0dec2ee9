"""``autopsy``: what processes of this machine were doing when they died, or are doing now."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from monitel.blackbox.folder import check_platform
from monitel.console.as_json import report_as_json
from monitel.console.autopsy import NO_BOXES, counts, job_lines, process_lines
from monitel.console.job import jobs_of
from monitel.console.reader import read_processes
from monitel.runs.process import State
from monitel.text import Screen, show, warn, wrapped
from monitel_run.arguments import target

if TYPE_CHECKING:
    import argparse

_ADVICE = "to deliver the telemetry of dead processes: monitel replay"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "autopsy",
        help="show what processes of this machine were doing when they died, or are doing now",
        description="Show, for each process with a black box, how it died, its last step, waits in progress, open "
        "windows, the last events, and the stacks of its threads. For a process that runs: the same, now. Nothing is "
        "collected or delivered.",
    )
    command.add_argument(
        "target",
        nargs="?",
        type=target,
        metavar="DIR|PID",
        help="a process id; or a black box, a folder that holds black boxes, or a folder that holds spools. "
        "Default: all black boxes of this user on this machine",
    )
    command.add_argument("--all", action="store_true", help="all windows, counters, waits, ranges, events and threads")
    command.add_argument("--json", action="store_true", help="one JSON object with everything, for programs")
    command.set_defaults(run=_run, interrupted="interrupted")


def _run(arguments: argparse.Namespace) -> int:
    check_platform()
    problems: list[str] = []
    processes = read_processes(arguments.target, problems)
    jobs, now_ns = jobs_of(processes), time.time_ns()
    if arguments.json:
        show(report_as_json(processes, jobs, problems, now_ns))
        return 0
    screen = Screen.of(sys.stdout)
    for problem in problems:
        warn(problem)
    if problems and not processes:
        return 0
    summary = wrapped(counts(processes) if processes else NO_BOXES, screen.width)
    sections = [[*summary, *(line for job in jobs if len(job.processes) > 1 for line in job_lines(job, screen))]]
    sections += [[*process_lines(each, screen, now_ns, complete=arguments.all)] for each in processes]
    if any(each.state is State.DEAD and not each.collected for each in processes):
        sections.append([*wrapped(_ADVICE, screen.width)])
    show("\n\n".join("\n".join(lines) for lines in sections))
    return 0
