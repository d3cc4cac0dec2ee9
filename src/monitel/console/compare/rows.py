"""The rows of a comparison: for each, its name, and the text and the difference of each run."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.console.compare.run import NOT_COMPARED, name_of
from monitel.console.ledger.shares import parts_of
from monitel.console.text import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monitel.console.compare.run import Run
    from monitel.console.values.run_values import Key, Scalar

NOTHING = "-"

_LARGE = 10**6
_WHOLE_PERCENT = 10  # from here on without a decimal


def number(value: float | None) -> str:
    """Return a number with six digits at most.

    Example:
        >>> number(0.123456789), number(1200), number(1e-9), number(None)
        ('0.123457', '1,200', '1e-09', '-')
    """
    if value is None:
        return NOTHING
    if math.isfinite(value) and value == int(value) and abs(value) < 10**15:
        return f"{int(value):,}"
    return f"{value:,.6g}" if abs(value) < _LARGE else f"{value:.6g}"


def percent(share: float | None) -> str:
    """Return a share in percent."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def period(time_ns: int | None) -> str:
    """Return a duration in words."""
    return NOTHING if time_ns is None else duration(time_ns)


def moment(time_ns: int | None) -> str:
    """Return a time by the local clock."""
    if time_ns is None:
        return NOTHING
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return "an impossible time"


def difference(value: float | None, first: float | None) -> str:
    """Return the difference of a value from that of the first run in percent; empty where it has no meaning.

    Example:
        >>> difference(1.1, 1.0), difference(30.0, 10.0), difference(1.0, 1.0), difference(1.0, 0.0)
        ('+10 %', '+200 %', '', '')
    """
    if value is None or not first or value == first or not (math.isfinite(value) and math.isfinite(first)):
        return ""
    change = 100 * (value - first) / abs(first)
    if not math.isfinite(change):
        return ""
    return f"{change:+,.0f} %" if abs(round(change, 1)) >= _WHOLE_PERCENT else f"{change:+.1f} %"


def points(share: float | None, first: float | None) -> str:
    """Return the difference of two shares in percentage points; empty without one."""
    if share is None or first is None or share == first or not math.isfinite(share - first):
        return ""
    return f"{100 * (share - first):+.1f} points"


class Row(NamedTuple):
    """A row.

    Attributes:
        name: Its name.
        texts: The text of each run.
        differences: The difference of each run from the first one; empty texts where it has no meaning.
    """

    name: str
    texts: Sequence[str]
    differences: Sequence[str]


def summary_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows about whole runs: outcome, time and steps."""
    return [
        _plain("outcome", [each.outcome or NOTHING for each in runs]),
        _plain("started", [moment(each.started_ns) for each in runs]),
        _compared("attempts", [each.attempts for each in runs], number, _no_difference),
        _compared("duration", [each.duration_ns for each in runs], period, difference),
        _compared("steps", [each.steps for each in runs], number, difference),
        _compared("last step", [each.last_step for each in runs], number, difference),
        _compared("steps/s", [each.rate for each in runs], _short, difference),
        _compared("goodput", [each.goodput for each in runs], percent, points),
    ]


def time_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows of the ledgers: the activities in the order of the largest times, ``step`` first."""
    parts = [{part.name: part for part in parts_of(run.activities)} for run in runs]
    largest: dict[str, int] = {}
    for of_run in parts:
        for part in of_run.values():
            largest[part.name] = max(largest.get(part.name, 0), part.time_ns)
    rows = []
    for part in parts_of(largest):
        found = [of_run.get(part.name) for of_run in parts]
        texts = [NOTHING if each is None else f"{period(each.time_ns)}, {each.share}" for each in found]
        times = [None if each is None else each.time_ns for each in found]
        rows.append(Row(part.name, texts, [difference(each, times[0]) for each in times]))
    return rows


def value_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows of the last values, those of monitel's own sources at the end."""
    keys: dict[Key, None] = {}
    for run in runs:
        keys.update(dict.fromkeys(run.numbers))
    rows = []
    for key in sorted(keys, key=lambda key: (key[0].startswith("training."), name_of(key))):
        found = [run.numbers.get(key) for run in runs]
        unit = next((each.unit for each in found if each is not None and each.unit), "")
        name = f"{name_of(key)} ({unit})" if unit and unit != "1" and not unit.startswith("{") else name_of(key)
        values = [None if each is None else each.value for each in found]
        rows.append(_compared(name, values, number, difference))
    return rows


class Settings(NamedTuple):
    """The settings in which runs differ.

    Attributes:
        differing: The values of the runs by name. A value is missing where a run does not have it.
        equal: The number of settings that are the same in all runs.
    """

    differing: Mapping[str, Sequence[Scalar | Missing]]
    equal: int


class Missing:
    """The place of a setting that a run does not have."""


MISSING = Missing()


def settings_of(each_run: Sequence[Mapping[str, Scalar]], *, without: frozenset[str] = frozenset()) -> Settings:
    """Return the settings in which runs differ. A run without any setting is not compared.

    Args:
        each_run: The settings of each run.
        without: Names that are not compared.
    """
    known = [settings for settings in each_run if settings]
    names = sorted({name for settings in known for name in settings if name.replace("_", ".") not in without})
    differing: dict[str, Sequence[Scalar | Missing]] = {}
    for name in names:
        texts = {_setting(settings.get(name, MISSING)) for settings in known}
        if len(texts) > 1:
            differing[name] = [settings.get(name, MISSING) for settings in each_run]
    return Settings(differing, len(names) - len(differing))


def config_of(runs: Sequence[Run]) -> Settings:
    """Return the configuration in which runs differ."""
    return settings_of([run.config for run in runs])


def attributes_of_runs(runs: Sequence[Run]) -> Settings:
    """Return the attributes of the resources in which runs differ."""
    return settings_of(
        [run.attributes for run in runs], without=frozenset(each.replace("_", ".") for each in NOT_COMPARED)
    )


def setting_rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows of settings."""
    for name, values in settings.differing.items():
        yield _plain(name, [_setting(each) for each in values])


def _setting(value: Any) -> str:
    if value is MISSING:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value)


def _plain(name: str, texts: Sequence[str]) -> Row:
    return Row(name, texts, [""] * len(texts))


def _compared(
    name: str,
    values: Sequence[Any],
    text: Callable[[Any], str],
    compare: Callable[[Any, Any], str],
) -> Row:
    return Row(name, [text(each) for each in values], ["", *(compare(each, values[0]) for each in values[1:])])


def _no_difference(_value: float | None, _first: float | None) -> str:
    return ""


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.4g}"
