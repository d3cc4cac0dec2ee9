"""The screen of ``monitel top``: textual's table with the jobs and their processes, and the report about a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, HelpPanel, Input, Static

from monitel.console.autopsy import process_lines, stack_lines
from monitel.console.live import Live, Look
from monitel.console.reader import read_boxes
from monitel.console.top import COLUMNS, View, summary, table_of
from monitel.text import CommandError, clock_time, printable, wrapped
from monitel.text import Screen as Stream

if TYPE_CHECKING:
    from textual.app import ComposeResult

_ONCE = "use monitel top --once, or --json for programs"
_NO_ANSWER = "stacks: the process has not answered; no Python code runs in it, or it is stopped or dead"


def readings(read: Callable[[], Any], show: Callable[[Any], object], interval: float) -> Event:
    """Read and show a state again and again until the event that is returned is set, or show the exception.

    Nobody waits for the thread: a process that does not answer stops neither the keys nor the end.
    """
    over = Event()

    def run() -> None:
        state = None
        while not (over.is_set() or isinstance(state, Exception)):
            try:
                state = read()
            except Exception as error:
                state = error
            if not over.is_set():
                show(state)
            over.wait(interval)

    Thread(target=run, name="monitel-top", daemon=True).start()
    return over


class Details(Screen[None]):
    """The report about the process of a row, as of ``monitel autopsy``, with the stacks of its threads."""

    BINDINGS: ClassVar[list[Any]] = [Binding("escape,q,f10,left,enter", "app.pop_screen", "Back", key_display="esc")]

    def __init__(self, box: Path, interval: float) -> None:
        super().__init__()
        self._box, self._interval, self._asks = box, interval, False
        self._head, self._report = (Static(markup=False, classes=name) for name in ("head", "report"))

    def compose(self) -> ComposeResult:
        yield from (self._head, VerticalScroll(self._report), Footer())

    def on_mount(self) -> None:
        self._over = readings(self._read, lambda state: self.call_later(self._show, state), self._interval)

    def on_unmount(self) -> None:
        self._over.set()

    def _read(self) -> list[str]:
        """Return the lines of the report: the first one at once, without the stacks."""
        width = max(self.size.width - 2, 20)
        stream = Stream(width, width)
        problems: list[str] = []
        reports = read_boxes([self._box], problems, stacks=self._asks)
        if not reports:
            return [printable("; ".join(problems)) or "the black box is gone; this was its last report"]
        (found,) = reports
        stacks = [*stack_lines(found, stream)]
        if self._asks and found.runs and not stacks:
            stacks = wrapped(_NO_ANSWER, stream.width)
        self._asks = True
        report = process_lines(found.but(stacks=""), stream, time.time_ns())
        return [*takewhile(bool, report), "", *stacks, "", *report]

    def _show(self, state: list[str] | Exception) -> None:
        head, *report = [f"cannot be read: {state!r}"] if isinstance(state, Exception) else state
        self._head.update(head)
        if report:
            self._report.update("\n".join(report))


class JobTable(DataTable[Text]):
    """Whole lines, in one column: a heading spans the width, and a refresh costs a fifth of that of single cells."""

    #: With priority the action comes before the next key is looked at, which may be the first character of a filter.
    BINDINGS: ClassVar[list[Any]] = [
        Binding("home", "scroll_top", "First", show=False),
        Binding("end", "scroll_bottom", "Last", show=False),
        Binding("enter", "select_cursor", "Details"),
        Binding("slash,f4", "app.filter", "Filter", key_display="/", priority=True),
        Binding("s,greater_than_sign", "app.sort(1)", "Sort", key_display="s"),
        Binding("less_than_sign", "app.sort(-1)", "Sort by the column to the left", show=False),
        Binding("r", "app.sort(0)", "Reverse"),
        Binding("question_mark,f1,h", "app.help", "Help", key_display="?"),
        Binding("q,f10", "app.leave", "Quit", key_display="q"),
    ]


class TopApp(App[int]):
    CSS = """
    Screen, Footer, FooterKey, .footer-key--key, .footer-key--description
        { background: ansi_default; color: ansi_default; }
    .head { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    JobTable, VerticalScroll { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1;
        scrollbar-background: ansi_default; scrollbar-color: ansi_bright_black; }
    JobTable, JobTable:focus { background: ansi_default; color: ansi_default; background-tint: transparent; }
    JobTable > .datatable--header, JobTable:focus > .datatable--header
        { background: ansi_default; color: ansi_default; background-tint: transparent; text-style: underline; }
    JobTable > .datatable--cursor, JobTable:focus > .datatable--cursor
        { background: ansi_default; color: ansi_default; text-style: reverse; }
    Input { display: none; border: none; height: 1; padding: 0; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("ctrl+c,ctrl+q", "leave", "Quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "Stop, until fg", show=False, priority=True),
        Binding("escape", "clear", "All rows"),
    ]

    def __init__(self, live: Live, view: View, interval: float) -> None:
        super().__init__(ansi_color=True)
        self.failure: Exception | None = None
        self._live, self._view, self._interval = live, view, interval
        self._look: Look | None = None
        self._boxes: dict[str, Path] = {}
        self._shown: dict[str, Text] = {}
        self._shape: object = None  # width, title, and the keys and heights of the lines that are shown
        self._head = Static("monitel top: reading the black boxes of this machine", markup=False, classes="head")
        self._table = JobTable(cursor_type="row", cell_padding=0, cursor_foreground_priority="css")
        self._input = Input(view.filter, placeholder="only rows with this text; Enter keeps it, Esc removes it")

    def compose(self) -> ComposeResult:
        yield from (self._head, self._table, self._input, Footer())

    def on_mount(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.action_leave, 128 + number)
        self._table.focus()
        self._over = readings(self._live.look, lambda state: self.call_later(self._show, state), self._interval)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def action_leave(self, status: int = 0) -> None:
        self._over.set()
        self.exit(status)

    def action_help(self) -> None:
        (self.action_hide_help_panel if self.screen.query(HelpPanel) else self.action_show_help_panel)()
        self.call_after_refresh(self._draw)

    def action_filter(self) -> None:
        self._input.display = True
        self.screen.set_focus(self._input)

    def action_clear(self) -> None:
        self._input.value = ""
        self.on_input_submitted()

    def on_input_changed(self) -> None:
        self._view.filter = self._input.value
        self._draw()

    def on_input_submitted(self) -> None:
        self._input.display = False
        self.screen.set_focus(self._table)

    def action_sort(self, columns: int) -> None:
        names = [each.name for each in COLUMNS]
        self._view.sort_by(names[(names.index(self._view.sort) + columns) % len(names)])
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the chosen process; of a job the one that its verdict is about."""
        box = self._boxes.get(str(event.row_key.value))
        if box is not None:
            self.push_screen(Details(box, self._interval))

    def _show(self, state: Look | Exception) -> None:
        if isinstance(state, Exception):
            self.failure = state
            self.action_leave(1)
            return
        self._look = state
        self._draw()

    def _draw(self) -> None:
        """Show the last look: what has changed, or everything if the order or the size of the lines is new."""
        width = self._table.container_size.width - 1  # the scroll bar takes one
        if (look := self._look) is None or width < 1:
            return
        wanted = f"  filter {printable(self._view.filter)!r}" if self._view.filter else ""
        order = f"by {self._view.sort}, {'descending' if self._view.descending else 'ascending'}"
        self._head.update(f"monitel top  {clock_time(look.time_ns)}  {summary(look)}{wanted}  {order}", layout=False)
        titles, lines = table_of(look, self._view, width)
        title = Text.assemble(*((text, "reverse" if each.name == self._view.sort else "") for each, text in titles))
        self._boxes = {line.key: line.process.box for line in lines}
        texts = {line.key: Text.assemble(*line.parts, no_wrap=True) for line in lines}
        notes = [*look.problems]
        if not lines and look.processes:
            notes.append("no row contains the text of the filter; Esc removes it")
        elif not lines:
            notes.append("no process of this user with a black box runs here: waiting for one")
        if notes:
            note = "\n".join(line for each in notes for line in wrapped(printable(each), width))
            texts["notes"] = Text(note, "yellow")
        shape = [width, title, *((key, text.plain.count("\n")) for key, text in texts.items())]
        with self.batch_update():
            if shape != self._shape:
                self._rebuild(width, title, texts)
            else:
                for key, text in texts.items():
                    if text != self._shown[key]:
                        self._table.update_cell(key, "line", text)
        self._shape, self._shown = shape, texts

    def _rebuild(self, width: int, title: Text, texts: dict[str, Text]) -> None:
        """Make all lines anew. The cursor stays on its process, and begins on the first one."""
        table, keys, before = self._table, [*texts], [*self._shown]
        place, top = table.cursor_row if before else 1, table.scroll_y
        table.clear(columns=True)
        table.add_column(title, key="line", width=width)
        for key, text in texts.items():
            table.add_row(text, key=key, height=text.plain.count("\n") + 1)
        if before and before[place] in texts:
            place = keys.index(before[place])
        table.move_cursor(row=min(place, len(keys) - 1))
        table.scroll_to(y=top, animate=False)


def run_app(live: Live, view: View, interval: float) -> int:
    """Show the jobs of this machine until a key ends it, and return the exit status."""
    streams = sys.__stdin__, sys.__stdout__, sys.__stderr__
    if not all(each and each.isatty() for each in streams) or os.environ.get("TERM", "dumb") == "dumb":
        raise CommandError(f"monitel top needs a terminal as stdin, stdout and stderr, and not TERM=dumb: {_ONCE}")
    app = TopApp(live, view, interval)
    status = app.run(mouse=False)
    if app.failure is not None:
        raise app.failure
    return app.return_code or 1 if status is None else status
