"""The report about processes for a person, as lines that fit into the columns of a screen."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from monitel import Severity
from monitel.console.verdict import shared_waits
from monitel.runs.process import TIME, State
from monitel.text import (
    clock_time,
    cut,
    duration,
    labelled,
    moment,
    number,
    pieces,
    ranks_in_words,
    step_rate,
    table,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monitel.blackbox.forms import Definition
    from monitel.blackbox.reading import Window
    from monitel.console.job import Job
    from monitel.runs.process import Process
    from monitel.stats.window import OpenWindow
    from monitel.text import Screen

_LISTED = 20  # windows, counters, events, waits and ranges
_ACTIVITY, _RANK = "training.activity", "training.rank"
_COLOURS = {State.ALIVE: "green", State.SILENT: "yellow", State.DEAD: "red", State.ENDED: ""}
#: The names of severities by their numbers.
SEVERITIES = {int(each): each.name for each in Severity}
_THREAD = re.compile(r"^(?=(?:Current t|T)hread 0x)", re.MULTILINE)
_OWN = re.compile(r"(?:Current t|T)hread \w+ \[monitel[-\]]")
_USUAL_WIDTH = 80
_WAITS, _STEPS = 3, 4
_LONG_NS = 10**9  # shorter waits are usual in a job that makes progress
_UNKNOWN = "cause unknown, as after SIGKILL or by the OOM killer"

#: The text in place of a report where there is none.
NO_BOXES = (
    "no black boxes of this user on this machine, of running or dead processes; monitel run -- COMMAND records a job"
)


# ---- jobs


def rank_waits(job: Job) -> list[tuple[str, dict[int, int], list[int]]]:
    """Return the waits that at least half of several ranks are in: first one that a rank is not in.

    Each has its key, the time since its begin in ns by rank, and the ranks that are not in it although it is long.
    """
    ranks = {each.rank: each for each in job.counted if each.rank is not None}
    found = []
    for key, waiting in shared_waits([*ranks.values()], (len(ranks) + 1) // 2) if len(ranks) > 1 else ():
        ages = {each.rank: age_ns for each, age_ns in waiting if each.rank is not None}
        is_long = max(ages.values()) >= _LONG_NS
        found.append((key, ages, [rank for rank in ranks if is_long and rank not in ages]))
    return found


def steps_of(job: Job) -> dict[int, list[int]]:
    """Return ranks by their last step, the latest step first."""
    found: dict[int, set[int]] = {}
    for each in job.processes:
        if each.own_step is not None and each.rank is not None:
            found.setdefault(each.own_step, set()).add(each.rank)
    return {step: sorted(found[step]) for step in sorted(found, reverse=True)}


def job_lines(job: Job, screen: Screen) -> Iterator[str]:
    """Yield lines about a job of several ranks: the verdict, the waits that ranks share, and different last steps."""
    yield from wrapped(screen.printable(job.verdict.text), screen.width)
    over = not any(each.runs for each in job.processes)
    for key, waiting, missing in rank_waits(job)[:_WAITS]:
        verb = "waited" if over else "waits" if len(waiting) == 1 else "wait"
        first = "" if len(waiting) == 1 else ", the first one"
        text = f"{ranks_in_words(sorted(waiting))} {verb} in {key}{first} for {duration(max(waiting.values()))}"
        if missing:
            be = ("was" if over else "is") if len(missing) == 1 else "were" if over else "are"
            text += f"; {ranks_in_words(missing)} {be} not"
        yield from wrapped(screen.printable(text), screen.width)
    if len(steps := steps_of(job)) > 1:
        shown = [f"{step:,} ({ranks_in_words(ranks)})" for step, ranks in steps.items()]
        more = f" and {len(shown) - _STEPS} more" if len(shown) > _STEPS else ""
        yield from wrapped(f"last steps differ: {', '.join(shown[:_STEPS])}{more}", screen.width)


def counts(processes: Sequence[Process]) -> str:
    """Return the number of processes in each state in words."""
    numbers = Counter(each.state for each in processes)
    order = State.DEAD, State.ENDED, State.SILENT, State.ALIVE
    states = ", ".join(f"{numbers[state]:,} {state.value}" for state in order if numbers[state])
    return f"{_count(len(processes), 'process', 'es')}: {states}"


# ---- one process


def process_lines(process: Process, screen: Screen, now_ns: int, *, complete: bool = False) -> Iterator[str]:
    """Yield the lines about one process, for a stream.

    Not complete are the first twenty windows, counters, waits and ranges, the last twenty events, and of a process that
    runs the threads of the application.
    """
    limit = 1 << 30 if complete else _LISTED
    yield from wrapped(screen.printable(", ".join(filter(None, _title(process)))), screen.width)
    for label, text in _rows(process, now_ns, limit):
        lines = labelled(label, screen.printable(text), screen.width)
        if label == "state":
            yield screen.paint(next(lines), _COLOURS[process.state])
        yield from lines
    for part in (
        _window_lines(open_windows(process), screen, limit),
        _event_lines(process, screen, limit),
        stack_lines(process, screen, complete=complete),
    ):
        if lines_of_part := [*part]:
            yield from ("", *lines_of_part)


def _title(process: Process) -> Iterator[str]:
    if process.rank is not None:
        yield f"rank {process.rank}{'' if process.world_size is None else f' of {process.world_size}'}"
    yield "process unknown" if process.pid is None else f"process {process.pid}"
    yield f"host {process.host}" if process.host else ""
    yield process.job.service
    yield f"run {process.job.run}" if process.job.run else ""
    yield f"attempt {process.attempt}" if process.attempt else ""


def _rows(process: Process, now_ns: int, limit: int) -> Iterator[tuple[str, str]]:
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
    waits, ranges = (
        [f"{each.key} for {duration(each.age_ns)}" for each in of] for of in (process.waits, process.ranges)
    )
    yield from _listed("waits", waits, limit)
    yield from _listed("open ranges", ranges, limit)
    spent = sorted(process.activities.items(), key=lambda pair: -pair[1])
    yield "time", ", ".join(f"{name} {duration(time_ns)}" for name, time_ns in spent)
    counters = [
        f"{name}{_attributes(attributes)} {number(total)}"
        for name, attributes, total in (process.record.counted if process.record else ())
        if name != TIME
    ]
    yield from _listed("counters", sorted(counters), limit)
    left = undelivered(process)
    parts = [_count(left[f"{noun}s"], noun) for noun in ("item", "event") if left[f"{noun}s"]]
    if left["windows"]:
        parts.append(f"{_count(left['windows'], 'open window')} with {_count(left['samples'], 'sample')}")
    yield "not delivered", ", ".join(parts) or "nothing"
    yield "on disk", process.spool if process.stored else ""
    yield "collected in", str(process.box) if process.collected else ""


def _listed(label: str, texts: Sequence[str], limit: int) -> Iterator[tuple[str, str]]:
    for text in texts[:limit]:
        yield label, text
        label = ""
    if (more := len(texts) - limit) > 0:
        yield label, f"and {more:,} more"


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


def undelivered(process: Process) -> dict[str, int]:
    """Return the telemetry that no backend has acknowledged.

    It is the number of ``items`` (windows, logged numbers and spans), ``events``, open ``windows``, and of ``samples``
    in these. Of a record that was collected, the items include everything.
    """
    record = process.record
    waiting = Counter({} if record is None else record.waiting)
    if process.collected:
        return {"items": waiting.total(), "events": 0, "windows": 0, "samples": 0}
    opened = [] if record is None or "metrics" in record.off else record.open_windows
    samples = sum(each.window.count for each in opened)
    items = waiting["metrics"] + waiting["traces"]
    return {"items": items, "events": waiting["logs"], "windows": len(opened), "samples": samples}


def open_windows(process: Process) -> list[tuple[Definition, OpenWindow]]:
    """Return the newest window of each Stat, unless a backend has it, in the order of their names."""
    record = process.record
    if record is None or process.collected:
        return []
    newest: dict[int, Window] = {}
    for each in record.windows:
        known = newest.get(each.window.serial)
        if not 0 < each.item <= record.settled.get("metrics", 0) and (
            known is None or known.window.end_ns <= each.window.end_ns
        ):
            newest[each.window.serial] = each
    found = [(each.series, each.window) for each in newest.values()]
    return sorted(found, key=lambda pair: (pair[0].name, str(pair[0].attributes)))


def _count(number_of: int, noun: str, plural: str = "s") -> str:
    return f"{number_of:,} {noun}{'' if number_of == 1 else plural}"


def _attributes(attributes: Mapping[str, object]) -> str:
    shown = [f"{key}={_value(value)}" for key, value in attributes.items() if key != _RANK]
    return f"{{{', '.join(shown)}}}" if shown else ""


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _window_lines(windows: Sequence[tuple[Definition, OpenWindow]], screen: Screen, limit: int) -> Iterator[str]:
    if not windows:
        return
    titles = ("count", "mean", "last", "min", "max")
    rows: list[tuple[str, ...]] = [("open windows", *titles)]
    for series, each in windows[:limit]:
        name = screen.printable(f"{series.name}{_attributes(series.attributes)}")
        mean = each.sum / each.count if each.count else float("nan")
        rows.append((name, f"{each.count:,}", *map(number, (mean, each.last, each.min, each.max))))
    yield from table(rows, screen.width, titles)
    if (more := len(windows) - limit) > 0:
        yield from wrapped(f"and {more:,} more: use --all", screen.width)


def _event_lines(process: Process, screen: Screen, limit: int) -> Iterator[str]:
    if not process.events:
        return
    shown = process.events[-limit:]
    older = len(process.events) - len(shown)
    yield from wrapped(f"last events{f' ({older:,} older ones: use --all)' if older else ''}", screen.width)
    for event in shown:
        severity = SEVERITIES.get(event.severity, str(event.severity))
        data = "".join(f" {key}={_value(each)}" for key, each in event.attributes.items())
        line = f"{clock_time(event.time_ns)} {severity:<5} {event.name}{data}"
        yield cut(screen.printable(line), screen.width) if limit == _LISTED else screen.escaped(line)


def stack_lines(process: Process, screen: Screen, *, complete: bool, hint: str = "use --all") -> Iterator[str]:
    """Yield the lines of the stacks. Long lines are broken in a terminal, and whole elsewhere.

    Of a dead process, the thread that has crashed comes first. The stacks of live processes are without monitel's
    threads, unless they are complete; the hint is how to see them.
    """
    threads = [thread for thread in _THREAD.split(process.stacks.strip("\n")) if thread]
    if not threads:
        return
    if not process.runs:  # the thread that has crashed comes first, behind the line about the signal
        threads.sort(key=lambda thread: bool(_THREAD.match(thread)) + thread.startswith("Thread"))
    shown = [thread for thread in threads if complete or not (process.runs and _OWN.match(thread))]
    yield "stacks now" if process.runs else "stacks"
    breaks = screen.terminal or screen.width < _USUAL_WIDTH
    for line in "\n\n".join(thread.strip("\n") for thread in shown).split("\n"):
        printable = screen.printable(line)
        yield from pieces(printable, screen.width) if breaks else [printable]
    if more := len(threads) - len(shown):
        yield from wrapped(f"and {_count(more, 'thread')} of monitel: {hint}", screen.width)
