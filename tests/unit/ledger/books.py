"""Activities with a clock of the test."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

Function = TypeVar("Function")


class Time:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        """Return the time in nanoseconds."""
        return self.now_ns


class Book:
    """The activities of a package that begin at 1,000 ns, with a clock of the test."""

    def __init__(self, monitel: ModuleType) -> None:
        self.time = Time()
        module = monitel.activities
        self.made = module.Activities(module._new_name, module._decorate, self.time)
        self.made.begin(1000, "startup", "other")
        self.activity = self.made.activity

    def wait(self, ns: int) -> None:
        """Let time pass."""
        self.time.now_ns += ns

    @property
    def totals(self) -> dict[str, int]:
        """Nanoseconds by name; they add up."""
        elapsed_ns, totals, current, _ = self.made.read()
        assert self.time.now_ns - 1000 == elapsed_ns == sum(totals.values())
        assert current in totals
        return {name: total for name, total in totals.items() if total}

    @property
    def ignored(self) -> int:
        """Number of entries without effect."""
        return int(self.made.read()[3])


def in_thread(function: Any) -> None:
    """Run a function in another thread, to its end."""
    thread = Thread(target=function)
    thread.start()
    thread.join()


def decorator(monitel: ModuleType, name: str) -> Callable[[Function], Function]:
    """Return an activity of a package, as a decorator with types."""
    made: Callable[[Function], Function] = monitel.activity(name)
    return made
