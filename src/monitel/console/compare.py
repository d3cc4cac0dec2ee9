"""``compare``: the numbers of several runs side by side, a column for each run, or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from monitel.console.runs import NOTHING, Run, Runs, add_options, finish
from monitel.process.masking import MASK
from monitel.runs.shares import parts_of
from monitel.runs.values import Key, Scalar
from monitel.text import (
    UNLIMITED,
    CommandError,
    Screen,
    cut,
    duration,
    moment,
    number,
    per_second,
    printable,
    rfc3339,
    table,
    wrapped,
)
from monitel_run.arguments import target

Settings: TypeAlias = Mapping[str, Sequence[Any]]  # the values of all runs by name

#: Attributes of a resource that differ between all processes, or do not describe the run.
_NOT_COMPARED = {
    *("training.run.id", "training.rank", "training.local_rank", "training.node_rank", "training.attempt"),
    *("service.instance.id", "process.pid", "process.runtime.description"),
}
_MISSING = object()  # the place of a setting that a run does not have
_LONGEST_CELL = 60  # columns
_DIGITS = 15  # characters of a value
_LEAST, _MOST = 2, 16  # runs


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "compare",
        help="show the numbers of several runs side by side",
        description="Show outcome, time, steps, goodput, the last values and the configuration that differs of several "
        "runs, each in a column, with differences from the first one in percent. Nothing is changed.",
    )
    text = "the ID, the name or the start of a run, as in monitel runs, or its folder; 2 to 16 runs"
    command.add_argument("runs", nargs="+", type=target, metavar="RUN", help=text)
    add_options(command, _run)


def _run(arguments: argparse.Namespace) -> int:
    if len(arguments.runs) < _LEAST:
        advice = "monitel ledger RUN shows the time of one run"
        raise CommandError(f"expected at least two runs to compare, got one; {advice}")
    if len(arguments.runs) > _MOST:
        raise CommandError(f"expected at most {_MOST} runs to compare, got {len(arguments.runs)}")
    known = Runs.given(arguments)
    runs = [known.find(each) for each in arguments.runs]
    lines = comparison_lines(runs, Screen.of(sys.stdout))
    finish(arguments, known.problems, comparison_as_json(runs, time.time_ns()), lines)
    return 0


def comparison_lines(runs: Sequence[Run], screen: Screen) -> list[str]:
    """Return the lines of a comparison, with differences from the first run."""
    config, masked = _differing([run.values.config for run in runs])
    rows = [["", *(each.name for each in runs)], *_summary_rows(runs)]
    for title, section in (
        ("time", _time_rows(runs)),
        ("configuration that differs", _setting_rows(config)),
        ("attributes that differ", _setting_rows(_attributes(runs))),
        ("last values of rank zero", _value_rows(runs)),
    ):
        rows += [len(rows[0]) * [""], [title, *len(runs) * [""]], *section] if section else []
    longest = _LONGEST_CELL if screen.columns < UNLIMITED else UNLIMITED
    shown = [[cut(printable(cell), longest) for cell in row] for row in rows]
    remarks = [line for each in _remarks(runs, config, masked) for line in wrapped(printable(each), screen.width)]
    return [*table(shown, screen.columns, ()), *(["", *remarks] if remarks else [])]


def comparison_as_json(runs: Sequence[Run], now_ns: int) -> dict[str, Any]:
    """Return a comparison for programs. Its form is documented; later versions only add fields."""
    config, _ = _differing([run.values.config for run in runs])
    differing = {
        title: {name: [None if each is _MISSING else each for each in row] for name, row in settings.items()}
        for title, settings in (("config_differs", config), ("attributes_differ", _attributes(runs)))
    }
    return {"time": rfc3339(now_ns), "runs": [_run_as_json(each) for each in runs], **differing}


def _run_as_json(run: Run) -> dict[str, Any]:
    stored = run.values
    values = [
        {
            **{name: getattr(each, name) for name in ("name", "unit", "value")},
            "attributes": dict(each.attributes),
            "total": bool(each.total),
        }
        for each in stored.values
    ]
    settings = {"config": stored.config, "attributes": stored.attributes, "left_out": stored.left_out}
    return {**run.as_json, "values": values, **settings}


def _row(
    name: str, values: Sequence[Any], text: Callable[[Any], str], change: Callable[[Any, Any], str] = lambda *_: ""
) -> list[str]:
    """Return a row of values, which may be None, with the differences from the first one."""
    changes = [change(each, values[0]) for each in values]
    texts = [NOTHING if each is None else text(each) for each in values]
    return [name, *(f"{each} ({by})" if by else each for each, by in zip(texts, changes, strict=True))]


def difference(value: float | None, first: float | None) -> str:
    """Return the difference of a value from that of the first run, such as ``+10 %``; empty where it has no meaning."""
    if value is None or not first or value == first or not math.isfinite(change := 100 * (value - first) / abs(first)):
        return ""
    return f"{change:+,.0f} %" if abs(round(change, 1)) >= 10 else f"{change:+.1f} %"  # noqa: PLR2004  two digits


def _points(share: float | None, first: float | None) -> str:
    """Return the difference of two shares in percentage points; empty without one."""
    return "" if share is None or first is None or share == first else f"{100 * (share - first):+.1f} points"


def _summary_rows(runs: Sequence[Run]) -> list[list[str]]:
    times = [each.time for each in runs]
    return [
        _row("outcome", [each.outcome for each in runs], str),
        _row("started", [each.start_ns for each in times], moment),
        _row("attempts", [each.attempts for each in times], str),
        _row("duration", [each.elapsed_ns for each in times], duration, difference),
        _row("steps", [each.steps or None for each in times], "{:,}".format, difference),
        _row("last step", [each.last_step for each in times], "{:,}".format, difference),
        _row("steps/s", [each.rate for each in runs], per_second, difference),
        _row("goodput", [each.goodput for each in times], lambda share: f"{100 * share:.1f} %", _points),
    ]


def _time_rows(runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows of the ledgers: the activities in the order of the largest times, ``step`` first."""
    parts = [{part.name: part for part in parts_of(run.time.activities)} for run in runs]
    largest = {name: max(each[name].time_ns for each in parts if name in each) for name in set().union(*parts)}

    def change(part: Any, first: Any) -> str:
        return difference(part and part.time_ns, first and first.time_ns)

    return [
        _row(name, [each.get(name) for each in parts], lambda part: f"{duration(part.time_ns)}, {part.share}", change)
        for name, *_ in parts_of(largest)
    ]


