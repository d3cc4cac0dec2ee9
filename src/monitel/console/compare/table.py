"""A comparison as text: a column for each run, or blocks where the screen is too narrow for columns."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from monitel.console.compare.rows import (
    attributes_of_runs,
    config_of,
    setting_rows,
    summary_rows,
    time_rows,
    value_rows,
)
from monitel.console.text import columns_of, pad, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from monitel.console.compare.rows import Row, Settings
    from monitel.console.compare.run import Run
    from monitel.console.text import Screen

_GAP = "  "
_LEAST_NAME, _LONGEST_NAME = 12, 40  # columns
_LEAST_COLUMN = 14
_SHOWN = 30  # rows of values


def full_width(screen: Screen, stream: TextIO) -> Screen:
    """Return a screen with all columns of the terminal, which a table of several runs needs."""
    if not screen.terminal or os.environ.get("COLUMNS"):
        return screen
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # closed, or not a terminal
        return screen
    return replace(screen, width=max(columns - 1, screen.width))


def comparison_lines(runs: Sequence[Run], screen: Screen, *, complete: bool = False) -> list[str]:
    """Return the lines of a comparison.

    Args:
        runs: The runs. Differences are those from the first one.
        screen: The stream that the lines are printed to.
        complete: Show all values.
    """
    values = value_rows(runs)
    shown = values if complete else values[:_SHOWN]
    sections: list[tuple[str, list[Row]]] = [("", summary_rows(runs)), ("time", time_rows(runs))]
    if shown:
        sections.append(("last values of rank zero", shown))
    config, attributes = config_of(runs), attributes_of_runs(runs)
    if config.differing:
        sections.append(("configuration that differs", [*setting_rows(config)]))
    if attributes.differing:
        sections.append(("attributes that differ", [*setting_rows(attributes)]))
    table = _Table(runs, [row for _, rows in sections for row in rows], screen)
    lines = table.heading()
    for title, rows in sections:
        if title and rows:
            lines += ["", *wrapped(title, screen.width)]
        for row in rows:
            lines += table.row(row)
        if rows is shown and len(values) > len(shown):
            lines += wrapped(f"and {len(values) - len(shown):,} more values: --all shows them", screen.width)
    remarks = _remarks(runs, config, screen)
    return [*lines, "", *(line for each in remarks for line in wrapped(each, screen.width))]


class _Table:
    """The columns of the runs."""

    def __init__(self, runs: Sequence[Run], rows: Sequence[Row], screen: Screen) -> None:
        self._screen = screen
        self._labels = [screen.printable(run.label) for run in runs]
        longest = max((columns_of(screen.printable(row.name)) for row in rows), default=0)
        needed = max(
            [_LEAST_COLUMN, *map(columns_of, self._labels), *(columns_of(text) for row in rows for text in _cells(row))]
        )
        for_columns = screen.width - len(runs) * (_LEAST_COLUMN + len(_GAP))
        self._name = max(min(longest, _LONGEST_NAME, for_columns), _LEAST_NAME)
        left = (screen.width - self._name) // len(runs) - len(_GAP)
        self._column = min(needed, left)
        self._has_columns = left >= _LEAST_COLUMN

    def heading(self) -> list[str]:
        """Return the names of the runs."""
        if self._has_columns:
            return [*self._in_columns("", self._labels)]
        return [*self._in_block(self._labels, "")]

    def row(self, row: Row) -> Iterator[str]:
        """Yield the lines of a row."""
        name = self._screen.printable(row.name)
        cells = [self._screen.printable(text) for text in _cells(row)]
        if self._has_columns:
            yield from self._in_columns(name, cells)
        else:
            yield from _broken(name, self._screen.width)
            yield from self._in_block(cells, "  ")

    def _in_columns(self, name: str, cells: Sequence[str]) -> Iterator[str]:
        parts = [_broken(name, self._name), *(_broken(cell, self._column) for cell in cells)]
        for first, *others in zip_longest(*parts, fillvalue=""):
            columns = [pad(first, self._name), *(pad(each, self._column) for each in others)]
            yield _GAP.join(columns).rstrip()

    def _in_block(self, cells: Sequence[str], indent: str) -> Iterator[str]:
        for number, cell in enumerate(cells, start=1):
            label = f"{indent}{number}  "
            for line in _broken(cell, self._screen.width - len(label)):
                yield f"{label}{line}".rstrip()
                label = " " * len(label)


def _broken(text: str, columns: int) -> list[str]:
    """Return the lines of a text that may be too long: its end is what often differs between runs."""
    return [text] if columns_of(text) <= columns else [*wrapped(text, columns)] or [""]


def _cells(row: Row) -> list[str]:
    return [f"{text} ({change})" if change else text for text, change in zip(row.texts, row.differences, strict=True)]


def _remarks(runs: Sequence[Run], config: Settings, screen: Screen) -> Iterator[str]:
    """Yield sentences about what is not in the table."""
    known = [run for run in runs if run.config]
    if len(known) < len(runs):
        without = ", ".join(screen.printable(run.label) for run in runs if not run.config)
        yield f"no configuration found for {without}"
    if len(known) > 1 and not config.differing:
        is_complete = not any(run.left_out for run in known)
        yield "the configuration is the same" if is_complete else "the settings that were stored are the same"
    elif len(known) > 1 and config.equal:
        settings = "setting of the configuration is" if config.equal == 1 else "settings of the configuration are"
        yield f"{config.equal:,} other {settings} the same"
    for run in runs:
        if run.left_out:
            missing = "value, setting or attribute was" if run.left_out == 1 else "values, settings and attributes were"
            reason = "there was no room, or a name was too long"
            yield f"{screen.printable(run.label)}: {run.left_out:,} {missing} not stored: {reason}"
    for run in runs:
        yield f"{screen.printable(run.label)}: from {screen.printable(run.source)}"
