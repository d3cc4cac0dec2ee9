"""Every second of the training thread counts once: the ledger, its goodput, and checkpoints."""

import asyncio
import gc
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread, get_ident, main_thread
from typing import Any

import pytest
from tests.support.checks import ledger
from tests.support.inbox import DEADLINE
from tests.support.producers import repeating, run_together

import monitel
from monitel.clock import since_boot_ns
from monitel.training.checkpoints import LOAD, SAVE, Checkpoint

MS = 1_000_000
_now_ns = [0]


def spend(milliseconds: int) -> None:
    _now_ns[0] += milliseconds * MS


@pytest.fixture(autouse=True)
def manual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass only when a test spends it. By the clock of the system: tests/processes/ledger."""
    _now_ns[0] = since_boot_ns()
    monkeypatch.setattr(monitel.training.activities._activities, "_now", lambda: _now_ns[0])
    monkeypatch.setattr("monitel.training.checkpoints.monotonic_ns", lambda: _now_ns[0])


@contextmanager
def spent(**milliseconds: int) -> Iterator[None]:
    """Check that each activity gets its milliseconds in the block, and no other one any (of a name ``_`` is a dot)."""
    before = ledger().activities
    yield
    found = {name: ns - before.get(name, 0) for name, ns in ledger().activities.items()}
    expected = {name.replace("_", "."): ms * MS for name, ms in milliseconds.items()}
    assert expected == {name: ns for name, ns in found.items() if ns}


def test_startup_lasts_until_the_first_step() -> None:
    """Activities of a start interrupt it; from the first step on, everything without an activity is ``step``."""
    book = ledger()
    assert (["startup"], "startup", None, 0) == ([*book.activities], book.current, book.goodput, book.ignored)
    names = ("init", "compile", "data", "checkpoint.load", "stuck")
    with spent(startup=5, init=1, compile=1, data=1, checkpoint_load=1, stuck=1, step=2):
        for name in names:
            with monitel.activity(name):
                spend(1)
            spend(1)
            assert "startup" == ledger().current
        monitel.set_step(1)
        spend(2)
    book = ledger()
    assert "step" == book.current
    assert book.activities["step"] / book.elapsed_ns == book.goodput
    assert ["startup", "init", "compile", "data", "step", "checkpoint.load", "stuck"] == [*book.activities]


def test_without_steps_the_rest_is_other() -> None:
    """The first activity that is not part of a start ends it; a step can still come."""
    with spent(startup=1, rollout=2, other=1, step=1):
        spend(1)
        with monitel.activity("rollout"):
            spend(2)
        spend(1)
        monitel.set_step(1)
        spend(1)


def test_nested_activities_belong_to_the_innermost() -> None:
    """An inner activity interrupts the outer one, of the same name, too; exceptions leave both."""
    monitel.set_step(1)
    with spent(step=1, evaluation=4, data=3), suppress(KeyError):
        with monitel.activity("evaluation") as outer:
            spend(1)
            with monitel.activity("data"), outer:
                spend(2)
                with monitel.activity("data"):
                    spend(3)
                assert "evaluation" == ledger().current
                with monitel.activity("data"):
                    with outer:
                        pass
                    assert "data" == ledger().current
            spend(1)
        spend(1)
        with monitel.activity("evaluation"):
            raise KeyError
    assert ("step", 0) == (ledger().current, ledger().ignored)


def test_decorated_code_counts_while_it_runs() -> None:
    """A function per call, a generator without its consumer, a coroutine with its waits. More forms: test_ranges."""
    monitel.set_step(1)

    @monitel.activity("evaluation")
    def evaluate() -> None:
        spend(1)

    @monitel.activity("data")
    def batches() -> Generator[int, None, str]:
        with suppress(KeyError):
            yield 1
        spend(2)
        return "end"

    @monitel.activity("rollout")
    async def rollout() -> None:
        await asyncio.sleep(0)
        spend(4)

    with spent(evaluation=1, data=2, rollout=4, step=8 + 16):
        evaluate()
        stream = batches()
        next(stream)
        spend(8)
        with pytest.raises(StopIteration, match="end"):
            stream.throw(KeyError())
        coroutine = rollout()
        spend(16)
        asyncio.run(coroutine)
    wrongs: list[Any] = [3, Generator, staticmethod(len)]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"activity\('data'\) decorates a function, got "):
            monitel.activity("data")(wrong)


def test_tasks_and_generators_leave_in_any_order() -> None:
    """Each removes its own entry, and what was entered last counts."""
    monitel.set_step(1)

    async def work(name: str, milliseconds: int) -> None:
        with monitel.activity(name):
            spend(milliseconds)
            await asyncio.sleep(0)  # the other task goes on
        spend(3)

    async def both() -> None:
        await asyncio.gather(work("a", 1), work("b", 2))

    def suspended() -> Generator[int, Any, None]:
        with monitel.activity("data"):
            yield 1

    with spent(a=1, b=2 + 3, step=3):
        asyncio.run(both())
    with spent(data=1, evaluation=4):
        generator = suspended()
        next(generator)
        spend(1)
        with monitel.activity("evaluation"):
            spend(2)
            generator.close()
            spend(2)
    assert "step" == ledger().current


def test_signal_handler_in_an_activity_reads_the_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that reads them waits for the activity, and the handler does not wait for that thread."""
    activities = monitel.training.activities._activities
    now = activities._now
    reader = Thread(target=monitel.counters, daemon=True)

    def interrupt() -> int:
        monkeypatch.setattr(activities, "_now", now)
        reader.start()
        reader.join(0.2)
        monitel.counters()
        return now()

    monkeypatch.setattr(activities, "_now", interrupt)
    run_together(monitel.ledger)
    reader.join(DEADLINE)
    assert not reader.is_alive()