def _value_rows(runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows of the last values, those of monitel's own sources at the end."""
    numbers = [{each.key: each for each in run.values.values} for run in runs]
    rows = []
    keys: set[Key] = set().union(*numbers)
    for key in sorted(keys, key=lambda key: (key[0].startswith("training."), _name_of(key))):
        found = [of_run.get(key) for of_run in numbers]
        unit = next((each.unit for each in found if each is not None and each.unit), "")
        name = f"{_name_of(key)} ({unit})" if unit and unit != "1" and not unit.startswith("{") else _name_of(key)
        values = [None if each is None else each.value for each in found]
        rows.append(_row(name, values, lambda value: number(value, _DIGITS), difference))
    return rows


def _name_of(key: Key) -> str:
    """Return the name of a value with its attributes: ``loss.mean{split=val}``."""
    name, attributes = key
    listed = ", ".join(f"{attribute}={value}" for attribute, value in attributes)
    return f"{name}{{{listed}}}" if listed else name


def _attributes(runs: Sequence[Run]) -> Settings:
    compared = [
        {name: each for name, each in run.values.attributes.items() if name not in _NOT_COMPARED} for run in runs
    ]
    return _differing(compared)[0]


def _differing(each_run: Sequence[Mapping[str, Scalar]]) -> tuple[Settings, int]:
    """Return the settings in which runs differ, and the number of those that are masked, which are not compared.

    Neither is a run without any setting.
    """
    known = [settings for settings in each_run if settings]
    found: dict[str, Sequence[Any]] = {}
    masked = 0
    for name in sorted(set().union(*known)):
        if len({_setting(settings.get(name, _MISSING)) for settings in known}) > 1:
            found[name] = [settings.get(name, _MISSING) for settings in each_run]
        elif MASK in str(known[0][name]):
            masked += 1
    return found, masked


def _setting_rows(settings: Settings) -> list[list[str]]:
    return [[name, *map(_setting, values)] for name, values in settings.items()]


def _setting(value: Any) -> str:
    if value is _MISSING:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value)


def _remarks(runs: Sequence[Run], config: Settings, masked: int) -> Iterator[str]:
    """Yield sentences about what is not in the table."""
    if without := ", ".join(run.name for run in runs if not run.values.config):
        yield f"no configuration found for {without}"
    elif not config:
        yield "no stored setting of the configuration differs"
    if masked:
        yield f"{masked:,} {'setting is' if masked == 1 else 'settings are'} masked, and may differ"
    for run in runs:
        if count := run.values.left_out:
            yield f"{run.name}: there was no room for {count:,} of its values, settings and attributes"
