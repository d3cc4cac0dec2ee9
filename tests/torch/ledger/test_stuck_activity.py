"""Waits that exceed the time limit as the activity ``stuck``."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import _activities, _activities_py, activities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.torch.ledger.conftest import Book, Other

    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from monitel.torch.sources.waits.stuck_waits import StuckWaits  # noqa: E402  after the check for torch
from monitel.torch.sources.waits.wait_counters import WaitCounters  # noqa: E402

pytestmark = pytest.mark.torch

LIMIT = 300
_DEADLINE = 60


class Watch:
    """The source, a training thread, and time that passes for both clocks."""

    def __init__(self, book: Book, clock: ManualClock, other: Other) -> None:
        self.source = StuckWaits(float(LIMIT))
        self.other = other
        self._book = book
        self._clock = clock
        self._waits = threading.Event()
        self._pauses = 0

    def train(self, guard: Callable[[], Any], *, enters: str = "step") -> None:
        """Start the training thread, which makes a step, enters an activity, and waits."""

        def run() -> None:
            monitel.set_step(1)
            with monitel.activity(enters), guard():
                self._waits.set()
                self.other.wait()
            done.wait(_DEADLINE)

        done = self.done = threading.Event()
        self.other.start(run)
        assert self._waits.wait(_DEADLINE)

    def wait(self, seconds: int) -> None:
        """Let time pass, with a poll each minute, and at the end."""
        while seconds > 0:
            part = min(seconds, 60)
            self._book.wait(part)
            self._clock.advance(part)
            seconds -= part
            self.source.poll()

    def is_within_deadline(self) -> bool:
        """Pause, and return whether there is time left."""
        self._pauses += 1
        threading.Event().wait(0.01)
        return self._pauses < _DEADLINE * 100

    def await_activity(self, name: str) -> None:
        """Wait, without a poll, until the training thread is in an activity."""
        deadline = threading.Event()
        for _ in range(_DEADLINE * 100):
            if activities.position()[1] == name:
                return
            deadline.wait(0.01)
        pytest.fail(f"the activity is {activities.position()[1]!r}, not {name!r}")


@pytest.fixture
def watch(book: Book, clock: ManualClock, other: Other) -> Iterator[Watch]:
    """Provide the source, with torch's wait counters."""
    counters = WaitCounters()
    counters.install()
    watch = Watch(book, clock, other)
    watch.source.poll()
    yield watch
    if hasattr(watch, "done"):
        watch.done.set()
    other.end()
    watch.source.remove()
    counters.remove()


def own() -> Any:
    """Return a guard of monitel's."""
    return monitel.WaitCounter("barrier").guard()


def torchs() -> Any:
    """Return a guard of torch's."""
    return torch.monitor._WaitCounter("pytorch.wait_counter.test.stuck").guard()


@pytest.mark.parametrize("guard", [own, torchs])
def test_wait_over_the_limit_is_stuck(watch: Watch, book: Book, guard: Callable[[], Any]) -> None:
    """From the limit on; the time before is not changed. It ends when the wait ends, without a poll."""
    watch.train(guard)
    watch.source.poll()
    watch.wait(LIMIT - 1)
    assert {"step": 299} == book.seconds
    watch.wait(1)
    watch.wait(1000)
    assert {"step": 300, "stuck": 1000} == book.seconds
    watch.other.ended.set()
    watch.await_activity("step")
    watch.wait(LIMIT * 2)
    assert {"step": 300 + LIMIT * 2, "stuck": 1000} == book.seconds


@pytest.mark.parametrize("name", ["data", "compile", "checkpoint.save", "checkpoint.load", "evaluation", "rollout"])
def test_waits_of_other_activities_belong_to_them(watch: Watch, book: Book, name: str) -> None:
    """A collective during a checkpoint, for instance, is part of the checkpoint."""
    watch.train(own, enters=name)
    watch.wait(LIMIT * 3)
    assert {name: LIMIT * 3} == book.seconds


@pytest.mark.parametrize("name", ["init", "other"])
def test_set_up_can_be_stuck(watch: Watch, book: Book, name: str) -> None:
    """A rank that waits for a rank that never starts."""
    watch.train(own, enters=name)
    watch.source.poll()
    watch.wait(LIMIT * 3)
    assert {name: LIMIT, "stuck": LIMIT * 2} == book.seconds


@pytest.mark.parametrize("guard", [own, torchs])
def test_waits_of_other_threads_are_not_stuck(
    watch: Watch, book: Book, guard: Callable[[], Any], run_steps: Callable[[], None]
) -> None:
    """The training thread works meanwhile: it executes other instructions from poll to poll."""
    waiting = threading.Event()

    def wait() -> None:
        with guard():
            waiting.set()
            watch.other.wait()

    watch.other.start(wait)
    assert waiting.wait(_DEADLINE)
    for _ in range(10):
        watch.wait(60)
        run_steps()
    assert {"step": LIMIT * 2} == book.seconds


