"""Activities: their durations add up to the elapsed time, whatever enters and leaves, in whatever order."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.ledger.books import Book

if TYPE_CHECKING:
    from types import ModuleType

NAMES = ["evaluation", "data", "a", "a", "step"]


def test_nested_activities_belong_to_the_innermost(book: Book) -> None:
    """An inner activity interrupts the outer one."""
    book.wait(1)
    with book.activity("evaluation"):
        book.wait(20)
        with book.activity("data"):
            book.wait(300)
        book.wait(4000)
    book.wait(50000)
    assert {"startup": 1, "evaluation": 4020, "data": 300, "other": 50000} == book.totals


def test_startup_lasts_until_the_first_step(book: Book) -> None:
    """An activity that belongs to a start does not end it."""
    for name in ("init", "compile", "data", "checkpoint.load", "stuck"):
        with book.activity(name):
            book.wait(1)
        book.wait(10)
    book.made.end_startup("step")
    book.wait(500)
    with book.activity("data"):
        book.wait(1000)
    of_start = {"startup": 50, "init": 1, "compile": 1, "data": 1001, "checkpoint.load": 1, "stuck": 1}
    assert {**of_start, "step": 500} == book.totals


def test_without_steps_the_rest_is_other(book: Book) -> None:
    """The first activity that is not part of a start ends startup; a step can still come."""
    book.wait(1)
    with book.activity("rollout"):
        book.wait(2)
    book.wait(4)
    book.made.end_startup("step")
    book.wait(8)
    assert {"startup": 1, "rollout": 2, "other": 4, "step": 8} == book.totals


class Model:
    """The rules of the ledger, as simply as possible. Objects are numbers, threads too."""

    def __init__(self) -> None:
        self.expected: dict[str, int] = {}
        self.stack: list[int] = []
        self.without_effect = [0] * len(NAMES)
        self.ignored = self.owner = 0
        self.between, self.is_starting = "startup", True

    def wait(self, ns: int) -> None:
        """Let time pass."""
        current = NAMES[self.stack[-1]] if self.stack else self.between
        self.expected[current] = self.expected.get(current, 0) + ns

    def enter(self, number: int, thread: int) -> None:
        """Enter an activity in a thread."""
        if thread != self.owner:
            self.without_effect[number] += 1
            self.ignored += 1
            return
        self.stack.append(number)
        if self.is_starting and NAMES[number] != "data":
            self.between, self.is_starting = "other", False

    def leave(self, number: int, thread: int) -> None:
        """Leave an activity in a thread."""
        has_entry = number in self.stack
        if self.without_effect[number] and (thread != self.owner or not has_entry):
            self.without_effect[number] -= 1
        elif has_entry:
            del self.stack[len(self.stack) - 1 - self.stack[::-1].index(number)]

    def step(self, thread: int) -> None:
        """Set a step in a thread."""
        self.between, self.is_starting = "step", False
        if thread != self.owner:
            for number in self.stack:
                self.without_effect[number] += 1
            self.owner, self.stack = thread, []

    def abandon(self, number: int) -> None:
        """Drop an activity, whether it is entered or not."""
        self.stack = [each for each in self.stack if each != number]
        self.without_effect[number] = 0


ACTIONS = ("enter", "leave", "step", "abandon", "read")
STEPS = st.tuples(
    st.sampled_from(ACTIONS), st.integers(0, len(NAMES) - 1), st.integers(0, 10**12), st.sampled_from([0, 0, 0, 1])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=60))
def test_any_nesting_adds_up(monitel: ModuleType, steps: list[tuple[str, int, int, int]]) -> None:
    """Activities enter and leave in any order, several times, in two threads: the durations are those of a model."""
    with ThreadPoolExecutor(1) as other_thread:
        book, model = Book(monitel), Model()
        made = [book.activity(name) for name in NAMES]
        reads = []
        for action, number, ns, thread in steps:
            book.wait(ns)
            model.wait(ns)
            calls: dict[str, Any] = {
                "enter": made[number].__enter__,
                "leave": made[number].__exit__,
                "step": lambda: book.made.end_startup("step"),
            }
            if action in calls:
                call = calls[action]
                other_thread.submit(call).result() if thread else call()
                del call
                getattr(model, action)(*([] if action == "step" else [number]), thread)
                calls.clear()
            else:
                reads.append(book.totals)
                if action == "abandon":
                    calls.clear()
                    made[number] = book.activity(NAMES[number])
                    model.abandon(number)
        reads.append(book.totals)
    assert {name: total for name, total in model.expected.items() if total} == reads[-1]
    assert model.ignored == book.ignored
    for one, other in pairwise(reads):
        assert all(total <= other[name] for name, total in one.items())


def test_exceptions_leave_activities(book: Book) -> None:
    """The exception goes on, and the activity is over."""
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with suppress(BaseException), book.activity("evaluation"):
            book.wait(1)
            raise error
        book.wait(10)
    assert {"evaluation": 3, "other": 30} == book.totals


def test_depth_is_limited(book: Book) -> None:
    """Activities nested more deeply than 256 count as the one around them."""
    deep = [book.activity("a") for _ in range(300)]
    for each in deep:
        each.__enter__()
    inner = book.activity("b")
    with inner:
        book.wait(1)
    for each in reversed(deep):
        each.__exit__(None, None, None)
    book.wait(10)
    assert {"a": 1, "other": 10} == book.totals
    assert 45 == book.ignored


def test_a_clock_that_goes_back_takes_nothing(book: Book) -> None:
    """Time that has been counted stays, as between two threads whose readings change places."""
    book.wait(100)
    with book.activity("evaluation"):
        book.time.now_ns -= 50
    assert (100, {"startup": 100, "other": 0}) == book.made.read()[:2]


class Text(str):
    """A str that pretends to be another one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return True."""
        return True

    def __hash__(self) -> int:
        """Return the hash of another str."""
        return hash("data")

    def __str__(self) -> str:
        """Return another str."""
        return "data"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (3, TypeError, "activity name must be a str, got int: 3"),
        (None, TypeError, "activity name must be a str, got NoneType"),
        (len, TypeError, "activity name must be a str, got builtin_function_or_method"),
        (["data"], TypeError, "activity name must be a str, got list"),
        ("\ud800", TypeError, "text that UTF-8 can hold"),
        (b"\xff", UnicodeDecodeError, "invalid start byte"),
        ("", ValueError, "must not be empty"),
    ],
)
def test_wrong_names_are_refused(monitel: ModuleType, name: Any, error: type[Exception], message: str) -> None:
    """The message shows what was given; the ledger has no such name afterwards."""
    for enter in (monitel.activity, monitel.activities.enter_for_owner):
        with pytest.raises(error, match=message):
            enter(name)
    assert ["startup"] == [*monitel.ledger().activities]


@pytest.mark.parametrize("name", ["é", "two words", "a\n\0b", "\U0001f600", "x" * 10_000, Text("mine"), b"bytes"])
def test_any_text_is_a_name(monitel: ModuleType, name: Any) -> None:
    """An object of a subclass counts under its text, whatever its methods return."""
    text = name.decode() if isinstance(name, bytes) else str.__str__(name)
    for _ in range(2):
        with monitel.activity(name) as entered:
            assert text == entered.name == monitel.ledger().current
            assert type(entered.name) is str
            assert f"activity({text!r})" == repr(entered)
    assert {"startup", "other", text} >= {*monitel.ledger().activities} >= {"startup", text}


def test_names_are_bounded(monitel: ModuleType) -> None:
    """Beyond 64 names further ones count as other; those of monitel always have room."""
    for number in range(100):
        with monitel.activity(f"activity {number}"):
            pass
    assert "other" == monitel.activity("one more").name
    assert "activity 1" == monitel.activity("activity 1").name
    for name in monitel.activities.ACTIVITIES:
        assert name == monitel.activity(name).name
    assert 64 >= len(monitel.ledger().activities)
    with monitel.activity("one more"):
        assert "other" == monitel.ledger().current


def test_wrong_calls_are_refused(monitel: ModuleType) -> None:
    """An activity decorates one function, and is made by activity() alone."""
    made = monitel.activity("data")
    for call in (made, lambda: made(len, len), lambda: made(function=len), type(made), lambda: made(3)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(AttributeError):
        made.name_ = "x"

    async def enter() -> None:
        async with made:
            pass

    with pytest.raises((TypeError, AttributeError), match=r"__aenter__|asynchronous context manager"):
        enter().send(None)
    assert "startup" == monitel.ledger().current


def test_copies_are_not_entered(monitel: ModuleType) -> None:
    """A copy, and an activity that was pickled, have the name alone."""
    with monitel.activity("data") as made:
        for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert other is not made
            assert "data" == other.name
            other.__exit__(None, None, None)
            assert "data" == monitel.ledger().current
    assert "startup" == monitel.ledger().current


def test_a_ledger_is_a_value(monitel: ModuleType) -> None:
    """A ledger can be compared, copied and pickled, and not changed."""
    book = monitel.ledger()
    assert book == copy.deepcopy(book) == pickle.loads(pickle.dumps(book))
    with pytest.raises(AttributeError):
        book.elapsed_ns = 0


def test_a_ledger_has_goodput_from_the_first_step_on(monitel: ModuleType) -> None:
    """Without a step it is undefined, and not 0."""
    assert monitel.ledger().goodput is None
    monitel.set_step(5)
    with monitel.activity("evaluation"):
        pass
    book = monitel.ledger()
    assert book.activities["step"] / book.elapsed_ns == book.goodput
    assert ["startup", "step", "evaluation"] == list(book.activities)
    assert "step" == book.current
