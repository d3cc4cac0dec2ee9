"""The page about a run: one HTML file without scripts, addresses and other files, for a screen or a printer.

Each part of it has a limit of bytes, so that the page of any run has less than 500 KB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import monitel
from monitel.console.advice import advice
from monitel.console.autopsy import stack_lines
from monitel.console.charts import bar, chart, colour, in_words, label
from monitel.console.lateness import STAGES
from monitel.console.markup import Markup, tag
from monitel.console.outcome import outcome
from monitel.console.runs import RUNNING, Run
from monitel.runs.curves import STEP_TIME, Curve
from monitel.runs.history import RunTime
from monitel.runs.process import COMPLETED, Process
from monitel.runs.shares import parts_of, sentences
from monitel.runs.values import RunValues, Value
from monitel.text import Screen, counted, cut, duration, moment, named, number, percent, printable, step_rate

if TYPE_CHECKING:
    from monitel.console.job import Job

    Row: TypeAlias = tuple[Process, str, Mapping[str, float]]  # a rank, its group, and the seconds of its stages

_CHARTS, _RANKS, _STAGES, _PROCESSES = 24, 32, 12, 8  # at most
_UNFOLDED, _SHORT_STACK = 20, 16  # rows of a table, and lines of a stack, that are not folded
_LINES, _EXCEPTION, _STACK = 80, 2000, 6000  # of a stack; characters of an exception and of a stack
_LONGEST = 40  # columns of a name in a legend
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
    title = cut(printable(title), 200)
    parts = [
        tag("header", *_header(title, run, job), tag("dl", *_facts(run, jobs, time), class_="facts")),
        *(() if job is None else [_verdict(job, time)]),
        *_section("Numbers", _numbers(curves, values.values)),
        *_section("Where the time went", () if time is None else _times(time)),
        *_section("Stages of a step", () if job is None else _stages(job)),
        *_section("How it ended", _ends(jobs)),
        *_section("Configuration", _configuration(values)),
        *_section("Telemetry", _telemetry(each for of in jobs for each in of.processes)),
        *_section("Problems", _fitting((tag("p", each) for each in problems), _UNFOLDED, _OF_REST)),
    ]
    footer = tag("footer", f"Made by monitel {monitel.__version__} at {moment(now_ns)}")
    style = Markup(Path(__file__).with_name("page.css").read_text(encoding="utf-8"))
    head = tag("head", _HEAD, tag("title", title), tag("style", style))
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *parts, footer)), lang='en')}\n"


_HEAD = Markup(
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
)


def _section(title: str, content: Iterable[Markup]) -> Iterator[Markup]:
    """Yield a section, unless it has no content."""
    if parts := [*content]:
        yield tag("section", tag("h2", title), *parts)


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
    more = [tag("p", f"and {len(rows) - len(shown):,} more", class_="note")] if len(shown) < len(rows) else []
    content = [tag("table", *shown), *more] if shown else more
    yield from content if len(rows) <= _UNFOLDED else _folded(counted(len(rows), noun), content)


def _folded(title: str, content: Iterable[Markup]) -> Iterator[Markup]:
    yield tag("details", tag("summary", title), *content)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


# ---- the state and the verdict


def _header(title: str, run: Run | None, job: Job | None) -> Iterator[Markup]:
    yield tag("h1", title)
    state = run.outcome if run is not None else _state(job) if job is not None else "nothing was recorded"
    yield tag("span", state, class_=f"state {_LOOKS.get(state, 'bad')}")


def _state(job: Job) -> str:
    """Return the state of a run without a ledger."""
    bad = next(iter(_incomplete(job)), None)
    return RUNNING if job.running else COMPLETED if bad is None else _how(bad)


def _facts(run: Run | None, jobs: Sequence[Job], time: RunTime | None) -> Iterator[Markup]:
    job = jobs[-1] if jobs else None
    stepping = [] if job is None else job.stepping
    rates = [each.mean_rate for each in stepping if each.mean_rate is not None]
    steps = [each.made if each.step is None else each.step for each in stepping]
    rate = median(rates) if rates else None if run is None else run.rate
    last = max(steps, default=None) if time is None or time.last_step is None else time.last_step
    ranks = 0 if job is None else max(job.world_size, len({each.rank for each in job.counted} - {None}))
    attempts = max(len(jobs), 0 if time is None else time.attempts)
    known = time is not None and time.elapsed_ns > 0
    facts = {
        "started": moment(time.start_ns) if time is not None and known else "",
        "duration": duration(time.elapsed_ns) if time is not None and known else "",
        "attempts": f"{attempts:,}" if attempts > 1 else "",
        "ranks": f"{ranks:,}" if ranks > 1 else "",
        "last step": "" if last is None else f"{last:,}",
        "speed": "" if rate is None else step_rate(rate),
        "goodput": "" if time is None or time.goodput is None else percent(time.goodput),
    }
    yield from (tag("div", tag("dt", name), tag("dd", text)) for name, text in facts.items() if text)


def _verdict(job: Job, time: RunTime | None) -> Markup:
    found = job.verdict
    kind, _, reason = found.text.partition(": ")
    next_step, command = advice(job, time)
    return tag(
        "section",
        tag("h2", _capital(kind)),
        tag("p", _capital(reason), class_="reason"),
        tag("p", tag("b", "Next: "), next_step),
        *([tag("code", command)] if command else []),
        class_=f"verdict {_LOOKS.get(found.kind, 'bad')}",
    )


# ---- numbers


def _numbers(curves: Sequence[Curve], values: Sequence[Value]) -> Iterator[Markup]:
    """Yield the chart of the loss, those of other numbers, that of the step time, and the last values of the rest."""
    groups: dict[str, list[Curve]] = {}
    for each in curves:
        groups.setdefault(each.name, []).append(each)
    last = [Value(each.name, each.attributes, each.unit, each.last, 0) for each in curves]
    loss = Run(RunTime(), values=RunValues(values=tuple(last))).loss
    names = sorted(groups, key=lambda name: (loss is None or name != loss.name, name == STEP_TIME))  # stable
    if STEP_TIME in groups:
        names.insert(_CHARTS - 1, names.pop())
    large = names[:1] if loss is not None else []
    figures = _fitting((chart(groups[name], large=name in large) for name in names), _CHARTS, _OF_CHARTS)
    if figures:
        yield tag("div", *figures, class_="charts")
    drawn = {*names[: len(figures)]}
    rest = {each.key: each for each in (*values, *last) if each.name not in drawn}
    rows = [
        (" ".join(filter(None, (each.name, label(each.attributes)))), in_words(each.value, each.unit))
        for each in rest.values()
    ]
    if rows:
        yield from _table(sorted(rows), "other number")


# ---- time


def _times(time: RunTime) -> Iterator[Markup]:
    """Yield the sentences about the time of a run, and a bar with a legend."""
    parts = parts_of(time.activities)
    if not parts:
        return
    yield from (tag("p", f"{_capital(each)}.") for each in sentences(time))
    texts = [f"{cut(printable(each.name), _LONGEST)} {each.share}" for each in parts]
    pieces = [
        (each.name, each.time_ns, f"{text}, {duration(each.time_ns)}") for each, text in zip(parts, texts, strict=True)
    ]
    yield bar(pieces, time.elapsed_ns, ", ".join(texts))
    yield _legend((each.name, each.share, duration(each.time_ns)) for each in parts)


def _legend(rows: Iterable[Sequence[str]]) -> Markup:
    """Return the names that are in a bar, each with a share and a time if these are given."""
    found = []
    for row in rows:
        texts = (
            tag(kind, cut(printable(text), _LONGEST)) for kind, text in zip(("span", "b", "small"), row, strict=False)
        )
        found.append(tag("li", tag("i", class_=colour(row[0])), *texts))
    return tag("ul", *found, class_="legend")


def _stages(job: Job) -> Iterator[Markup]:
    """Yield a bar for each rank, or for an even choice of many ranks."""
    rows = [
        (each, group, times) for each in job.counted for group, times in job.stages(each).items() if any(times.values())
    ]
    if not rows:
        return
    shown, late = _chosen(rows, job.verdict.rank), job.verdict.rank is not None
    words = "The usual times of one step on each rank."
    if len(shown) < len(rows):
        words = f"The usual times of one step on {len(shown):,} of {len(rows):,} ranks"
        words += ": the one of the verdict, and an even choice of the others." if late else ", evenly chosen."
    found = {name for _, _, times in shown for name, seconds in times.items() if seconds > 0}
    names = [*(each for each in STAGES if each in found), *sorted(found.difference(STAGES))][:_STAGES]
    words += " In sync, a rank waits for the others." if "sync" in names else ""
    longest = max(sum(times.values()) for _, _, times in shown)
    bars = (tag("li", *_rank(row, job, names, longest)) for row in shown)
    yield tag("p", words)
    yield _legend([name] for name in names)
    yield tag("ul", *_fitting(bars, _RANKS, _OF_TABLE), class_="ranks")


def _chosen(rows: Sequence[Row], rank: int | None) -> Sequence[Row]:
    late = [place for place, row in enumerate(rows) if rank is not None and row[0].rank == rank][:_RANKS]
    others, most = sorted({*range(len(rows))}.difference(late)), _RANKS - len(late)
    if len(others) > most:
        others = [others[each * len(others) // most] for each in range(most)]
    return [rows[place] for place in sorted([*late, *others])]


def _rank(row: Row, job: Job, names: Sequence[str], longest: float) -> Iterator[Markup]:
    """Yield the name of a rank, its bar and its time."""
    (process, group, times), found = row, job.verdict
    name = f"{named([process])} {cut(printable(group), _LONGEST)}".strip()
    mark = (
        [tag("mark", found.kind.removesuffix("-rank"))]
        if process.rank is not None and process.rank == found.rank
        else []
    )
    pieces = [
        (each, times[each], f"{cut(printable(each), _LONGEST)} {duration(times[each] * 1e9)}")
        for each in names
        if each in times
    ]
    yield tag("span", name, " ", *mark)
    yield bar(pieces, longest, f"{name}: {', '.join(text for _, _, text in pieces)}")
    yield tag("small", duration(sum(times.values()) * 1e9))


# ---- the end


def _ends(jobs: Sequence[Job]) -> Iterator[Markup]:
    """Yield the exception or the stack of each process that did not complete, and the names of those without one."""
    ended = [(job, each) for job in reversed(jobs) for each in _incomplete(job)]
    explained = [(job, each) for job, each in ended if each.exception or each.stacks]
    ends = (_end(each, job.attempt if len(jobs) > 1 else None) for job, each in explained)
    shown = _fitting(ends, _PROCESSES, _OF_STACKS)
    yield from shown
    if len(shown) < len(explained):
        yield tag("p", f"and {counted(len(explained) - len(shown), 'more process', 'es')}", class_="note")
    silent: dict[str, list[Process]] = {}
    for _, each in ended:
        if not each.exception and not each.stacks:
            silent.setdefault(_how(each), []).append(each)
    yield from _fitting((tag("p", f"{_capital(named(of))} {how}") for how, of in silent.items()), _PROCESSES, _OF_REST)


def _incomplete(job: Job) -> list[Process]:
    return sorted([*job.deaths, *job.unfinished], key=lambda each: each.seen_ns)


def _how(process: Process) -> str:
    return process.death or process.status or "died of an unknown cause"


def _end(process: Process, attempt: int | None) -> Markup:
    words = [
        f"{_capital(named([process]))} {_how(process)}{'' if process.step is None else f' at step {process.step:,}'}"
    ]
    words += [] if attempt is None else [f"attempt {attempt}"]
    words += [process.host] if process.host else []
    content = [tag("h3", ", ".join(words))]
    if process.exception is not None:
        kind, message, place = process.exception
        content.append(tag("pre", f"{kind}: {message}"[:_EXCEPTION]))
        content += [tag("p", place, class_="note")] if place else []
    lines = [*islice(stack_lines(process, Screen()), 1, _LINES + 2)]
    shown = "\n".join(lines[:_LINES])[:_STACK].splitlines()
    if lines:
        stack = [tag("pre", "\n".join([*shown, "and more lines"] if len(shown) < len(lines) else shown))]
        content += stack if len(shown) <= _SHORT_STACK else _folded("Stack", stack)
    return tag("article", *content)


# ---- the rest


def _configuration(values: RunValues) -> Iterator[Markup]:
    rows = [(name, number(each) if isinstance(each, float) else str(each)) for name, each in values.config.items()]
    if rows:
        yield from _table(rows, "setting")
    if values.left_out:
        yield tag(
            "p", f"{counted(values.left_out, 'value or setting', '')} more had no room in the ledger", class_="note"
        )


def _telemetry(processes: Iterable[Process]) -> Iterator[Markup]:
    if rows := [*outcome(processes)]:
        yield from _table(rows, "row", _OF_REST)
