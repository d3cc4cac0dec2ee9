"""The screen about one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from monitel.console.terminal.background import Background
from monitel.console.terminal.detail import Stacks, answer_lines, detail_lines, read_details, read_stacks
from monitel.console.terminal.key_screen import ScrolledScreen
from monitel.console.terminal.keys import DETAIL_KEYS
from monitel.console.terminal.line import BAD, STRONG, WARNING, Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.live import Look
    from monitel.console.process import Process
    from monitel.console.terminal.detail import Details
    from monitel.console.text import Screen as Terminal


class DetailScreen(ScrolledScreen):
    """Everything about one process. A thread reads its box.

    Args:
        terminal: The terminal.
        rank: The row of the process.
        interval: Seconds between two readings of its box.
        stacks: Ask for its stacks at once.
    """

    KEYS: ClassVar = DETAIL_KEYS

    class Seen(Message):
        """A look into the box, an answer with stacks, or the error that has ended a thread."""

        def __init__(self, seen: Details | Stacks | Exception) -> None:
            super().__init__()
            self.seen = seen

    def __init__(self, terminal: Terminal, rank: Process, interval: float, *, stacks: bool) -> None:
        super().__init__(terminal)
        self._rank = rank
        self._details: Details | None = None
        self._note = ""
        self._stacks: Stacks | None = None
        self._now_ns = rank.seen_ns
        self._asking = False
        self._ask_first = stacks
        self.paused = False
        self._readings = Background(lambda: read_details(rank.box), self._deliver, self._deliver, interval)

    def on_mount(self) -> None:
        """Begin to read."""
        super().on_mount()
        self._readings.start()
        if self._ask_first:
            self.action_stacks()

    def on_unmount(self) -> None:
        """End the reading, without waiting for it."""
        self._readings.close(timeout=0)

    def take(self, look: Look) -> None:
        """Take the row of the process from a look."""
        self._rank = next((rank for rank in look.processes if rank.box == self._rank.box), self._rank)
        self._now_ns = look.time_ns

    def head(self) -> Line:
        """Return the title, and the state of the readings."""
        parts = [("monitel top: one process", STRONG)]
        if self.paused:
            parts.append(("  PAUSED, p continues", WARNING))
        elif slow := self._readings.slow_seconds:
            parts.append((f"  reading the black box has taken {slow:.0f} s so far", BAD))
        elif self._asking:
            parts.append(("  waiting for the stacks of the process", WARNING))
        elif self._note:
            parts.append((f"  {self.terminal.printable(self._note)}", WARNING))
        return Line(tuple(parts))

    def lines(self, width: int) -> Sequence[Line]:
        """Return the findings, and the stacks that were asked for."""
        shown = [*detail_lines(self._rank, self._details, self.terminal, width, self._now_ns)]
        if self._stacks is not None:
            shown += answer_lines(self._stacks, self.terminal, width)
        return shown

    def action_stacks(self) -> None:
        """Ask the process for its stacks, in a thread."""
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._request, name="monitel-top-stacks", daemon=True).start()
            self.draw()

    def on_detail_screen_seen(self, message: Seen) -> None:
        """Show a new state."""
        seen = message.seen
        if isinstance(seen, Stacks):
            self._asking, self._stacks = False, seen
            number = len(self.lines(self.line_width))
            self.draw()
            answer = len([*answer_lines(seen, self.terminal, self.line_width)])
            self.body.scroll_to(y=number - answer + 1, animate=False, force=True)
            return
        if self.paused and self._details is not None:
            return
        if isinstance(seen, Exception):
            self._note = f"the box cannot be read: {seen}"
        elif seen.found is None:
            self._note = "; ".join(seen.problems) or "the black box is gone: these are its last numbers"
        else:
            self._note, self._details = "", seen
        self.draw()

    def _request(self) -> None:
        try:
            self._deliver(read_stacks(self._rank.box))
        except Exception as error:
            self._deliver(error)

    def _deliver(self, seen: Details | Stacks | Exception) -> None:
        self.post_message(self.Seen(seen))
