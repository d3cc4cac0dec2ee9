"""Fixtures for tests of activities: a ledger whose time stands still until a test moves it, and a training thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import _activities, activities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEADLINE = 60


class Book:
    """The ledger of a test, in seconds."""

    def __init__(self) -> None:
        self._now_ns = 0
        self.made = _activities.Activities(activities._new_name, activities._decorate, lambda: self._now_ns)
        self.made.begin(0, "startup", "other")

    def wait(self, seconds: int) -> None:
        """Let time pass."""
        self._now_ns += seconds * 10**9

    def slow(self, seconds: int, error: BaseException | None = None) -> Slow:
        """Return an object that takes this long to pickle, and may raise."""
        return Slow(self, seconds, error)

    @property
    def seconds(self) -> dict[str, int]:
        """Seconds of each activity so far; they add up."""
        read = self.made.read()
        assert read is not None
        elapsed_ns, totals, _, ignored = read
        assert self._now_ns == elapsed_ns == sum(totals.values())
        assert 0 == ignored, "a source has entered an activity in another thread"
        return {name: ns // 10**9 for name, ns in totals.items() if ns}


class Slow:
    """An object that takes a time to pickle, or raises."""

    def __init__(self, book: Book, seconds: int, error: BaseException | None) -> None:
        self._book = book
        self._seconds = seconds
        self._error = error

    def __reduce__(self) -> Any:
        self._book.wait(self._seconds)
        if self._error is not None:
            raise self._error
        return (int, ())


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    """Provide a ledger that begins now, in startup, with a clock of the test."""
    book = Book()
    monkeypatch.setattr(activities, "_activities", book.made)
    monkeypatch.setattr(activities, "_activity", book.made.activity)
    return book


@pytest.fixture
def events() -> Iterator[list[monitel.Event]]:
    """Collect the events of the test."""
    with monitel.testing.capture_events() as events:
        yield events


class Other:
    """Another thread, which runs functions one by one."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[[], object]) -> None:
        """Run a function, which must end when ``ended`` is set."""
        self._threads.append(threading.Thread(target=function, daemon=True))
        self._threads[-1].start()

    def run(self, function: Callable[[], object]) -> None:
        """Run a function to its end."""
        self.start(function)
        self._threads[-1].join(_DEADLINE)
        assert not self._threads[-1].is_alive()

    def wait(self) -> None:
        """Wait for the end, in a thread."""
        assert self.ended.wait(_DEADLINE)

    def end(self) -> None:
        """Let the functions end, and wait for them."""
        self.ended.set()
        for each in self._threads:
            each.join(_DEADLINE)
            assert not each.is_alive()


@pytest.fixture
def other() -> Iterator[Other]:
    """Provide another thread."""
    other = Other()
    yield other
    other.end()
