"""``autopsy``: what processes of this machine were doing when they died, or are doing now, as lines for a person."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from monitel.blackbox.folder import check_platform
from monitel.console.as_json import report_as_json
from monitel.console.job import jobs_of
from monitel.console.reader import read_processes
from monitel.runs.process import TIME, Process, State
from monitel.text import (
    Screen,
    clock_time,
    counted,
    cut,
    duration,
    labelled,
    moment,
    number,
    pieces,
    printable,
    replay_command,
    show,
    step_rate,
    table,
    warn,
    wrapped,
)
from monitel_run.arguments import target

_LISTED = 20  # windows, counters, events, waits and ranges, at most; JSON has all of them
_RANK = "training.rank"
_THREAD = re.compile(r"^(?=(?:Current t|T)hread 0x)", re.MULTILINE)
_OWN = re.compile(r"(?:Current t|T)hread \w+ \[monitel[-\]]")
_UNKNOWN = "cause unknown, as after SIGKILL or by the OOM killer"

#: The text in place of a report where there is none.
NO_BOXES = (
    "no black boxes of this user on this machine, of running or dead processes; monitel run -- COMMAND records a job"
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "autopsy",
        help="show what processes of this machine were doing when they died, or are doing now",
        description="Show, for each process with a black box, how it died, its last step, waits in progress, open "
        "windows, the last events, and the stacks of its threads. For a process that runs: the same, now. Nothing is "
        "collected or delivered.",
    )
    text = "a process id; or a black box, a folder that holds black boxes, or a folder that holds spools. "
    text += "Default: all black boxes of this user on this machine"
    command.add_argument("target", nargs="?", type=target, metavar="DIR|PID", help=text)
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
    verdicts = [printable(job.verdict.text) for job in jobs if len(job.processes) > 1]
    first = [counts(processes) if processes else NO_BOXES, *verdicts]
    sections = [[line for text in first for line in wrapped(text, screen.width)]]
    sections += [[*process_lines(each, screen, now_ns)] for each in processes]
    dead = [each.box.parent for each in processes if each.state is State.DEAD and not each.collected]
    if boxes := {os.path.abspath(each) for each in dead}:  # noqa: PTH100
        commands = "; ".join(map(replay_command, sorted(boxes)))
        sections.append(wrapped(f"to deliver the telemetry of dead processes: {commands}", screen.width))
    show("\n\n".join("\n".join(lines) for lines in sections))
    return 0


def counts(processes: Sequence[Process]) -> str:
    numbers = Counter("unreadable" if each.problem else each.state.value for each in processes)
    order = *(each.value for each in (State.DEAD, State.ENDED, State.SILENT, State.ALIVE)), "unreadable"
    states = ", ".join(f"{numbers[state]:,} {state}" for state in order if numbers[state])
    return f"{counted(len(processes), 'process', 'es')}: {states}"


# ---- one process


def process_lines(process: Process, screen: Screen, now_ns: int) -> Iterator[str]:
    """Yield the lines about one process, for a stream."""
    yield from wrapped(printable(_title(process)), screen.width)
    for label, text in _rows(process, now_ns):
        yield from labelled(label, printable(text), screen.width, widest=screen.columns)
    for part in (_window_lines(process, screen), _event_lines(process, screen), stack_lines(process, screen)):
        if lines_of_part := [*part]:
            yield from ("", *lines_of_part)


def _title(process: Process) -> str:
    of = "" if process.world_size is None else f" of {process.world_size}"
    parts = (
        "" if process.rank is None else f"rank {process.rank}{of}",
        "process unknown" if process.pid is None else f"process {process.pid}",
        process.host and f"host {process.host}",
        process.job.service,
        process.job.run and f"run {process.job.run}",
        f"attempt {process.attempt}" if process.attempt else "",
    )
    return ", ".join(filter(None, parts))


def _rows(process: Process, now_ns: int) -> Iterator[tuple[str, str]]:
    """Yield label and text of each row; a text in many rows has the label once, and an empty text gives no line."""
    yield "state", state_in_words(process, now_ns)
    yield from (("", sentence) for sentence in process.silence)
    if process.started_ns:
        since = duration(max(process.seen_ns - process.started_ns, 0))
        yield "since", f"{moment(process.started_ns)}, {since} of telemetry"
    yield "exception", process.failure
    yield "step", _step(process)
    if process.activity:
        age_ns = process.activity_age_ns
        yield "activity", f"{process.activity}{'' if age_ns is None else f' for {duration(age_ns)}'}"
    if process.stage is not None:
        waits_too = ", waiting for other ranks" if process.stage.waits else ""
        yield "stage", f"{process.stage.name} for {duration(process.stage.age_ns)}{waits_too}"
    for label, found in (("waits", process.waits), ("open ranges", process.ranges)):
        yield from _listed(label, [f"{each.key} for {duration(each.age_ns)}" for each in found])
    spent = sorted(process.activities.items(), key=lambda pair: -pair[1])
    yield "time", ", ".join(f"{name} {duration(time_ns)}" for name, time_ns in spent)
    totals = process.record.counted if process.record else ()
    counters = [
        f"{name}{_attributes(attributes)} {number(total)}" for name, attributes, total in totals if name != TIME
    ]
    yield from _listed("counters", sorted(counters))
    left = process.undelivered
    parts = [counted(left[f"{noun}s"], noun) for noun in ("item", "event") if left[f"{noun}s"]]
    if left["windows"]:
        parts.append(f"{counted(left['windows'], 'open window')} with {counted(left['samples'], 'sample')}")
    yield "not delivered", ", ".join(parts) or "nothing"
    yield "on disk", process.spool if process.stored else ""
    yield "collected in", str(process.box) if process.collected else ""


def _listed(label: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    shown = [*texts[:_LISTED], *([f"and {len(texts) - _LISTED:,} more"] if len(texts) > _LISTED else [])]
    yield from zip([label, *[""] * len(shown)], shown, strict=False)


def state_in_words(process: Process, now_ns: int) -> str:
    """Return the state of a process; of one that has ended with the cause, and its last sign of life."""
    age_ns = now_ns - process.seen_ns
    ago = f"{duration(age_ns)} ago" if age_ns >= 0 else "ahead of the clock here"
    if process.state is State.ALIVE:
        return "alive"
    if process.state is State.SILENT:
        return f"silent: its last heartbeat was {ago}"
    when = f"; last sign of life at {moment(process.seen_ns)}, {ago}" if process.seen_ns else ""
    if process.state is State.DEAD:
        return f"dead: {process.death or _UNKNOWN}{when}"
    how = process.death or f"ended{': ' if process.status else ''}{process.status}"
    return f"{how}{when}"


def _step(process: Process) -> str:
    if process.step is None:
        return "none was set"
    age = ""
    if process.step_age_ns is not None:
        before = "ago" if process.runs else "before the last sign of life"
        age = f", set {duration(process.step_age_ns)} {before}"
    rate = process.mean_rate if process.rate is None else process.rate
    return f"{process.step:,}{age}{'' if rate is None else f', {step_rate(rate)}'}"


def _attributes(attributes: Mapping[str, object]) -> str:
    shown = [f"{key}={_value(value)}" for key, value in attributes.items() if key != _RANK]
    return f"{{{', '.join(shown)}}}" if shown else ""


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _window_lines(process: Process, screen: Screen) -> Iterator[str]:
    windows = process.open_windows
    if not windows:
        return
    titles = ("count", "mean", "last", "min", "max")
    rows: list[tuple[str, ...]] = [("open windows", *titles)]
    for series, each in windows[:_LISTED]:
        name = printable(f"{series.name}{_attributes(series.attributes)}")
        mean = each.sum / each.count if each.count else float("nan")
        rows.append((name, f"{each.count:,}", *map(number, (mean, each.last, each.min, each.max))))
    yield from table(rows, screen.columns, titles)
    if (more := len(windows) - _LISTED) > 0:
        yield f"and {more:,} more"


def _event_lines(process: Process, screen: Screen) -> Iterator[str]:
    if not process.events:
        return
    shown = process.events[-_LISTED:]
    older = len(process.events) - len(shown)
    yield f"last events{f' ({older:,} older ones)' if older else ''}"
    for event in shown:
        data = "".join(f" {key}={_value(each)}" for key, each in event.attributes.items())
        line = f"{clock_time(event.time_ns)} {event.level:<5} {event.name}{data}"
        yield cut(printable(line), screen.columns)


def stack_lines(process: Process, screen: Screen) -> Iterator[str]:
    """Yield the lines of the stacks. Long lines are broken in a terminal, and whole elsewhere.

    Of a dead process, the thread that has crashed comes first. The stacks of live processes are without monitel's
    threads.
    """
    threads = [thread for thread in _THREAD.split(process.stacks.strip("\n")) if thread]
    if not threads:
        return
    if not process.runs:  # the thread that has crashed comes first, behind the line about the signal
        threads.sort(key=lambda thread: bool(_THREAD.match(thread)) + thread.startswith("Thread"))
    shown = [thread for thread in threads if not (process.runs and _OWN.match(thread))]
    yield "stacks now" if process.runs else "stacks"
    for line in "\n\n".join(thread.strip("\n") for thread in shown).split("\n"):
        yield from pieces(printable(line), screen.columns)
    if more := len(threads) - len(shown):
        yield f"and {counted(more, 'thread')} of monitel"
