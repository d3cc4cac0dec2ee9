"""Activities and threads: the owner of the ledger, reads by other threads, and interruptions."""

from __future__ import annotations

import signal
from functools import partial
from itertools import pairwise
from threading import Event, Thread, get_ident, main_thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.ledger.books import in_thread

if TYPE_CHECKING:
    from types import ModuleType

    from tests.core_conftest import RunThreads
    from tests.unit.ledger.books import Book


def assert_consistent(found: list[Any]) -> None:
    """Check that each ledger adds up, and that nothing falls from one to the next."""
    for each in found:
        assert each.elapsed_ns == sum(each.activities.values())
    for one, other in pairwise(found):
        assert one.elapsed_ns <= other.elapsed_ns
        assert all(total <= other.activities[name] for name, total in one.activities.items() if total)


@pytest.mark.usefixtures("frequent_switches")
def test_reads_add_up_while_activities_change(monitel: ModuleType, run_threads: RunThreads) -> None:
    """Several readers find sums that add up, and time and totals that only rise."""
    found: list[list[Any]] = [[], []]
    done = Event()

    def train() -> None:
        monitel.activities.begin_steps()  # this thread is the owner
        for _ in range(1000):
            with monitel.activity("evaluation"), monitel.activity("data"):
                pass
        done.set()

    def read(mine: list[Any]) -> None:
        while not done.is_set():
            mine.append(monitel.ledger())

    run_threads(train, *(partial(read, mine) for mine in found))
    for mine in found:
        mine.append(monitel.ledger())
        assert_consistent(mine)
        assert {"evaluation", "data"} < {*mine[-1].activities}


def test_other_threads_are_ignored_and_counted(book: Book) -> None:
    """One object may be entered by several threads at once; each leaves what it has entered."""
    shared = book.activity("data")

    def other() -> None:
        with shared, book.activity("evaluation"):
            book.wait(1)

    in_thread(other)
    assert 2 == book.ignored
    with shared:
        in_thread(other)
        book.wait(10)
    assert {"startup": 1, "data": 11} == book.totals
    assert 4 == book.ignored


def test_an_activity_may_be_left_by_another_thread(book: Book) -> None:
    """The garbage collector may close a generator in any thread, and with it the activity inside."""
    activity = book.activity("evaluation")
    activity.__enter__()
    book.wait(1)
    in_thread(lambda: activity.__exit__(None, None, None))
    book.wait(10)
    assert {"evaluation": 1, "other": 10} == book.totals


def test_the_first_thread_with_a_step_is_the_owner(book: Book) -> None:
    """The activities of the main thread do not count any longer."""

    def train() -> None:
        book.made.end_startup("step")
        book.wait(10)
        with book.activity("data"):
            book.wait(100)

    with book.activity("init"):
        book.wait(1)
        in_thread(train)
        with book.activity("evaluation"):
            book.wait(1000)
    assert {"init": 1, "step": 1010, "data": 100} == book.totals
    assert 1 == book.ignored


def test_a_step_in_another_thread_need_not_take_over(book: Book) -> None:
    """Startup ends, and the activities of the owner go on."""
    with book.activity("init"):
        in_thread(lambda: book.made.end_startup("step", False))
        book.wait(1)
        with book.activity("evaluation"):
            book.wait(10)
    book.wait(100)
    assert {"init": 1, "evaluation": 10, "step": 100} == book.totals
    assert 0 == book.ignored


def test_signal_handlers_may_enter_and_read(monitel: ModuleType) -> None:
    """A handler that interrupts a change finds, and leaves, sums that add up."""
    found: list[list[Any]] = [[], []]

    def handle(*_signal: object) -> None:
        with monitel.activity("stuck"):
            found[1].append(monitel.ledger())
            monitel.counters()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while len(found[1]) < 100:
            with monitel.activity("evaluation"):
                found[0].append(monitel.ledger())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for mine, current in zip(found, ("evaluation", "stuck"), strict=True):
        assert {current} == {each.current for each in mine}
    assert_consistent(sorted((*found[0], *found[1]), key=lambda each: each.elapsed_ns))
    assert "other" == monitel.ledger().current


def test_the_previous_owner_leaves_what_it_has_entered(book: Book) -> None:
    """If both threads have entered one object, the previous owner removes its own entry, not that of the new owner."""
    shared = book.activity("data")
    shared.__enter__()
    entered, left = Event(), Event()

    def train() -> None:
        book.made.end_startup("step")
        with shared:
            entered.set()
            assert left.wait(30)
            book.wait(10)

    thread = Thread(target=train)
    thread.start()
    assert entered.wait(30)
    shared.__exit__(None, None, None)
    left.set()
    thread.join()
    book.wait(100)
    assert {"data": 10, "step": 100} == book.totals


