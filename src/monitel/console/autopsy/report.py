"""The report about one process for a person, as lines that fit into the columns of a screen."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from monitel import Severity
from monitel.console.autopsy.findings import State
from monitel.console.text import (
    clock_time,
    columns_of,
    cut,
    duration,
    labelled,
    moment,
    number,
    pad,
    per_second,
    pieces,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monitel.console.autopsy.findings import Findings, Numbers
    from monitel.console.text import Screen

_LISTED = 20  # windows, counters, events, waits and ranges
_TIME, _ACTIVITY = "training.time", "training.activity"  # counters of the ledger, seconds
_COLOURS = {State.ALIVE: "green", State.SILENT: "yellow", State.DEAD: "red"}
_SEVERITIES = {int(each): each.name for each in Severity}
_THREAD = re.compile(r"^(?=(?:Current t|T)hread 0x)", re.MULTILINE)
_OWN = re.compile(r"(?:Current t|T)hread \w+ \[monitel[-\]]")
_USUAL_WIDTH = 80
_SHORT_NAME = 12
_GAP = 2


def process_lines(found: Findings, screen: Screen, now_ns: int, *, complete: bool = False) -> Iterator[str]:
    """Yield the lines about one process.

    Args:
        found: The findings.
        screen: The stream that the lines are printed to.
        now_ns: The time, Unix ns.
        complete: List everything, instead of the first twenty windows, counters, waits and ranges and the last twenty
            events.
    """
    limit = 1 << 30 if complete else _LISTED
    title = ", ".join(_title(found, screen))
    first, *others = wrapped(title, screen.width)
    yield first
    yield from others
    for label, text in _rows(found, screen, now_ns, limit):
        lines = labelled(label, text, screen.width)
        if label == "state":
            yield screen.paint(next(lines), _COLOURS[found.state])
        yield from lines
    if found.windows:
        yield ""
        yield from _windows(found.windows, screen, limit)
    if found.events:
        yield ""
        yield from _events(found, screen, limit)
    if found.stacks:
        yield ""
        yield from stack_lines(found, screen, complete=complete)


def _title(found: Findings, screen: Screen) -> Iterator[str]:
    names = found.identity
    if names.rank is not None:
        yield f"rank {names.rank}{'' if names.world_size is None else f' of {names.world_size}'}"
    yield "process unknown" if names.pid is None else f"process {names.pid}"
    if names.host:
        yield f"host {screen.printable(names.host)}"
    if names.service:
        yield screen.printable(names.service)
    if names.run:
        yield f"run {screen.printable(names.run)}"
    if names.attempt:
        yield f"attempt {names.attempt}"


def _rows(found: Findings, screen: Screen, now_ns: int, limit: int) -> Iterator[tuple[str, str]]:
    """Yield label and text of each row; a text in many rows has the label once."""
    yield "state", _state(found, screen, now_ns)
    for sentence in found.silence:
        yield "", screen.printable(sentence)
    if found.started_ns:
        yield "since", f"{moment(found.started_ns)}, {duration(max(found.seen_ns - found.started_ns, 0))} of telemetry"
    if found.exception is not None:
        kind, message, place = map(screen.printable, found.exception)
        yield "exception", f"{kind}{f': {message}' if message else ''}{f' ({place})' if place else ''}"
    yield "step", _step(found)
    if found.activity:
        since = "" if found.activity_age_ns is None else f" for {duration(found.activity_age_ns)}"
        yield "activity", f"{screen.printable(found.activity)}{since}"
    if found.stage is not None:
        waits_too = ", waiting for other ranks" if found.stage.waits else ""
        yield "stage", f"{screen.printable(found.stage.name)} for {duration(found.stage.age_ns)}{waits_too}"
    waits = [f"{screen.printable(each.key)} for {duration(each.age_ns)}" for each in found.waits]
    yield from _listed("waits", waits, limit, found.waits_left_out)
    ranges = [f"{screen.printable(each.name)} for {duration(each.age_ns)}" for each in found.ranges]
    yield from _listed("open ranges", ranges, limit)
    times = {each.attributes.get(_ACTIVITY): each.value for each in found.counters if each.name == _TIME}
    if spent := sorted(times.items(), key=lambda pair: (math.isnan(pair[1]), -pair[1])):
        yield "time", ", ".join(f"{screen.printable(str(name))} {_seconds(value)}" for name, value in spent)
    counters = [
        f"{screen.printable(each.name)}{_attributes(each.attributes, screen)} {number(each.value)}"
        for each in found.counters
        if each.name != _TIME
    ]
    yield from _listed("counters", counters, limit)
    yield "not delivered", _undelivered(found)
    if found.spool is not None:
        yield "on disk", screen.printable(str(found.spool))
    if found.collected_in is not None:
        yield "collected in", screen.printable(str(found.collected_in))
    for problem in found.problems:
        yield "problem", screen.printable(problem)


def _listed(label: str, texts: Sequence[str], limit: int, left_out: int = 0) -> Iterator[tuple[str, str]]:
    for text in texts[:limit]:
        yield label, text
        label = ""
    if more := max(len(texts) - limit, 0) + left_out:
        yield label, f"and {more:,} more"


def _state(found: Findings, screen: Screen, now_ns: int) -> str:
    age_ns = now_ns - found.seen_ns
    ago = f"{duration(age_ns)} ago" if age_ns >= 0 else "ahead of the clock here"
    if found.state is State.ALIVE:
        return "alive"
    if found.state is State.SILENT:
        return f"silent: its last heartbeat was {ago}"
    cause = screen.printable(found.death) or "cause unknown, as after SIGKILL or by the OOM killer"
    when = f"; last sign of life at {moment(found.seen_ns)}, {ago}" if found.seen_ns else ""
    return f"{'replaced by exec' if found.replaced else f'dead: {cause}'}{when}"


def _step(found: Findings) -> str:
    if found.step is None:
        return "none was set"
    age = ""
    if found.step_age_ns is not None:
        before = "before the last sign of life" if found.state is State.DEAD else "ago"
        age = f", set {duration(found.step_age_ns)} {before}"
    rate = "" if found.steps_per_second is None else f", {per_second(found.steps_per_second)} steps/s"
    return f"{found.step:,}{age}{rate}"


def _undelivered(found: Findings) -> str:
    left = found.undelivered
    parts = [
        _count(left.items, "item") if left.items else "",
        _count(left.events, "event") if left.events else "",
        f"{_count(left.windows, 'open window')} with {_count(left.samples, 'sample')}" if left.windows else "",
    ]
    return ", ".join(filter(None, parts)) or "nothing"


def _count(number_of: int, noun: str) -> str:
    return f"{number_of:,} {noun}{'' if number_of == 1 else 's'}"


def _attributes(attributes: Mapping[str, object], screen: Screen) -> str:
    if not attributes:
        return ""
    return f"{{{', '.join(f'{screen.printable(key)}={_value(value, screen)}' for key, value in attributes.items())}}}"


def _value(value: object, screen: Screen) -> str:
    return number(value) if isinstance(value, float) else screen.printable(str(value))


def _windows(windows: Sequence[Numbers], screen: Screen, limit: int) -> Iterator[str]:
    """Yield a table. A narrow screen has fewer columns."""
    shown = windows[:limit]
    names = [f"{screen.printable(each.name)}{_attributes(each.attributes, screen)}" for each in shown]
    columns = {
        "count": [f"{each.count:,}" for each in shown],
        "mean": [number(each.mean) for each in shown],
        "last": [number(each.last) for each in shown],
        "min": [number(each.min) for each in shown],
        "max": [number(each.max) for each in shown],
    }
    title = "open windows"
    widths = {name: _GAP + max(map(len, [name, *cells])) for name, cells in columns.items()}
    longest = max(map(columns_of, [title, *names]))
    while len(widths) > 1 and screen.width - sum(widths.values()) < min(longest, _SHORT_NAME):
        widths.popitem()
    name_columns = max(min(longest, screen.width - sum(widths.values())), 1)
    yield pad(title, name_columns) + "".join(f"{name:>{width}}" for name, width in widths.items())
    for row, name in enumerate(names):
        cells = "".join(f"{columns[column][row]:>{width}}" for column, width in widths.items())
        yield pad(name, name_columns) + cells
    if more := len(windows) - len(shown):
        yield from wrapped(f"and {more:,} more: use --all", screen.width)


def _events(found: Findings, screen: Screen, limit: int) -> Iterator[str]:
    shown = found.events[-limit:]
    older = len(found.events) - len(shown)
    yield from wrapped(f"last events{f' ({older:,} older ones: use --all)' if older else ''}", screen.width)
    for event in shown:
        severity = _SEVERITIES.get(event.severity, str(event.severity))
        data = "".join(f" {screen.printable(key)}={_value(each, screen)}" for key, each in event.attributes.items())
        line = f"{clock_time(event.time_ns)} {severity:<5} {screen.printable(event.name)}{data}"
        yield cut(line, screen.width) if limit == _LISTED else line


def stack_lines(found: Findings, screen: Screen, *, complete: bool, hint: str = "use --all") -> Iterator[str]:
    """Yield the lines of the stacks. Long lines are broken in a terminal, and whole elsewhere.

    Of a dead process, the thread that has crashed comes first. The stacks of live processes are without monitel's
    threads, unless everything is wanted.

    Args:
        found: The findings.
        screen: The stream that the lines are printed to.
        complete: Include monitel's threads.
        hint: The way to see the threads that are left out.
    """
    alive = found.state is not State.DEAD
    threads = [thread for thread in _THREAD.split(found.stacks.strip("\n")) if thread]
    if not alive:  # the thread that has crashed comes first, behind the line about the signal
        threads.sort(key=lambda thread: bool(_THREAD.match(thread)) + thread.startswith("Thread"))
    shown = [thread for thread in threads if complete or not (alive and _OWN.match(thread))]
    yield "stacks now" if alive else "stacks"
    breaks = screen.terminal or screen.width < _USUAL_WIDTH
    for line in "\n\n".join(thread.strip("\n") for thread in shown).split("\n"):
        printable = screen.printable(line)
        yield from pieces(printable, screen.width) if breaks else [printable]
    if more := len(threads) - len(shown):
        yield from wrapped(f"and {_count(more, 'thread')} of monitel: {hint}", screen.width)


def _seconds(seconds: float) -> str:
    return duration(seconds * 1e9)
