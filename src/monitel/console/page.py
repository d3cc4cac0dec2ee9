"""The page about a run: one HTML file without scripts, addresses and other files, for a screen or a printer.

Each part of it has a limit of bytes, so that the page of any run has less than 500 KB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pkgutil import get_data
from statistics import median
from typing import TypeAlias

import monitel
from monitel.blackbox.forms import REPORTED
from monitel.console.advice import advice
from monitel.console.autopsy import stack_lines
from monitel.console.charts import bar, chart, colour, in_words, label
from monitel.console.job import Job
from monitel.console.lateness import STAGES
from monitel.console.markup import Markup, short, tag
from monitel.console.outcome import outcome
from monitel.console.runs import RUNNING, Run
from monitel.console.verdict import is_overdue
from monitel.runs.curves import STEP_TIME, Curve
from monitel.runs.history import RunTime
from monitel.runs.process import COMPLETED, Process
from monitel.runs.shares import parts_of, sentences, shows_work
from monitel.runs.values import RunValues, Value, loss_of, stem
from monitel.text import Screen, counted, duration, moment, named, number, percent, step_rate

Row: TypeAlias = tuple[Process, str, Mapping[str, float]]  # a rank, its group, and the seconds of its stages

_CHARTS, _RANKS, _STAGES, _PROCESSES = 24, 32, 12, 8  # at most
_UNFOLDED, _SHORT_STACK = 20, 16  # rows of a table, and lines of a stack, that are not folded
_LINES, _EXCEPTION, _STACK = 80, 2000, 6000  # of a stack; characters of an exception and of a stack
_LONGEST_TITLE = 200  # columns
_OPTION = re.compile(r"(--[\w-]+)")
_OF_CHARTS, _OF_STACKS, _OF_TABLE, _OF_REST = 220_000, 70_000, 40_000, 20_000  # bytes
_LOOKS = {COMPLETED: "good", RUNNING: "live", "healthy": "good"}  # of states and verdicts
_LOOKS |= dict.fromkeys(("unknown", "starting", "paused"), "calm")
_LOOKS |= dict.fromkeys(("compile-storm", "late-rank", "input-bound", "checkpoint-bound"), "warn")


def page(
    run: Run | None,
    jobs: Sequence[Job],
    curves: Sequence[Curve],
    *,
    title: str,
    now_ns: int,
    problems: Sequence[str] = (),
) -> str:
    """Return the page about a run, and the jobs that are its attempts, the last one last."""
    job = jobs[-1] if jobs else None
    time = run.time if run is not None else job.time if job is not None else None
    values = RunValues() if run is None else run.values
    title = short(title, _LONGEST_TITLE)
    parts = [
        _header(title, run, jobs, time),
        "" if job is None else _verdict(job, time),
        _section("Where the time went", () if time is None else _times(time)),
        _section("Numbers", _numbers(curves, values.values, has_ended=run is None or run.time.status != "")),
        _section("Stages of a step", () if job is None else _stages(job)),
        _section("How it ended", _ends(jobs)),
        _section("Configuration", _configuration(values)),
        _section("Telemetry", _table([*_telemetry(jobs)], "row", _OF_REST)),
        _section("Problems", _fitting((tag("p", each) for each in problems), _UNFOLDED, _OF_REST)),
    ]
    footer = tag("footer", f"Made by monitel {monitel.__version__} at {moment(now_ns)}")
    style = Markup((get_data(__package__, "page.css") or b"").decode())  # it may be in an archive
    head = tag("head", _HEAD, tag("title", title), tag("style", style))
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *parts, footer)), lang='en')}\n"


_HEAD = Markup(
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
)


def _section(title: str, content: Iterable[Markup]) -> Markup | str:
    """Return a section; nothing without content."""
    parts = [*content]
    return tag("section", tag("h2", title), *parts) if parts else ""


def _fitting(parts: Iterable[Markup], most: int, size: int) -> list[Markup]:
    """Return the first parts: at most this many, with at most this many bytes together."""
    found = []
    for each in islice(parts, most):
        size -= len(each.encode())
        if size < 0:
            break
        found.append(each)
    return found


def _table(rows: Sequence[tuple[str, str]], noun: str, size: int = _OF_TABLE) -> Iterator[Markup]:
    """Yield a table of names and values, which is folded if it is long."""
    shown = _fitting((tag("tr", tag("th", name), tag("td", value)) for name, value in rows), len(rows), size)
    if shown:
        table = tag("table", *shown)
        yield table if len(rows) <= _UNFOLDED else _folded(counted(len(rows), noun), table)
    if len(shown) < len(rows):
        yield _note(f"and {len(rows) - len(shown):,} more")


def _folded(title: str, content: Markup) -> Markup:
    return tag("details", tag("summary", title), content)


def _note(text: str) -> Markup:
    return tag("p", text, class_="note")


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


# ---- the state and the verdict


def _header(title: str, run: Run | None, jobs: Sequence[Job], time: RunTime | None) -> Markup:
    is_newer = jobs and jobs[-1].over and any(not each.rank for each in jobs[-1].processes)  # than the ledger
    state = "nothing was recorded" if run is None else run.outcome
    if jobs and (run is None or (is_newer and state == RUNNING)):
        state = _state(jobs[-1])
    facts = (tag("div", tag("dt", name), tag("dd", text)) for name, text in _facts(run, jobs, time).items() if text)
    pill = tag("span", state, class_=f"state {_LOOKS.get(state, 'bad')}")
    return tag("header", tag("h1", title), pill, tag("dl", *facts, class_="facts"))


def _state(job: Job) -> str:
    """Return the state of a run without a ledger."""
    bad = _incomplete(job)
    return RUNNING if job.running else bad[0].how if bad else COMPLETED


def _facts(run: Run | None, jobs: Sequence[Job], time: RunTime | None) -> dict[str, str]:
    processes = jobs[-1].counted if jobs else []
    rates = [each.mean_rate for each in processes if each.mean_rate is not None]
    rate = median(rates) if rates else None if run is None else run.rate
    steps = [each.step for each in processes if each.step is not None]  # newer than the ledger of a killed run
    last = max(steps, default=None if time is None else time.last_step)
    ranks = max(jobs[-1].world_size, len({each.rank for each in processes} - {None})) if jobs else 0
    attempts = max(len(jobs), 0 if time is None else time.attempts)
    return {
        "started": moment(time.start_ns) if time is not None and time.elapsed_ns else "",
        "duration": duration(time.elapsed_ns) if time is not None and time.elapsed_ns else "",
        "attempts": f"{attempts:,}" if attempts > 1 else "",
        "ranks": f"{ranks:,}" if ranks > 1 else "",
        "last step": "" if last is None else f"{last:,}",
        "speed": "" if rate is None else step_rate(rate),
        "goodput": "" if time is None or time.goodput is None else percent(time.goodput),
    }


def _verdict(job: Job, time: RunTime | None) -> Markup:
    found = job.verdict
    look, (kind, _, reason) = _LOOKS.get(found.kind, "bad"), found.text.partition(": ")
    next_step, command = advice(job, time)
    if is_overdue(job):
        look, kind, reason = "calm", reason, "It was healthy before."
    return tag(
        "section",
        tag("h2", _capital(kind)),
        tag("p", _capital(reason), class_="reason"),
        tag("p", tag("b", "Next: "), next_step, " ", tag("code", command) if command else ""),
        class_=f"verdict {look}",
    )


# ---- numbers


def _numbers(curves: Sequence[Curve], values: Sequence[Value], *, has_ended: bool) -> Iterator[Markup]:
    """Yield the chart of the loss, those of other numbers, that of the step time, and the last values of the rest."""
    groups: dict[str, list[Curve]] = {}
    for each in curves:
        groups.setdefault(stem(each.name), []).append(each)
    last = [Value(each.name, each.attributes, each.unit, each.last, 0) for each in curves]
    loss = loss_of(last)
    first = None if loss is None else stem(loss.name)
    names = sorted(groups, key=lambda name: (name != first, not name.endswith("loss"), name == STEP_TIME))  # stable
    if STEP_TIME in groups:
        names.insert(_CHARTS - 1, names.pop())
    figures = _fitting((chart(groups[name], large=name == first) for name in names), _CHARTS, _OF_CHARTS)
    if figures:
        yield tag("div", *figures, class_="charts")
        if not has_ended:
            yield _note("Numbers are stored each half minute, so those of the last steps may be missing.")
    drawn = {(each.name, each.attributes) for name in names[: len(figures)] for each in groups[name]}
    rest = {each.key: each for each in (*values, *last) if each.key not in drawn}
    rows = [
        (" ".join(filter(None, (each.name, label(each.attributes)))), in_words(each.value, each.unit))
        for each in rest.values()
        if not each.name.startswith(REPORTED)  # these are stages
    ]
    yield from _table(sorted(rows), "other number")


# ---- time


def _times(time: RunTime) -> Iterator[Markup]:
    """Yield the sentences about the time of a run, and a bar with a legend."""
    if shows_work(time):
        parts = parts_of(time.activities)
        texts = [f"{short(each.name)} {each.share}, {duration(each.time_ns)}" for each in parts]
        yield from (tag("p", f"{_capital(each)}.") for each in sentences(time))
        yield bar([(each.name, each.time_ns, text) for each, text in zip(parts, texts, strict=True)], time.elapsed_ns)
        yield _legend((each.name, each.share, duration(each.time_ns)) for each in parts)


def _legend(rows: Iterable[Sequence[str]]) -> Markup:
    """Return the names that are in a bar, each with a share and a time if these are given."""
    found = []
    for row in rows:
        texts = (tag(kind, short(text)) for kind, text in zip(("span", "b", "small"), row, strict=False))
        found.append(tag("li", tag("i", class_=colour(row[0])), *texts))
    return tag("ul", *found, class_="legend")


def _stages(job: Job) -> Iterator[Markup]:
    """Yield a bar for each rank, or for an even choice of many ranks."""
    rows = [(each, *of) for each in job.counted for of in job.stages(each).items() if any(of[1].values())]
    if not rows:
        return
    shown, words = _chosen(rows, job.verdict.rank), "The usual times of one step on each rank."
    if len(shown) < len(rows):
        words = f"The usual times of one step on {len(shown):,} of {len(rows):,} ranks: an even choice"
        words += "." if job.verdict.rank is None else ", and the one of the verdict."
    found = {name for *_, times in shown for name, seconds in times.items() if seconds > 0}
    names = [*(each for each in STAGES if each in found), *sorted(found.difference(STAGES))][:_STAGES]
    longest = max(sum(times.values()) for *_, times in shown)
    yield tag("p", words, " In sync, a rank waits for the others." if "sync" in names else "")
    yield _legend([name] for name in names)
    yield tag("ul", *_fitting((_rank(row, job, names, longest) for row in shown), _RANKS, _OF_TABLE), class_="ranks")


def _chosen(rows: Sequence[Row], rank: int | None) -> Sequence[Row]:
    late = [place for place, row in enumerate(rows) if rank is not None and row[0].rank == rank][:_RANKS]
    others, most = sorted({*range(len(rows))}.difference(late)), _RANKS - len(late)
    if len(others) > most:
        others = [others[each * len(others) // most] for each in range(most)]
    return [rows[place] for place in sorted([*late, *others])]


def _rank(row: Row, job: Job, names: Sequence[str], longest: float) -> Markup:
    """Return the name of a rank, with a mark if the verdict is about it, its bar, and its time."""
    (process, group, times), found = row, job.verdict
    name = f"{named([process])} {short(group)}".strip()
    is_about = process.rank is not None and process.rank == found.rank
    mark = tag("mark", found.kind.removesuffix("-rank")) if is_about else ""
    parts = [(each, times[each], f"{short(each)} {duration(times[each] * 1e9)}") for each in names if each in times]
    whole = tag("small", duration(sum(times.values()) * 1e9))
    return tag("li", tag("span", name, " ", mark), bar(parts, longest, f"{name}: "), whole)


# ---- the end


def _ends(jobs: Sequence[Job]) -> Iterator[Markup]:
    """Yield the exception or the stack of each process that did not complete, and the names of those without one."""
    places = ["" if job.attempt is None else f" in attempt {job.attempt}" for job in jobs]
    ended = [(each, at) for at, job in zip(reversed(places), reversed(jobs), strict=True) for each in _incomplete(job)]
    explained = [(each, at) for each, at in ended if each.exception or each.stacks]
    ends = (_end(each, at) for each, at in explained)
    yield from (shown := _fitting(ends, _PROCESSES, _OF_STACKS))
    if len(shown) < len(explained):
        yield _note(f"and {counted(len(explained) - len(shown), 'more process', 'es')}")
    others: dict[str, list[Process]] = {}
    for each, at in ended:
        if not each.exception and not each.stacks:
            others.setdefault(each.how + at, []).append(each)
    yield from _fitting((tag("p", f"{_capital(named(of))} {how}") for how, of in others.items()), _PROCESSES, _OF_REST)


def _incomplete(job: Job) -> list[Process]:
    return sorted([*job.deaths, *job.unfinished], key=lambda each: each.seen_ns)


def _end(process: Process, attempt: str) -> Markup:
    title = f"{_capital(named([process]))} {process.how}"
    title += "" if process.step is None else f" at step {process.step:,}"
    title += f"{attempt}{f' on {process.host}' if process.host else ''}"
    kind, message, place = process.exception or ("", "", "")
    failure = [tag("pre", f"{kind}: {message}"[:_EXCEPTION]), _note(place)] if kind else []
    lines = [*islice(stack_lines(process, Screen()), 1, _LINES + 2)]  # without their title
    shown = "\n".join(lines[:_LINES])[:_STACK].splitlines()
    text = "\n".join([*shown, "..."] if len(shown) < len(lines) else shown)
    stack = [tag("pre", text)] if len(shown) <= _SHORT_STACK else [_folded("Stack", tag("pre", text))]
    return tag("article", tag("h3", title), *failure, *(stack if lines else ()))


def _telemetry(jobs: Sequence[Job]) -> Iterator[tuple[str, Markup]]:
    """Yield the rows about items. An option of a command in them is not broken at its hyphens."""
    for name, text in outcome(each for job in jobs for each in job.processes):
        parts = (tag("span", part, class_="option" if part.startswith("--") else "") for part in _OPTION.split(text))
        yield name, tag("span", *parts)


def _configuration(values: RunValues) -> Iterator[Markup]:
    rows = [(name, number(each) if isinstance(each, float) else str(each)) for name, each in values.config.items()]
    yield from _table(rows, "setting")
    if values.left_out:
        yield _note(f"{values.left_out:,} more values and settings had no room in the ledger")
