"""The numbers of a row, from readings with known times: ages, states, shares and rates, at the borders of each rule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monitel.context_page import Context, WaitInProgress
from monitel_otlp.spool.lock import this_process
from monitel_otlp.summary.report import JobName, Report, StageTotal, Total
from monitel_otlp.top import row
from monitel_otlp.top.numbers import Value
from monitel_otlp.top.period import History
from monitel_otlp.top.rank import Rank, RankState
from monitel_otlp.top.row import End, doing_of, row_of

S = 10**9
NOW, UPTIME = 1_767_323_045 * S, 5000 * S  # the same moment by both clocks


def life(**fields: Any) -> Report:
    """Return the report about the life of a process up to now."""
    return Report(this_process(), JobName("", "llm"), **{"time_ns": NOW, **fields})


def watch_of(
    *reports: Report, page: Context | None = None, context: dict[str, Any] | None = None, rate: float | None = None
) -> Any:
    """Return the readings of a box that was made 500 seconds ago, with a cut of 2 seconds ago if it has a context."""
    history = History()
    for report in reports:
        history.add(report)
    return SimpleNamespace(
        path=None,
        identity=SimpleNamespace(pid=7, host="n04", rank=3, world_size=4, attempt=1),
        job=JobName("", "llm"),
        header=SimpleNamespace(created_ns=NOW - 500 * S),
        page=page or Context(),
        cut=None if context is None else SimpleNamespace(time_ns=NOW - 2 * S, context=context),
        history=history,
        steps=SimpleNamespace(rate=lambda _now_ns: rate, rates=[1.0, 2.0]),
        distribution=SimpleNamespace(median=0.25, p99=0.75),
        numbers=SimpleNamespace(value=lambda _show: Value("loss", 0.5)),
        event=None,
    )


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop both clocks."""
    monkeypatch.setattr(row, "time", SimpleNamespace(time_ns=lambda: NOW, monotonic_ns=lambda: UPTIME))


def shown(watch: Any, end: End | None = None) -> Rank:
    """Return the row of readings."""
    return row_of(watch, end, None)


def test_ages_are_those_of_the_page() -> None:
    """The page is newer than the cut. The longest wait comes first, and no age is negative."""
    waits = WaitInProgress("barrier", 1, UPTIME - 3 * S), WaitInProgress("share", 2, UPTIME - 8 * S)
    page = Context(step=12, step_ns=UPTIME - 9 * S, waits=waits, heartbeat_ns=UPTIME - S)
    found = doing_of(watch_of(page=page, context={"step": 11, "waits": [("old", 1, 1.0)]}), NOW, UPTIME)
    assert (12, 9 * S) == (found.step, found.step_age_ns)
    assert [("share", 8 * S, 2), ("barrier", 3 * S, 1)] == [*map(tuple, found.waits)]
    early = doing_of(watch_of(page=page), NOW - 20 * S, UPTIME - 20 * S)
    assert (0, [0, 0]) == (early.step_age_ns, [each.age_ns for each in early.waits])


def test_stage_does_not_grow_across_a_step() -> None:
    """A process that makes a step in 20 ms is not shown in data for a second, only because the cut is a second old."""
    context = {"activity": ("data", 0.5), "stage": ("data", False, 0.25, 5)}
    for step_age_ns, grown_ns in ((S, 0), (2 * S, 2 * S), (3 * S, 2 * S)):
        page = Context(step=12, step_ns=UPTIME - step_age_ns, heartbeat_ns=UPTIME)
        found = doing_of(watch_of(page=page, context=context), NOW, UPTIME)
        assert found.stage is not None
        assert (S // 2 + grown_ns, S // 4 + grown_ns) == (found.activity_age_ns, found.stage.age_ns)


@pytest.mark.parametrize(("since_ns", "state"), [(3 * S, RankState.ALIVE), (3 * S + 1, RankState.SILENT)])
def test_process_is_silent_after_three_seconds_without_a_heartbeat(since_ns: int, state: RankState) -> None:
    """Its last sign of life is the heartbeat."""
    found = shown(watch_of(page=Context(heartbeat_ns=UPTIME - since_ns)))
    assert (state, NOW - since_ns) == (found.state, found.seen_ns)


def test_shares_are_those_of_the_last_ten_seconds_without_the_time_between_attempts() -> None:
    """Before them the process has waited for data only, and in the last five not. The time ``down`` is not its own."""
    earlier = life(time_ns=NOW - 12 * S, activities={"data": 88 * S, "down": 5 * S})
    before = life(time_ns=NOW - 10 * S, activities={"data": 90 * S, "down": 5 * S})
    within = life(time_ns=NOW - 5 * S, activities={"data": 92 * S, "step": S, "down": 25 * S})
    now = life(activities={"data": 92 * S, "step": 6 * S, "down": 25 * S})
    assert 0.25 == shown(watch_of(earlier, before, within, now)).data
    assert 92 / 98 == shown(watch_of(now)).data
    assert shown(watch_of(life(activities={"down": S}))).data is None
    assert shown(watch_of()).data is None


def sync(seconds: float, *, device: bool = False) -> tuple[StageTotal, ...]:
    """Return the total of a stage that waits for other ranks."""
    return (StageTotal("sync", "", device, Total(10, seconds)),)


@pytest.mark.parametrize(
    ("stages", "activities", "share"),
    [
        (sync(3.0), {"step": 10 * S}, 0.3),
        (sync(3.0), {"step": 6 * S, "stuck": 4 * S}, 0.4),  # a wait that has not ended is in no stage
        (sync(3.0, device=True), {"step": 10 * S}, None),  # the host may wait for its own device
        ((), {"step": 6 * S, "stuck": 4 * S}, 0.4),
    ],
)
def test_share_of_waits(stages: tuple[StageTotal, ...], activities: dict[str, int], share: float | None) -> None:
    """The stage has the waits that have ended, and the ledger those over their threshold: the larger one counts."""
    found = shown(watch_of(life(stages=stages, activities=activities))).waiting
    assert (None if share is None else pytest.approx(share)) == found


def test_goodput_is_that_of_the_run() -> None:
    """A process of an earlier version has only its own: the share of steps in its time."""
    own = life(activities={"step": 3 * S, "init": S, "down": 4 * S})
    assert 0.5 == shown(watch_of(own, context={"goodput": 0.5})).goodput
    assert 0.75 == shown(watch_of(own, context={"goodput": None})).goodput
    assert 0.75 == shown(watch_of(own)).goodput
    assert shown(watch_of(life(activities={"init": S}))).goodput is None
    assert shown(watch_of()).goodput is None


@pytest.mark.parametrize(("age_ns", "rate"), [(5 * S // 2, 4.0), (5 * S, 2.0), (20 * S, 0.0)])
def test_overdue_step_lowers_the_rate_of_the_life(age_ns: int, rate: float) -> None:
    """After ten usual steps without one, the ten seconds of the rate end now."""
    found = shown(watch_of(life(step_time=Total(100, 25.0)), page=Context(step=40, step_ns=UPTIME - age_ns)))
    assert pytest.approx(rate) == found.rate
