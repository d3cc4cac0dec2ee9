"""Notes that a job takes by the system's clock, and the time of each activity by them, to compare the ledger with."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")  # the kernel knows the start of a process to this


def now_ns() -> int:
    """Return nanoseconds since the system was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Span(NamedTuple):
    """A period that a job has noted."""

    name: str
    begin_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """Nanoseconds from the begin to the end."""
        return self.end_ns - self.begin_ns


class Notes:
    """The notes of a process: it writes each one to a file at once, so that SIGKILL leaves them.

    Args:
        path: The file, to which attempts of a job append.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def moment(self, name: str) -> None:
        """Note that something happens now."""
        self._write(Span(name, moment := now_ns(), moment))

    def span(self, name: str, begin_ns: int) -> None:
        """Note a period that ends now."""
        self._write(Span(name, begin_ns, now_ns()))

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Note how long the block takes."""
        begin_ns = now_ns()
        try:
            yield
        finally:
            self.span(name, begin_ns)

    def sleep(self, name: str, seconds: float) -> None:
        """Sleep within an activity, and note it as ``slept NAME``."""
        with self.around(f"slept {name}"):
            time.sleep(seconds)  # noqa: TID251  a job of known durations

    def _write(self, span: Span) -> None:
        os.write(self._file, (json.dumps(span) + "\n").encode())


def read(path: Path) -> list[Span]:
    """Return the notes in a file, in order of their ends."""
    return [Span(*json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def moments(notes: Iterable[Span], name: str) -> list[int]:
    """Return the times of all moments with this name."""
    return [each.begin_ns for each in notes if each.name == name]


def slept(notes: Iterable[Span]) -> dict[str, int]:
    """Return the nanoseconds that a job has slept in each activity."""
    found: dict[str, int] = defaultdict(int)
    for each in notes:
        if each.name.startswith("slept "):
            found[each.name.removeprefix("slept ")] += each.ns
    return dict(found)


def durations(spans: Iterable[Span]) -> dict[str, int]:
    """Return the nanoseconds of each name: every nanosecond belongs to the innermost span. Spans must nest."""
    found: dict[str, int] = defaultdict(int)
    open_spans: list[Span] = []
    for each in sorted(spans, key=lambda span: (span.begin_ns, -span.end_ns)):
        while open_spans and open_spans[-1].end_ns <= each.begin_ns:
            open_spans.pop()
        if open_spans:
            assert each.end_ns <= open_spans[-1].end_ns, (open_spans[-1], each)
            found[open_spans[-1].name] -= each.ns
        found[each.name] += each.ns
        open_spans.append(each)
    return dict(found)


def check(ledger: Mapping[str, int], truth: Mapping[str, int], at_least: Mapping[str, int]) -> None:
    """Check each activity of a ledger: within 1 % of the run, and not less than what was slept in it.

    ``shutdown`` may be shorter: the last thing that a process does is to store its ledger, however long that takes.

    Args:
        ledger: Nanoseconds by activity.
        truth: Nanoseconds by activity, by the notes.
        at_least: Nanoseconds by activity of which the ledger must not miss any.
    """
    run_ns = sum(truth.values())
    for name in {*ledger, *truth}:
        wrong = ledger.get(name, 0) - truth.get(name, 0)
        if name != "shutdown":
            wrong = abs(wrong)
        assert wrong <= run_ns / 100, (name, ledger, truth)
    for name, ns in at_least.items():
        assert ledger.get(name, 0) >= ns, (name, ledger, at_least)
