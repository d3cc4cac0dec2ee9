"""The ledger beyond its promises: order of entries, the thread at the exit, its counter; and details of checkpoints."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import checks
from tests.support.producers import running

import monitel
from monitel.training import activities, checkpoints
from monitel.training import counters as training_counters

NAMES = ["evaluation", "data", "a", "a", "step"]
DEADLINE = 60.0  # seconds
SECOND = 10**9


def seconds() -> dict[str, float]:
    name = training_counters.NAME
    return {
        str(each.counter.attributes["training.activity"]): each.total
        for each in monitel.counters()
        if each.counter.name == name and each.counter.attributes
    }


class Ledger:
    """The process's ledger with a clock of the test; it begins at 0 s."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        patch.setattr(activities._activities, "_now", lambda: self.now_ns)
        patch.setattr(activities, "vacant", True)
        activities._activities.begin(0, "process")
        self.end_startup = partial(activities._activities.end_startup, "step")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    return Ledger(monkeypatch)


ACTIONS = ("enter", "exit", "step", "abandon", "lose", "read")
STEPS = st.tuples(
    st.sampled_from(ACTIONS), st.integers(0, len(NAMES) - 1), st.integers(0, 10**12), st.sampled_from([0, 0, 0, 1])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=60))
def test_ledger_and_its_counters_add_up(steps: list[tuple[str, int, int, int]]) -> None:
    """Activities enter and leave in any order, in two threads, and time of earlier attempts is lost; nothing falls."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as other_thread:
        training_counters._forget()
        ledger, books, totals, lost = Ledger(patch), list[Any](), list[dict[str, float]](), 0
        made = [monitel.activity(name) for name in NAMES]

        def act(action: str, number: int) -> None:
            ledger.end_startup() if action == "step" else getattr(made[number], f"__{action}__")()

        for action, number, ns, thread in steps:
            ledger.now_ns += ns
            if action in {"enter", "exit", "step"}:
                other_thread.submit(act, action, number).result() if thread else act(action, number)
            elif action == "abandon":
                made[number] = monitel.activity(NAMES[number])
            elif action == "lose":
                training_counters.repeat(lost := lost + ns)
            if action in {"lose", "read"} and (found := seconds()):
                assert ledger.now_ns / SECOND == pytest.approx(sum(found.values()))
                assert found.get("lost", 0) <= lost / SECOND
                totals.append(found)
            book = checks.ledger()
            assert (ledger.now_ns, True) == (book.elapsed_ns, book.current in book.activities)
            books.append(book.activities)
        made.clear()
        ledger.end_startup()
        totals.append(seconds())
        ledger.now_ns += lost
        totals.append(seconds())
    assert lost / SECOND == totals[-1].get("lost", 0)
    for reads in (books, totals):
        for one, other in pairwise(reads):
            assert all(total <= other[name] for name, total in one.items() if total)


def test_activity_that_two_threads_have_entered_ends_in_each(ledger: Ledger) -> None:
    """As often as it was entered there, even if the other thread has taken over meanwhile, or if it is forgotten."""
    with ThreadPoolExecutor(1) as pool:
        shared = monitel.activity("evaluation")
        pool.submit(shared.__enter__).result()
        with shared:
            with shared:
                pass
            assert "evaluation" == activities.position()[1]
        assert "other" == activities.position()[1]
        shared.__enter__()
        pool.submit(ledger.end_startup).result()
        pool.submit(shared.__enter__).result()
        for _ in range(2):
            shared.__exit__()
        assert "evaluation" == activities.position()[1]
        pool.submit(shared.__enter__).result()
        del shared
        assert "step" == activities.position()[1]


def test_a_clock_that_goes_back_takes_nothing(ledger: Ledger) -> None:
    """Time that has been counted stays, as between two threads whose readings change places."""
    ledger.now_ns += 100
    with monitel.activity("evaluation"):
        ledger.now_ns -= 50
    found = checks.ledger()
    assert (100, {"startup": 100, "other": 0}) == (found.elapsed_ns, found.activities)


@pytest.mark.parametrize("take_over", [False, True])
def test_shutdown_counts_for_the_training_thread(take_over: bool) -> None:
    """After SIGTERM a training in another thread goes on to its last checkpoint; at the exit the caller takes over."""
    asked, done = Event(), Event()
    found: list[str] = []

    def train() -> None:
        monitel.set_step(1)
        asked.set()
        assert done.wait(DEADLINE)
        with monitel.activity("checkpoint.save"):
            found.append(activities.position()[1])

    with running(train):
        assert asked.wait(DEADLINE)
        for _ in range(2):
            activities.begin_shutdown(take_over=take_over)
        done.set()
    assert ["shutdown" if take_over else "checkpoint.save"] == found
    book = checks.ledger()
    assert ("shutdown", take_over) == (book.current, book.ignored)
    with monitel.activity("checkpoint.save"):
        assert ("checkpoint.save" if take_over else "shutdown") == activities.position()[1]


def test_start_that_cannot_be_read_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without /proc, or that has run for an hour before, has a ledger since the import."""
    monkeypatch.setattr(activities, "_HOUR_NS", 0)
    activities._open()
    book = checks.ledger()
    assert ("import", True) == (book.origin, book.elapsed_ns < 10**9)


