"""The application behind ``monitel top``: it shows looks at the jobs of this machine until a key ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.events import Event, Key
from textual.message import Message

from monitel.blackbox.folder import FolderError
from monitel.console.terminal.background import Background
from monitel.console.terminal.detail_screen import DetailScreen
from monitel.console.terminal.ending import Ending, is_terminal_gone
from monitel.console.terminal.key_screen import HelpScreen, KeyScreen
from monitel.console.terminal.list_screen import ListScreen
from monitel.console.terminal.listing import Listing
from monitel.console.text import Screen

if TYPE_CHECKING:
    from monitel.console.live import Live, Look


_ONCE = "use monitel top --once, or --json for programs"


class TopApp(App[int]):
    """The list of ranks, and the screens above it.

    Args:
        ranks: The readings.
        listing: The order and the filter to begin with.
        interval: Seconds between two looks.
        ending: Ends the process if a thread of the screen does not; None if there is no terminal, as in tests.
    """

    CSS: ClassVar[str] = "Screen { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False

    class Looked(Message):
        """A look, or the error that has ended the readings."""

        def __init__(self, look: Look | Exception) -> None:
            super().__init__()
            self.look = look

    def __init__(self, ranks: Live, listing: Listing, interval: float, ending: Ending | None = None) -> None:
        super().__init__(ansi_color=True)
        self.failure: Exception | None = None
        self._look: Look | None = None
        self._listing, self._interval, self._ending = listing, interval, ending
        self._list = ListScreen(listing)
        self._readings = Background(ranks.look, self._deliver, self._deliver, interval, close=ranks.close)

    def get_default_screen(self) -> ListScreen:
        """Return the list."""
        return self._list

    def on_mount(self) -> None:
        """Begin to read, and handle the signals that end a process."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._end, 128 + number)
        self._readings.start()
        self.set_interval(1.0, self._show_slowness)

    def on_unmount(self) -> None:
        """End the readings."""
        self._readings.close()

    async def on_event(self, event: Event) -> None:
        """Run the action of a key before the next key is looked at."""
        if not isinstance(event, Key):
            await super().on_event(event)
            return
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, KeyScreen) and self.return_value is None:  # it does not end
            action = screen.action_of(event)
            if action:
                await self.run_action(action, screen)

    def on_top_app_looked(self, message: Looked) -> None:
        """Show a look."""
        if isinstance(message.look, Exception):
            self.failure = message.look
            self._end(1)
        else:
            self._look = message.look
            self._show_look()

    def action_detail(self, stacks: bool) -> None:
        """Show the chosen process."""
        chosen = self._listing.chosen
        if chosen is not None and not self._readings.slow_seconds:  # a thread more would hang as well
            detail = DetailScreen(self._listing.screen, chosen, self._interval, stacks=stacks)
            detail.paused = self._list.paused
            self.push_screen(detail)

    def action_help(self) -> None:
        """Show the keys."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self._listing.screen))

    async def action_back(self) -> None:
        """Close the screen that is shown."""
        await self.pop_screen()

    def action_pause(self) -> None:
        """Stop or continue to show what is new."""
        paused = not self._list.paused
        for screen in self.screen_stack:
            if isinstance(screen, ListScreen | DetailScreen):
                screen.paused = paused
                screen.draw_head()
        self._show_look()

    def action_leave(self) -> None:
        """Quit."""
        self._end(0)

    def _end(self, status: int) -> None:
        if self._ending is not None:
            self._ending.begin(status)
        self.exit(status)

    def _show_slowness(self) -> None:
        if self._ending is not None and is_terminal_gone():
            self._end(128 + signal.SIGHUP)
            return
        self._list.slow_seconds = self._readings.slow_seconds
        if isinstance(self.screen, ListScreen | DetailScreen):
            self.screen.draw_head()

    def _show_look(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ListScreen | DetailScreen) and self._look is not None and not screen.paused:
                screen.take(self._look)

    def _deliver(self, look: Look | Exception) -> None:
        self.post_message(self.Looked(look))


def run_app(ranks: Live, *, interval: float = 1.0, sort: str = "rank", filter_text: str = "") -> int:
    """Show the jobs of this machine in the terminal until a key ends it.

    Args:
        ranks: The readings. They are closed at the end, in the thread that reads, or here if it was never started. A
            reading that hangs keeps them open.
        interval: Seconds between two looks.
        sort: Name of the column to sort by.
        filter_text: Text that rows must contain.

    Returns:
        The exit status: 0, or 128 and the number of the signal that has ended it.

    Raises:
        FolderError: There is no terminal.
        ValueError: There is no such column.
    """
    ending = Ending()
    try:
        app = _app(ranks, interval, sort, filter_text, ending)
    except BaseException:
        ranks.close()
        raise
    status: int | None = 1
    try:
        status = app.run(mouse=False)
        status = app.return_code or 1 if status is None else status
    finally:
        ending.finish(1 if status is None else status)
    if app.failure is not None:
        raise app.failure
    return status


def _app(ranks: Live, interval: float, sort: str, filter_text: str, ending: Ending) -> TopApp:
    terminal = Screen.of(sys.stdout)
    for name, stream in (("stdin", sys.__stdin__), ("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        if stream is None or not stream.isatty():
            raise FolderError(f"monitel top needs a terminal, and {name} is not one: {_ONCE}")
    if not terminal.terminal:
        raise FolderError(f"monitel top needs a terminal that can move the cursor, and TERM is {_term()!r}: {_ONCE}")
    return TopApp(ranks, Listing(terminal, sort, filter_text), interval, ending)


def _term() -> str:
    return os.environ.get("TERM", "")