def test_activity_is_over_after_an_interrupt_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may arrive while the block is left, after which nothing leaves it again."""
    monitel.set_step(1)

    def interrupt() -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), monitel.activity("evaluation"):
        monkeypatch.setattr(monitel.training.activities._activities, "_now", interrupt)
    gc.collect()
    assert "step" == ledger().current


def test_activities_of_other_threads_are_ignored_and_counted() -> None:
    """Only the training thread's count; any thread may end one of them."""
    monitel.set_step(1)
    shared = monitel.activity("data")

    def other() -> None:
        with shared, monitel.activity("evaluation"):
            spend(1)

    with spent(step=1):
        run_together(other)
    assert 2 == ledger().ignored
    with spent(data=2):
        shared.__enter__()
        run_together(other)
        spend(1)
        run_together(lambda: shared.__exit__(None, None, None))
    assert ("step", 4) == (ledger().current, ledger().ignored)


def test_first_thread_with_a_step_is_the_training_thread() -> None:
    """Until it ends: then it is the next thread that sets one. Activities of the previous one are over."""
    found: list[Any] = []
    assert (main_thread().ident, "startup") == monitel.training.activities.position()[:2]

    def train() -> None:
        monitel.set_step(1)
        run_together(lambda: monitel.set_step(2))  # while the training thread lives, others change nothing
        with monitel.activity("data"):
            found.append((get_ident(), *monitel.training.activities.position()[:2]))
        monitel.activity("a").__enter__()

    with monitel.activity("init"):
        run_together(train)
        assert "step" == ledger().current
        run_together(train)
    assert [(thread, "data") for thread, *_ in found] == [(owner, current) for _, owner, current in found]
    monitel.set_step(3)
    with monitel.activity("evaluation"):
        assert "evaluation" == ledger().current


def test_watchdog_enters_for_the_training_thread() -> None:
    """Another thread may count time as ``stuck``, unless the training thread has gone on meanwhile."""
    monitel.set_step(1)
    made: list[Any] = []
    with spent(data=2, stuck=3), monitel.activity("data"):
        spend(2)
        changed_ns = monitel.training.activities.position()[2]
        run_together(lambda: made.append(monitel.training.activities.enter_for_owner("stuck", changed_ns)))
        assert "stuck" == ledger().current
        spend(3)
        run_together(lambda: made.pop().__exit__(None, None, None))
    assert monitel.training.activities.enter_for_owner("stuck", changed_ns) is None
    assert 0 == ledger().ignored


