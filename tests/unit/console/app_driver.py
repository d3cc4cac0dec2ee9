"""Drives the application of ``monitel top`` without a terminal, by textual's own driver for tests."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE

from monitel_otlp.ledger.screen import Screen

pytest.importorskip("textual", reason="the extra monitel-otlp[top] is not installed")

from textual.events import Key, Paste  # it is an extra

from monitel_otlp.terminal.app import TopApp
from monitel_otlp.terminal.listing import Listing
from monitel_otlp.terminal.widgets import Lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from textual.pilot import Pilot

    from monitel_otlp.terminal.app import Source


__all__ = ["Key", "Paste", "Session", "run", "session"]


class Session:
    """A running application.

    Args:
        app: The application.
        pilot: Presses its keys.
    """

    def __init__(self, app: TopApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def widgets(self) -> list[Lines]:
        """The widgets that show lines, from top to bottom."""
        return [*self.app.screen.query(Lines)]

    @property
    def lines(self) -> list[str]:
        """The lines on the screen, without spaces at their ends."""
        return [widget.render_line(y).text.rstrip() for widget in self.widgets for y in range(widget.size.height)]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.lines)

    @property
    def listing(self) -> Listing:
        """The order, the filter and the cursor."""
        return self.app._listing

    @property
    def chosen(self) -> int | None:
        """The rank under the cursor."""
        chosen = self.listing.chosen
        return None if chosen is None else chosen.rank

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until the application has handled them."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], object], expected: str = "the condition") -> None:
        """Wait until a condition holds; fail the test after ``DEADLINE`` seconds."""
        deadline = time.monotonic() + DEADLINE
        while not holds():
            assert time.monotonic() < deadline, f"{expected} does not hold within {DEADLINE:g} s:\n{self.text}"
            await asyncio.sleep(0.01)

    async def next_look(self) -> None:
        """Wait until the application has another look."""
        before = self.app._look
        await self.until(lambda: self.app._look is not before, "another look")

    async def until_shown(self, *words: str) -> None:
        """Wait until the screen contains all words."""
        await self.until(lambda: all(word in self.text for word in words), f"{words} on the screen")


@asynccontextmanager
async def session(
    looks: Source,
    *,
    width: int = 160,
    height: int = 30,
    interval: float = 0.2,
    terminal: Screen | None = None,
    **listing: Any,
) -> AsyncIterator[Session]:
    """Run the application with a screen of this size, and wait for its first look.

    Args:
        looks: The readings.
        width: Columns of the screen.
        height: Lines of the screen.
        interval: Seconds between two readings.
        terminal: The terminal; None for one with colours.
        listing: The order and the filter.
    """
    screen = terminal or Screen(width, terminal=True, colours=True)
    app = TopApp(looks, Listing(screen, **listing), interval)
    async with app.run_test(size=(width, height)) as pilot:
        running = Session(app, pilot)
        await running.until(lambda: any(running.lines) and "reading the black boxes" not in running.text)
        yield running


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a session to its end."""
    asyncio.run(asyncio.wait_for(test(), 2 * DEADLINE))