@pytest.mark.parametrize(
    ("past", "lost", "expected"), [((100, 60, 20), 30, 40 / 110), ((0, 0, 0), 50, 0.0), ((5, 40, 0), 0, 1.0)]
)
def test_goodput_is_of_all_attempts(ledger: Ledger, past: tuple[int, int, int], lost: int, expected: float) -> None:
    """Between 0 and 1, even if the stored past contradicts the clock; the time between attempts is down."""
    time = training_counters
    time.continue_run(time.Past(*(each * SECOND for each in past)))
    assert time.goodput() is None
    monitel.set_step(1)
    ledger.now_ns += 10 * SECOND
    assert {"step": 10.0, "down": past[2]} == {"down": 0, **seconds()}
    time.repeat(lost * SECOND)
    assert expected == time.goodput()


def test_a_counter_of_the_user_stays(caplog: pytest.LogCaptureFixture) -> None:
    """With another unit, the ledger is not exported under the name; this is logged once."""
    mine = monitel.counter("training.time", unit="ms")
    mine.add(5)
    monitel.set_step(1)
    with caplog.at_level(logging.WARNING, "monitel"):
        for _ in range(2):
            assert [5] == [each.total for each in monitel.counters() if each.counter is mine]
    assert {0} == {*seconds().values()} or not seconds()
    assert 1 == len(caplog.records)
    assert "'ms'" in caplog.text


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("s3://me:hidden@bucket/last?token=hidden", ["s3://***@bucket/last?token=***"]),
        ("x" * 5000, ["x" * 1000]),
    ],
)
def test_path_is_shown_if_there_is_one(events: list[Any], path: object, shown: list[str]) -> None:
    """Without secrets and of limited length. None of these has a size."""
    with checkpoints.Checkpoint(checkpoints.SAVE, path):
        pass
    assert shown == [event.data["checkpoint.path"] for event in events]
    assert not [event for event in events if "checkpoint.size" in event.data]


def test_open_file(events: list[Any], tmp_path: Path) -> None:
    """The size includes what is still in the file's buffer; of a load it is that of the whole file."""
    with (tmp_path / "file.pt").open("wb") as file, checkpoints.Checkpoint(checkpoints.SAVE, file):
        file.write(b"x" * 100)
    with (tmp_path / "file.pt").open("rb") as again, checkpoints.Checkpoint(checkpoints.LOAD, again):
        again.read(10)
    assert [(str(tmp_path / "file.pt"), 100)] * 2 == [
        (event.data["checkpoint.path"], event.data["checkpoint.size"]) for event in events
    ]


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_size_of_folder(events: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files of this save count, and no linked folder; all files of a load count, unless there are too many."""
    monkeypatch.setattr(checkpoints, "_MAX_SIZE_NS", 60 * 10**9)
    os.utime(write(tmp_path / "earlier/weights", 1000), (1, 1))
    with checkpoints.Checkpoint(checkpoints.SAVE, tmp_path, others="checkpoint-"):
        write(tmp_path / "checkpoint-7/weights", 5000)
        write(tmp_path / "new/weights", 20)
        write(tmp_path / "state", 3)
        (tmp_path / "new" / "again").symlink_to(tmp_path)
    for most in (checkpoints._MAX_FILES, 3):
        monkeypatch.setattr(checkpoints, "_MAX_FILES", most)
        with checkpoints.Checkpoint(checkpoints.LOAD, tmp_path):
            pass
    assert [23, 6023, None] == [event.data.get("checkpoint.size") for event in events]


def test_parts_of_a_load(events: list[Any], ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event has the time of all parts, and what is between them does not count."""
    monkeypatch.setattr(checkpoints, "monotonic_ns", lambda: ledger.now_ns)
    load = checkpoints.Checkpoint(checkpoints.LOAD, "parts", logs=False)
    for _ in range(2):
        with load:
            ledger.now_ns += SECOND
        monitel.set_step(5)
        ledger.now_ns += SECOND
    load.step = 3
    load.log()
    (event,) = events
    assert (3, 2.0) == (event.step, event.data["checkpoint.duration"])
    assert 2 * SECOND == checks.ledger().activities["checkpoint.load"]