@pytest.fixture
def run_steps(book: Book, other: Other) -> Callable[[], None]:
    """Provide a function that has the training thread, which sets no steps, execute some code."""
    orders = [threading.Event() for _ in range(11)]
    done = [threading.Event() for _ in range(11)]
    assert book

    def train() -> None:
        monitel.set_step(1)
        done[0].set()
        for number in range(1, 11, 2):  # two places to wait at
            orders[number].wait(_DEADLINE)
            done[number].set()
            orders[number + 1].wait(_DEADLINE)
            done[number + 1].set()

    other.start(train)
    assert done[0].wait(_DEADLINE)
    number = iter(range(1, 11))

    def run() -> None:
        index = next(number)
        orders[index].set()
        assert done[index].wait(_DEADLINE)

    return run


@pytest.mark.parametrize("change", ["step", "activity"])
def test_training_that_goes_on_is_not_stuck(watch: Watch, book: Book, change: str) -> None:
    """A step, or an activity that the thread has entered and left, begins the time limit again."""
    watch.train(own)
    for number in range(10):
        watch.wait(120)
        if change == "step":
            monitel.step.advance(number + 2)
        else:
            brief = activities.enter_for_owner("data")
            assert brief is not None
            brief.__exit__(None, None, None)
    assert {"step": 1200} == book.seconds


def test_step_ends_stuck(watch: Watch, book: Book) -> None:
    """A step ends ``stuck`` even if the wait goes on, because a callback within the wait may train."""
    watch.train(own)
    watch.source.poll()
    watch.wait(LIMIT)
    assert "stuck" == activities.position()[1]
    monitel.step.advance(2)
    watch.await_activity("step")
    watch.wait(100)
    assert {"step": LIMIT + 100} == book.seconds


def test_removed_source_ends_stuck(watch: Watch, book: Book) -> None:
    """uninstrument() leaves no activity behind."""
    watch.train(own)
    watch.source.poll()
    watch.wait(LIMIT + 60)
    watch.source.remove()
    watch.wait(0)
    book.wait(5)
    assert {"step": LIMIT + 5, "stuck": 60} == book.seconds


def test_event_handler_that_hangs_does_not_keep_stuck(watch: Watch, other: Other) -> None:
    """The event of the wait is logged after ``stuck`` has begun, and the poll hangs."""
    released = threading.Event()
    with monitel.register_event_handler(lambda _event: released.wait(_DEADLINE)):
        watch.train(own)
        watch.source.poll()
        poller = threading.Thread(target=partial(watch.wait, LIMIT), daemon=True)
        poller.start()
        watch.await_activity("stuck")
        other.ended.set()
        watch.await_activity("step")
        assert poller.is_alive()
        released.set()
        poller.join(_DEADLINE)


def test_thread_that_polls_is_not_stuck(book: Book, clock: ManualClock) -> None:
    """The training thread flushes during a wait."""
    monitel.set_step(1)
    source = StuckWaits(float(LIMIT))
    with monitel.WaitCounter("barrier").guard():
        for _ in range(10):
            source.poll()
            book.wait(60)
            clock.advance(60)
    assert {"step": 600} == book.seconds


def test_without_more_threads_there_is_no_stuck(watch: Watch, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread that ends ``stuck`` for certain, it is not entered."""
    watch.train(own)
    watch.source.poll()

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    watch.wait(LIMIT)
    book.wait(100)
    assert {"step": LIMIT + 100} == book.seconds


def test_main_thread_in_a_wait_of_torch_is_stuck(watch: Watch) -> None:
    """The thread executes nothing as long as the wait lasts."""
    found: list[str] = []

    def poll() -> None:
        while not found and watch.is_within_deadline():
            watch.wait(60)
            found.extend(name for name in (activities.position()[1],) if name == "stuck")

    poller = threading.Thread(target=poll)
    monitel.set_step(1)
    with torchs():
        poller.start()
        poller.join(_DEADLINE)
    assert ["stuck"] == found
    watch.await_activity("step")


@pytest.mark.skipif(_activities.main_thread_pulse is _activities_py.main_thread_pulse, reason="without the extension")
def test_main_thread_that_repeats_a_call_is_not_stuck(watch: Watch, book: Book) -> None:
    """Another thread waits meanwhile. Each poll finds the main thread at the same instructions."""
    turn = threading.Lock()
    turn.acquire()

    def poll() -> None:
        for _ in range(20):
            watch.wait(60)
            turn.release()
            while not turn.locked() and watch.is_within_deadline():
                pass

    monitel.set_step(1)
    poller = threading.Thread(target=poll, daemon=True)
    with torchs():
        poller.start()
        for _ in range(20):
            turn.acquire(timeout=_DEADLINE)
    poller.join(_DEADLINE)
    assert {"step": 1200} == book.seconds