@pytest.mark.usefixtures("frequent_switches")
def test_reads_add_up_at_every_moment() -> None:
    """While activities change and signal handlers enter others, no total falls from one read to the next."""
    found: list[list[monitel.Ledger]] = [[], []]
    handled: list[monitel.Ledger] = []

    def handle(*_signal: object) -> None:
        with monitel.activity("stuck"):
            handled.append(ledger())

    monitel.set_step(1)
    before = signal.signal(signal.SIGALRM, handle)
    with repeating(*(lambda mine=mine: mine.append(ledger()) for mine in found)):
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            while len(handled) < 50 or len(found[0]) < 50:
                with monitel.activity("evaluation"), monitel.activity("data"):
                    spend(1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    handled.sort(key=lambda each: each.elapsed_ns)  # handlers interrupt each other
    assert {"stuck"} == {each.current for each in handled}
    for mine in (*found, handled):
        for one, other in pairwise(mine):
            assert one.elapsed_ns <= other.elapsed_ns
            assert all(total <= other.activities[name] for name, total in one.activities.items() if total)
    assert "step" == ledger().current


def test_number_of_names_is_limited() -> None:
    """64 names, then ``other``. Names are text, and not empty."""
    monitel.set_step(1)
    for number in range(100):
        with monitel.activity(f"activity {number}"):
            pass
    last = 64 - len(monitel.training.activities.ACTIVITIES) - 1
    names = [f"activity {last}", f"activity {last + 1}", "activity 1", "evaluation"]
    assert [names[0], "other", *names[2:]] == [monitel.activity(name).name for name in names]
    assert len(ledger().activities) <= 64
    wrongs: list[Any] = [3, None, "\ud800"]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            monitel.activity(wrong)
    with pytest.raises(ValueError, match="must not be empty"):
        monitel.activity("")


def test_checkpoint_is_an_activity_and_one_event(events: list[Any], tmp_path: Path) -> None:
    """The event has path, size, duration and the step at which it began; a checkpoint within another is part of it."""
    monitel.set_step(7)
    path = tmp_path / "last.pt"
    with spent(checkpoint_save=3), Checkpoint(SAVE, path), Checkpoint(SAVE, "inner"):
        spend(3)
        path.write_bytes(b"x" * 1234)
        monitel.set_step(8)
    with spent(checkpoint_load=1), Checkpoint(LOAD, path):
        spend(1)
    saved, loaded = events
    assert ("checkpoint.saved", monitel.Severity.INFO, 7) == (saved.name, saved.severity, saved.step)
    assert ("checkpoint.loaded", 8) == (loaded.name, loaded.step)
    assert [0.003, 0.001] == [event.data["checkpoint.duration"] for event in events]
    for event in events:
        assert {"checkpoint.path": str(path), "checkpoint.size": 1234}.items() <= event.data.items()


def test_failed_checkpoint(events: list[Any]) -> None:
    """A save that fails is an ERROR without secrets, and the exception goes on; a load that fails has no event."""
    for activity, error in ((SAVE, OSError(28, "No space for https://me:hidden@host\udc80")), (LOAD, OSError())):
        with pytest.raises(OSError) as raised, Checkpoint(activity, "s3://me:hidden@bucket/last"):  # noqa: PT011
            raise error
        assert raised.value is error
    (failed,) = events
    assert ("checkpoint.failed", monitel.Severity.ERROR) == (failed.name, failed.severity)
    assert ("OSError", "s3://***@bucket/last") == (failed.data["exception.type"], failed.data["checkpoint.path"])
    assert "[Errno 28] No space for https://***@host\\udc80" == failed.data["exception.message"]
    assert ledger().current not in {SAVE, LOAD}


def test_checkpoint_in_the_background(events: list[Any]) -> None:
    """Its event comes at its end, once, however its block ends, and has the time for which the training has waited."""
    for error in (None, OSError("another rank is gone")):
        with suppress(OSError), Checkpoint(SAVE, "early") as checkpoint:
            end = checkpoint.defer()
            run_together(partial(end, None))
            assert not end(None)
            if error is not None:
                raise error
    with Checkpoint(SAVE, "late") as checkpoint:
        end = checkpoint.defer()
        spend(1)
    assert 2 * ["checkpoint.saved"] == [each.name for each in events]
    spend(3)
    run_together(partial(end, None))
    assert not end(None)
    (saved,) = events[2:]
    assert (0.001, 0.004) == (saved.data["checkpoint.blocked"], saved.data["checkpoint.duration"])
