"""The keys: those that users of htop expect, and their descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monitel.console.table.columns import COLUMNS
from monitel.console.terminal.line import FAINT, STRONG, Line, plain
from monitel.console.text import labelled

if TYPE_CHECKING:
    from collections.abc import Iterator


_LABEL = 15  # columns of a label, as in labelled()


class Key(NamedTuple):
    """Keys that do the same.

    Attributes:
        keys: Their names in textual, separated by commas.
        action: The action of the screen, or after ``app.`` of the application.
        shown: Their names for a person.
        meaning: The description in the help.
        label: A word for the last line of the screen; empty if it is not there.
    """

    keys: str
    action: str
    shown: str
    meaning: str
    label: str = ""


_HELP = Key("f1,h,question_mark", "app.help", "F1, h, ?", "show this help", "Help")
_PAUSE = Key("p,space,Z", "app.pause", "p, Space, Z", "stop the refresh, or continue it", "Pause")

#: Keys of the list.
LIST_KEYS = (
    Key("up", "move(-1)", "arrows", "move the cursor"),
    Key("down", "move(1)", "", ""),
    Key("pageup", "page(-1)", "PageUp, PageDown", "move the cursor by a page"),
    Key("pagedown", "page(1)", "", ""),
    Key("home", "move(-1000000)", "Home, End", "go to the first or the last row"),
    Key("end", "move(1000000)", "", ""),
    Key("enter", "app.detail(False)", "Enter", "show everything about the chosen process", "Detail"),
    Key("s", "app.detail(True)", "s", "the same, with the Python stacks of its threads"),
    _HELP,
    Key("f3,slash", "search", "F3, /", "go to the next row that contains a text; F3 again: the one after it", "Search"),
    Key("f4,backslash", "filter", "F4, \\", "show only rows that contain a text; empty: all rows", "Filter"),
    Key("f6", "sort", "F6", "choose the column to sort by", "Sort"),
    Key("less_than_sign", "neighbour(-1)", "<, >", "sort by the column to the left or right"),
    Key("greater_than_sign", "neighbour(1)", "", ""),
    Key("I", "invert", "I", "reverse the order"),
    Key("N", "sort_by('pid')", "N", "sort by process id"),
    _PAUSE,
    Key("escape", "clear", "Esc", "remove the filter"),
    Key("q,f10", "app.leave", "q, F10, Ctrl-C", "quit; the jobs are not touched", "Quit"),
    Key("ctrl+z", "app.suspend_process", "Ctrl-Z", "stop monitel top, until fg"),
)

#: Keys of every screen.
COMMON_KEYS = (Key("ctrl+c,ctrl+q", "app.leave", "", ""), Key("ctrl+z", "app.suspend_process", "", ""))

#: Keys of the menu of columns.
MENU_KEYS = (
    Key("up", "move(-1)", "arrows", "move the cursor"),
    Key("down", "move(1)", "", ""),
    Key("home,pageup", "move(-1000000)", "", ""),
    Key("end,pagedown", "move(1000000)", "", ""),
    Key("enter,f6", "choose", "Enter", "sort by the column", "Sort"),
    Key("escape,q,f10,left", "app.back", "Esc, q, F10", "back to the list", "Back"),
)

#: Keys of the view of one process.
DETAIL_KEYS = (
    Key("up", "scroll(-1)", "arrows, PageUp, PageDown, Home, End", "scroll"),
    Key("down", "scroll(1)", "", ""),
    Key("pageup", "page(-1)", "", ""),
    Key("pagedown", "page(1)", "", ""),
    Key("home", "scroll(-1000000)", "", ""),
    Key("end", "scroll(1000000)", "", ""),
    Key("escape,q,f10,left,enter", "app.back", "Esc, q, F10", "back to the list", "Back"),
    Key("s", "stacks", "s", "ask the process for the Python stacks of its threads", "Stacks"),
    _PAUSE,
    _HELP,
)

#: Keys of the help.
HELP_KEYS = tuple(key for key in DETAIL_KEYS if key.action != "stacks" and key not in {_PAUSE, _HELP})


def bar(keys: tuple[Key, ...]) -> Line:
    """Return the last line of a screen: the keys that have a label."""
    parts = []
    for key in keys:
        if key.label:
            name = next((each for each in key.shown.split(", ") if each.startswith(("F", "E"))), key.shown[:1])
            parts += [(f"{name} ", STRONG), (f"{key.label}  ", FAINT)]
    return Line(tuple(parts))


def help_lines(width: int) -> Iterator[Line]:
    """Yield the lines of the help."""
    for title, keys in (("Keys of the list", LIST_KEYS), ("Keys in the view of a process", DETAIL_KEYS)):
        yield plain(title, STRONG)
        for key in keys:
            if key.shown:
                yield from map(plain, _described(key.shown, key.meaning, width))
        yield plain("")
    yield plain("Columns; a narrow terminal leaves out the less important ones", STRONG)
    for column in COLUMNS:
        yield from map(plain, _described(column.title, column.meaning, width))


def _described(name: str, meaning: str, width: int) -> Iterator[str]:
    lines = labelled(name if len(name) < _LABEL else "", meaning, width)
    if len(name) >= _LABEL:
        yield name
    yield from lines
