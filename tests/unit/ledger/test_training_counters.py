"""The counter ``training.time`` over attempts: what is lost and down, so that no total falls and all add up."""

import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import monitel
from monitel.training import counters as training_counters

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
        module: Any = monitel.training.activities
        patch.setattr(module._activities, "_now", lambda: self.now_ns)
        patch.setattr(module, "stepping", False)
        patch.setattr(module, "vacant", True)
        module._activities.begin(0, "startup", "other")

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    return Ledger(monkeypatch)


def test_the_time_between_attempts_is_down(ledger: Ledger) -> None:
    """The goodput covers all attempts, and falls as soon as time is lost."""
    time = training_counters
    time.continue_run(time.Past(elapsed_ns=100 * SECOND, productive_ns=60 * SECOND, down_ns=20 * SECOND))
    assert time.goodput() is None
    monitel.set_step(1)
    ledger.wait(10)
    assert {"step": 10.0, "down": 20.0} == seconds()
    assert 70 / 110 == time.goodput()
    time.repeat(30 * SECOND)
    assert 40 / 110 == time.goodput()


@pytest.mark.parametrize(("past", "lost", "expected"), [((0, 0, 0), 50, 0.0), ((5, 40, 0), 0, 1.0)])
def test_goodput_stays_a_share(ledger: Ledger, past: tuple[int, int, int], lost: int, expected: float) -> None:
    """The goodput is between 0 and 1, even if the stored past contradicts the clock."""
    time = training_counters
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
def test_totals_never_fall_and_add_up(actions: list[tuple[str, int]]) -> None:
    """Whatever is lost at whatever time."""
    with pytest.MonkeyPatch.context() as patch:
        training_counters._forget()
        ledger = Ledger(patch)
        monitel.set_step(1)
        found, lost = [seconds()], 0
        for action, ns in actions:
            if action == "data":
                with monitel.activity("data"):
                    ledger.now_ns += ns
            elif action == "lose":
                lost += ns
                training_counters.repeat(lost)
            elif action == "read":
                found.append(seconds())
                assert ledger.now_ns / SECOND == pytest.approx(sum(found[-1].values()))
                assert found[-1].get("lost", 0) <= lost / SECOND
            else:
                ledger.now_ns += ns
        seconds()
        ledger.now_ns += lost
        found.append(seconds())
    assert lost / SECOND == found[-1].get("lost", 0)
    for one, other in pairwise(found):
        assert all(total <= other[name] for name, total in one.items() if total)


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
