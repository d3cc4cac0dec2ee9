"""The counter ``training.time``: the totals of one reading are those of the ledger, and none ever falls."""

from __future__ import annotations

import logging
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from types import ModuleType

    from tests.core_conftest import RunScript, RunThreads

SECOND = 10**9


def seconds(monitel: ModuleType) -> dict[str, float]:
    """Return the total of each activity."""
    name = monitel.training_time.NAME
    return {
        each.counter.attributes["training.activity"]: each.total
        for each in monitel.counters()
        if each.counter.name == name and each.counter.attributes
    }


class Ledger:
    """The process's ledger with a clock of the test; it begins at 0 s."""

    def __init__(self, monitel: ModuleType, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        module = monitel.activities
        made = module.Activities(module._new_name, module._decorate, lambda: self.now_ns)
        patch.setattr(module, "_activities", made)
        patch.setattr(module, "_activity", made.activity)
        patch.setattr(module, "stepping", False)
        patch.setattr(module, "vacant", True)
        made.begin(0, "startup", "other")

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * SECOND)


@pytest.fixture
def ledger(monitel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Return the process's ledger with a clock of the test."""
    return Ledger(monitel, monkeypatch)


def test_totals_are_those_of_the_ledger(monitel: ModuleType, ledger: Ledger) -> None:
    """The totals add up to the elapsed time, and the start is that of the process."""
    ledger.wait(2)
    monitel.set_step(1)
    ledger.wait(3)
    with monitel.activity("data"):
        ledger.wait(0.5)
    assert {"startup": 2, "step": 3, "data": 0.5} == seconds(monitel)
    assert {monitel.ledger().start_ns} == {each.start_ns for each in monitel.counters()}
    assert {"s"} == {each.counter.unit for each in monitel.counters()}
    assert 3 == monitel.counter("training.time", attributes={"training.activity": "step"}).total


def test_a_process_without_activities_has_no_counters(monitel: ModuleType) -> None:
    """The ledger is not used, so nothing of it is exported; a shutdown changes nothing."""
    assert {} == seconds(monitel)
    monitel.activities.begin_shutdown()
    assert {} == seconds(monitel)


def test_time_that_is_lost_is_shown_in_the_steps_to_come(monitel: ModuleType, ledger: Ledger) -> None:
    """Totals that were exported before do not fall, and each second counts once."""
    monitel.set_step(1)
    ledger.wait(5)
    assert {"startup": 0, "step": 5}.items() >= seconds(monitel).items()
    monitel.training_time.repeat(3 * SECOND)
    ledger.wait(2)
    found = [seconds(monitel)]
    for duration in (2, 7):
        ledger.wait(duration)
        found.append(seconds(monitel))
    assert [{"step": 5, "lost": 2}, {"step": 6, "lost": 3}, {"step": 13, "lost": 3}] == found
    monitel.training_time.repeat(4 * SECOND)  # a later resume; the sum is given
    found = [seconds(monitel)]
    ledger.wait(5)
    assert [{"step": 13, "lost": 3}, {"step": 17, "lost": 4}] == [*found, seconds(monitel)]


def test_the_time_between_attempts_is_down(monitel: ModuleType, ledger: Ledger) -> None:
    """The goodput covers all attempts, and falls as soon as time is lost."""
    time = monitel.training_time
    time.continue_run(time.Past(elapsed_ns=100 * SECOND, productive_ns=60 * SECOND, down_ns=20 * SECOND))
    assert time.goodput() is None
    monitel.set_step(1)
    ledger.wait(10)
    assert {"step": 10.0, "down": 20.0} == seconds(monitel)
    assert 70 / 110 == time.goodput()
    time.repeat(30 * SECOND)
    assert 40 / 110 == time.goodput()


def test_activities_of_the_user_add_to_those_of_the_run(monitel: ModuleType, ledger: Ledger) -> None:
    """The totals add up, and do not fall, if a program uses the names ``down`` and ``lost`` itself."""
    monitel.set_step(1)
    for name, duration in (("down", 5), ("lost", 3)):
        with monitel.activity(name):
            ledger.wait(duration)
    ledger.wait(4)
    assert {"step": 4, "down": 5, "lost": 3} == seconds(monitel)
    time = monitel.training_time
    time.continue_run(time.Past(elapsed_ns=9 * SECOND, productive_ns=2 * SECOND, down_ns=1 * SECOND))
    time.repeat(2 * SECOND)
    ledger.wait(10)
    assert {"step": 12, "down": 6, "lost": 5} == seconds(monitel)


def test_steps_that_are_marked_as_an_activity_have_a_goodput(monitel: ModuleType, ledger: Ledger) -> None:
    """A program may enter the activity ``step`` and never set a step: the goodput is that of its ledger."""
    ledger.wait(6)
    assert monitel.ledger().goodput is None is monitel.training_time.goodput()
    with monitel.activity("step"):
        ledger.wait(2)
    assert 0.25 == monitel.ledger().goodput == monitel.training_time.goodput()


@pytest.mark.parametrize(("past", "lost", "expected"), [((0, 0, 0), 50, 0.0), ((5, 40, 0), 0, 1.0)])
def test_goodput_stays_a_share(
    monitel: ModuleType, ledger: Ledger, past: tuple[int, int, int], lost: int, expected: float
) -> None:
    """The goodput is between 0 and 1, even if the stored past contradicts the clock."""
    time = monitel.training_time
    time.continue_run(time.Past(*(each * SECOND for each in past)))
    time.repeat(lost * SECOND)
    monitel.set_step(1)
    ledger.wait(10)
    assert expected == time.goodput()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["data", "step", "read", "lose", "wait"]), st.integers(0, 10**10)), max_size=40
    )
)
def test_totals_never_fall_and_add_up(monitel: ModuleType, actions: list[tuple[str, int]]) -> None:
    """Whatever is lost at whatever time."""
    with pytest.MonkeyPatch.context() as patch:
        monitel.training_time._forget()
        ledger = Ledger(monitel, patch)
        monitel.set_step(1)
        found, lost = [seconds(monitel)], 0
        for action, ns in actions:
            if action == "data":
                with monitel.activity("data"):
                    ledger.now_ns += ns
            elif action == "lose":
                lost += ns
                monitel.training_time.repeat(lost)
            elif action == "read":
                found.append(seconds(monitel))
                assert ledger.now_ns / SECOND == pytest.approx(sum(found[-1].values()))
                assert found[-1].get("lost", 0) <= lost / SECOND
            else:
                ledger.now_ns += ns
        seconds(monitel)
        ledger.now_ns += lost
        found.append(seconds(monitel))
    assert lost / SECOND == found[-1].get("lost", 0)
    for one, other in pairwise(found):
        assert all(total <= other[name] for name, total in one.items() if total)


