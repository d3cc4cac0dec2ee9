"""The numbers of a row, from readings with known times: ages, states, shares and rates, at the borders of each rule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monitel.context_page import Context, WaitInProgress
from monitel_otlp.black_box.activity import Stage
from monitel_otlp.spool.lock import this_process
from monitel_otlp.summary.report import JobName, Report, StageTotal, Total
from monitel_otlp.top import row
from monitel_otlp.top.numbers import Value
from monitel_otlp.top.period import History
from monitel_otlp.top.rank import Rank, RankState
from monitel_otlp.top.row import NOTHING, Doing, End, doing_of, row_of, usual_step

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


def test_ages_in_a_cut_have_grown_since() -> None:
    """The cut is 2 seconds old. Without a page its waits are shown, and its step, whose age is not known."""
    context = {
        "step": 11,
        "waits": [("share", 5, 1.5)],
        "activity": ("data", 0.5),
        "stage": ("forward", True, 0.25, 5),
    }
    found = doing_of(watch_of(context=context), NOW, UPTIME)
    assert (11, None) == (found.step, found.step_age_ns)
    assert [("share", 3_500_000_000, 5)] == [*map(tuple, found.waits)]
    assert ("data", 2_500_000_000) == (found.activity, found.activity_age_ns)
    assert Stage("forward", True, 2_250_000_000, 5) == found.stage
    assert 500_000_000 == doing_of(watch_of(context=context), NOW - 9 * S, UPTIME).activity_age_ns
    assert Doing() == doing_of(watch_of(), NOW, UPTIME)
    assert doing_of(watch_of(context={"step": "11"}), NOW, UPTIME).step is None  # not a number: the box is damaged


def test_step_that_was_set_before_the_page_is_as_old_as_the_box() -> None:
    """A process may hang in its first step."""
    assert 500 * S == doing_of(watch_of(page=Context(step=0)), NOW, UPTIME).step_age_ns
    assert 0 == doing_of(watch_of(page=Context(step=0)), NOW - 501 * S, UPTIME).step_age_ns  # the clock was set back


@pytest.mark.parametrize(
    ("since_ns", "state"), [(0, RankState.ALIVE), (3 * S, RankState.ALIVE), (3 * S + 1, RankState.SILENT)]
)
def test_process_is_silent_after_three_seconds_without_a_heartbeat(since_ns: int, state: RankState) -> None:
    """Its last sign of life is the heartbeat."""
    found = shown(watch_of(page=Context(heartbeat_ns=UPTIME - since_ns)))
    assert (state, NOW - since_ns) == (found.state, found.seen_ns)


def test_heartbeat_after_the_look_began_is_not_in_the_future() -> None:
    """The process goes on while its row is made."""
    assert NOW == shown(watch_of(page=Context(heartbeat_ns=UPTIME + S))).seen_ns


def test_process_without_a_page_is_alive() -> None:
    """Its lock shows that it runs."""
    found = shown(watch_of())
    assert (RankState.ALIVE, NOW, None, None) == (found.state, found.seen_ns, found.step, found.rate)


def test_row_of_an_ended_process_has_the_facts_of_its_end() -> None:
    """Its heartbeat and its rate are of the past."""
    end = End(RankState.DEAD, "killed by SIGKILL", seen_ns=NOW - 60 * S, doing=Doing(8, 2 * S))
    found = shown(watch_of(page=Context(step=9, heartbeat_ns=UPTIME), rate=4.0), end)
    assert (RankState.DEAD, "killed by SIGKILL", NOW - 60 * S) == (found.state, found.death, found.seen_ns)
    assert (8, 2 * S, None) == (found.step, found.step_age_ns, found.rate)
    assert NOTHING.step is None


def test_quantiles_are_not_confused() -> None:
    """The median stands before the time that 99 of 100 steps do not exceed."""
    found = shown(watch_of())
    assert (0.25, 0.75) == (found.step_p50, found.step_p99)


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
        (sync(5.0), {"step": 6 * S, "stuck": 4 * S}, 0.5),
        (sync(3.0), {"step": 10 * S, "down": 20 * S}, 0.3),
        (sync(30.0), {"step": 10 * S}, 1.0),  # of several threads
        (sync(0.0), {"step": 10 * S}, 0.0),
        (sync(3.0, device=True), {"step": 10 * S}, None),  # the host may wait for its own device
        ((), {"step": 6 * S, "stuck": 4 * S}, 0.4),
        ((), {"step": 10 * S}, None),  # without stages it is not known
        (sync(3.0), {}, None),
    ],
)
def test_share_of_waits(stages: tuple[StageTotal, ...], activities: dict[str, int], share: float | None) -> None:
    """The stage has the waits that have ended, and the ledger those over their threshold: the larger one counts."""
    found = shown(watch_of(life(stages=stages, activities=activities))).waiting
    assert (None if share is None else pytest.approx(share)) == found


def test_share_of_waits_is_that_of_the_last_ten_seconds() -> None:
    """Earlier waits of the same stage do not count."""
    before = life(time_ns=NOW - 10 * S, stages=sync(50.0), activities={"step": 100 * S})
    now = life(stages=sync(52.0), activities={"step": 110 * S})
    assert pytest.approx(0.2) == shown(watch_of(before, now)).waiting


def test_goodput_is_that_of_the_run() -> None:
    """A process of an earlier version has only its own: the share of steps in its time."""
    own = life(activities={"step": 3 * S, "init": S, "down": 4 * S})
    assert 0.5 == shown(watch_of(own, context={"goodput": 0.5})).goodput
    assert 0.75 == shown(watch_of(own, context={"goodput": None})).goodput
    assert 0.75 == shown(watch_of(own)).goodput
    assert shown(watch_of(life(activities={"init": S}))).goodput is None
    assert shown(watch_of()).goodput is None


def test_rate_before_the_first_observed_step_is_that_of_the_life() -> None:
    """An observed rate comes first, zero too."""
    steady = life(step_time=Total(100, 25.0))
    assert 4.0 == shown(watch_of(steady)).rate
    assert 9.0 == shown(watch_of(steady, rate=9.0)).rate
    assert 0.0 == shown(watch_of(steady, rate=0.0)).rate
    assert shown(watch_of(life())).rate is None


@pytest.mark.parametrize(
    ("age_ns", "rate"), [(5 * S // 2, 4.0), (13 * S // 5, 2.96), (5 * S, 2.0), (9 * S, 0.4), (20 * S, 0.0)]
)
def test_overdue_step_lowers_the_rate_of_the_life(age_ns: int, rate: float) -> None:
    """After ten usual steps without one, the ten seconds of the rate end now."""
    found = shown(watch_of(life(step_time=Total(100, 25.0)), page=Context(step=40, step_ns=UPTIME - age_ns)))
    assert pytest.approx(rate) == found.rate


def test_usual_step_is_the_median() -> None:
    """Without one it is the mean of the process's life, without the time since the last step."""
    watch = watch_of(life(step_time=Total(100, 25.0)), page=Context(step=40, step_ns=UPTIME - 60 * S))
    assert 0.25 == usual_step(watch)
    watch.distribution.median = None
    watch.history.add(life(first_step=1, last_step=40, activities={"init": 9 * S, "step": 80 * S}))
    assert 0.5 == usual_step(watch)  # 40 steps in 20 of 80 seconds
    watch.page = Context()
    assert 2.0 == usual_step(watch)  # in all of them: the age of the step is not known
    for report in ((), (life(),)):
        unknown = watch_of(*report, page=Context(step=1, step_ns=UPTIME))
        unknown.distribution.median = None
        assert usual_step(unknown) is None