def test_another_thread_enters_for_the_owner(book: Book) -> None:
    """Inside what the owner is in, however the owner goes on; any thread may leave it."""
    made: list[Any] = []
    with book.activity("data"):
        book.wait(1)
        in_thread(lambda: made.append(book.made.enter_for_owner("stuck")))
        assert (get_ident(), "stuck") == book.made.position()[:2]
        book.wait(10)
        with book.activity("evaluation"):
            book.wait(100)
        book.wait(1000)
    book.wait(10_000)
    in_thread(lambda: made.pop().__exit__(None, None, None))
    book.wait(100_000)
    assert {"data": 1, "stuck": 11_010, "evaluation": 100, "other": 100_000} == book.totals
    assert 0 == book.ignored


def test_owner_that_has_gone_on_is_left_alone(book: Book) -> None:
    """The time of the last change shows that."""
    with book.activity("data"):
        _, _, changed_ns = book.made.position()
        book.wait(1)
        book.totals  # noqa: B018  a read is not a change
        assert changed_ns == book.made.position()[2]
        book.made.enter_for_owner("stuck", changed_ns).__exit__()
        entered_ns = book.made.position()[2]
        book.wait(1)
    left_ns = book.made.position()[2]
    assert left_ns > entered_ns > changed_ns
    with book.activity("data"):
        book.wait(1)
    assert book.made.position()[2] > left_ns
    assert book.made.enter_for_owner("stuck", changed_ns) is None
    assert "startup" == book.made.position()[1]


def test_an_entry_by_another_thread_ends_with_its_object(book: Book) -> None:
    """A poller that is stopped and forgotten leaves nothing behind."""
    book.made.enter_for_owner("stuck")
    assert "startup" == book.made.position()[1]


def test_an_entry_by_another_thread_has_the_same_depth_limit(book: Book) -> None:
    """Beyond the limit the entry is ignored and counted, like one of the owner itself."""
    kept = [book.made.enter_for_owner("a") for _ in range(256)]
    assert None not in kept
    assert book.made.enter_for_owner("stuck") is None
    assert 1 == book.ignored


def test_position_follows_the_owner(monitel: ModuleType) -> None:
    """The main thread at first, then the thread with the first step."""
    assert (main_thread().ident, "startup") == monitel.activities.position()[:2]
    found: list[Any] = []

    def train() -> None:
        monitel.set_step(1)
        found.append((get_ident(), *monitel.activities.position()))

    in_thread(train)
    [(thread, owner, current, _)] = found
    assert (thread, "step") == (owner, current)


def test_next_training_thread_takes_over_when_the_first_one_has_ended(monitel: ModuleType) -> None:
    """As in a process that trains several times; while the first one lives, other threads change nothing."""
    found: list[Any] = []
    first, second = Event(), Event()

    def train(begins: Event) -> None:
        assert begins.wait(30)
        monitel.set_step(1)
        in_thread(lambda: monitel.set_step(2))
        with monitel.activity("data"):
            found.append((get_ident(), *monitel.activities.position()))

    threads = [(Thread(target=train, args=(begins,)), begins) for begins in (first, second)]
    for thread, _ in threads:
        thread.start()  # both at once, so that they have different identities
    for thread, begins in threads:
        begins.set()
        thread.join()
    assert [(thread, "data") for thread, *_ in found] == [(owner, current) for _, owner, current, _ in found]
    assert (2, 0) == (len({thread for thread, *_ in found}), monitel.ledger().ignored)


@pytest.mark.parametrize("take_over", [False, True])
def test_shutdown_counts_for_the_training_thread(
    monitel: ModuleType, take_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM a training in another thread goes on to its last checkpoint; at the exit the caller takes over."""
    asked, done = Event(), Event()

    def train() -> None:
        monitel.set_step(1)
        asked.set()
        assert done.wait(30)
        with monitel.activity("checkpoint.save"):
            assert take_over == (monitel.ledger().current == "shutdown")

    thread = Thread(target=train)
    thread.start()
    assert asked.wait(30)
    for _ in range(2):
        monitel.activities.begin_shutdown(take_over=take_over)
    done.set()
    thread.join()
    book = monitel.ledger()
    assert "shutdown" == book.current
    assert take_over == (book.ignored == 1)
    with monitel.activity("checkpoint.load"):
        assert take_over == (monitel.ledger().current == "checkpoint.load")