def test_a_reading_that_is_interrupted_starts_again(
    monitel: ModuleType, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler, or another thread, reads in the middle of it and shows more as lost."""
    monitel.set_step(1)
    ledger.wait(5)
    seconds(monitel)
    ledger.wait(1)
    read, inner = monitel.activities.ledger, []

    def interrupted() -> Any:
        book = read()
        monkeypatch.setattr(monitel.activities, "ledger", read)
        monitel.training_time.repeat(10 * SECOND)
        ledger.wait(2)
        inner.append(seconds(monitel))
        return book

    monkeypatch.setattr(monitel.activities, "ledger", interrupted)
    assert {"step": 5, "lost": 3} == seconds(monitel)
    assert [{"step": 5, "lost": 3}] == inner


@pytest.mark.usefixtures("frequent_switches")
def test_concurrent_readings_add_up_and_rise(monitel: ModuleType, run_threads: RunThreads) -> None:
    """Several exporters read while activities change and steps are lost."""
    monitel.set_step(1)
    found: list[list[tuple[float, dict[str, float], float]]] = [[], [], []]
    done = Event()

    def read(mine: list[tuple[float, dict[str, float], float]]) -> None:
        try:
            for _ in range(400):
                before = monitel.ledger().elapsed_ns
                totals = seconds(monitel)
                mine.append((before / SECOND, totals, monitel.ledger().elapsed_ns / SECOND))
        finally:
            done.set()

    def train() -> None:
        monitel.activities._activities.end_startup("step")  # this thread is the owner
        lost = 0
        while not done.is_set():
            with monitel.activity("data"), monitel.activity("evaluation"):
                pass
            lost += 1000
            monitel.training_time.repeat(lost)

    run_threads(train, *(lambda mine=mine: read(mine) for mine in found))
    for each in found:
        for before, totals, after in each:
            assert before - 1e-6 <= sum(totals.values()) <= after + 1e-6
        for (_, one, _), (_, other, _) in pairwise(each):
            assert all(total <= other[name] for name, total in one.items() if total)


def test_a_counter_of_the_user_stays(monitel: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """With another unit, the ledger is not exported under the name; this is logged once."""
    mine = monitel.counter("training.time", unit="ms")
    mine.add(5)
    monitel.set_step(1)
    with caplog.at_level(logging.WARNING, "monitel"):
        for _ in range(2):
            assert [5] == [each.total for each in monitel.counters() if each.counter is mine]
    assert {0} == {*seconds(monitel).values()} or not seconds(monitel)
    assert 1 == len(caplog.records)
    assert "'ms'" in caplog.text


def test_a_counter_of_the_user_with_the_same_unit_is_one_more_series(monitel: ModuleType) -> None:
    """The user's series has no activity."""
    mine = monitel.counter("training.time", unit="s")
    mine.add(5)
    monitel.set_step(1)
    assert {"startup", "step"} >= {*seconds(monitel)} >= {"step"}
    assert 5 == mine.total


def test_a_forked_child_has_no_series_before_its_first_step(run_script: RunScript) -> None:
    """Its parent's past and losses are the parent's."""
    ended = run_script(
        """
def totals():
    return {each.counter.attributes["training.activity"]: each.total for each in monitel.counters()}

monitel.set_step(1)
monitel.training_time.continue_run(monitel.training_time.Past(10**9, 10**9, 10**9))
monitel.training_time.repeat(10**18)
assert {"down", "lost", "startup", "step"} == {*totals()}, totals()
if os.fork() == 0:
    before = totals()
    with monitel.activity("data"):
        pass
    before |= totals()
    monitel.set_step(1)
    with monitel.activity("data"):
        pass
    say(before, *sorted(totals()), sum(totals().values()) < 10, monitel.training_time.goodput() <= 1)
    os._exit(0)
os.wait()
"""
    )
    assert ["{} data startup step True True"] == ended.lines


def test_representation_shows_attributes(monitel: ModuleType) -> None:
    """Counters with the same name differ in them."""
    counted: Any = monitel.counter("example", attributes={"a": "b", "n": 2})
    assert "<Counter 'example' a='b' n=2: 0>" == repr(counted)
    assert "<Counter 'plain': 0>" == repr(monitel.counter("plain"))
