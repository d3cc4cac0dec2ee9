"""Jobs made of rows: their order, the rows that are replaced, and the facts of their verdicts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.console.top.made_rows import SECOND, STAGES, START, history_of, rank_of, report_of, row_of

from monitel_otlp.autopsy.findings import Wait
from monitel_otlp.summary.report import JobName, StageTotal, Total
from monitel_otlp.table.order import matches, sorted_ranks
from monitel_otlp.top.compared_row import Row
from monitel_otlp.top.jobs import jobs_of, replaced
from monitel_otlp.top.launchers import with_launchers
from monitel_otlp.top.period import between
from monitel_otlp.top.rank import RankState


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (row_of(1, 200, pid=77, box="/boxes/new"), False),  # the same rank
        (row_of(0, 200, attempt=1), False),  # a later attempt
        (row_of(0, 200, pid=4001), False),  # another box of the process
        (row_of(0, 170), False),  # the job has begun again
        (row_of(0, 150), True),  # it may belong to the same start
        (row_of(None, 200, pid=77), True),
        (row_of(1, 50, pid=77), True),  # a helper of the rank, which was made while the rank still ran
        (row_of(1, 200, pid=77, job=JobName("", "llm", "run-8")), True),
    ],
)
def test_row_of_a_dead_process_is_replaced_by_a_later_one(later: Row, stays: bool) -> None:
    """Not by another job, and not by another rank of the same start. A live process is never replaced."""
    dead, live = (row_of(1, state=state) for state in (RankState.DEAD, RankState.ALIVE))
    assert ([] if stays else [dead]) == replaced([dead, later])
    assert [] == replaced([live, later])


def launched(rank: int, launcher: str, begun_s: int = 0, process: str = "", **changes: Any) -> Row:
    """Return a row of a job without a run id, with the launcher and the process as identities."""
    job = JobName("", "llm", "", launcher)
    names = {"job": job, "box": f"/boxes/{launcher}-{rank}-{process}", "pid": 5000 + rank + begun_s}
    return row_of(rank, begun_s, **names, **changes)._replace(process=process)


def test_launchers_tell_jobs_apart_that_have_the_same_ranks() -> None:
    """Otherwise they may be the shells around the ranks of one job."""

    def ranks(*rows: Row) -> list[list[int | None]]:
        return [[each.rank for each in job.ranks] for job in jobs_of(with_launchers(rows))]

    assert [[0, 1], [0, 1]] == ranks(launched(0, "a"), launched(0, "b"), launched(1, "a"), launched(1, "b"))
    assert [[0, 1]] == ranks(launched(0, "shell 1"), launched(1, "shell 2"))
    assert [[0, 1]] == ranks(launched(0, "a"), launched(1, ""))
    child = launched(1, "p", process="c")
    assert [[0, 1, 1, 1]] == ranks(launched(0, "a"), launched(1, "a", process="p"), child, launched(1, "c"))
    assert [[0], [0]] == ranks(launched(0, "loop", process="loop"), launched(0, "b"))


def test_row_is_replaced_by_another_launcher_only_after_the_end_of_its_job() -> None:
    """A job that is started again has a new launcher; one beside it has another one from the beginning."""
    dead, again = launched(1, "a", state=RankState.DEAD), launched(1, "b", 200)
    assert [dead] == replaced([dead, again])
    assert [] == replaced([dead, again, launched(0, "a")])
    assert [] == replaced([dead, launched(1, "b", 50)])


def test_jobs_are_sorted_by_name_and_their_ranks_by_number() -> None:
    """A process without a rank is a job."""
    rows = [
        row_of(1),
        row_of(None, pid=9, box="/boxes/b"),
        row_of(None, pid=8, box="/boxes/a"),
        row_of(0),
        row_of(0, job=JobName("", "asr"), pid=5, box="/boxes/c"),
    ]
    found = [(job.name.service, [(each.rank, each.pid) for each in job.ranks]) for job in jobs_of(rows)]
    assert [
        ("asr", [(0, 5)]),
        ("llm", [(0, 4000), (1, 4001)]),
        ("llm", [(None, 8)]),
        ("llm", [(None, 9)]),
    ] == found


def test_verdict_is_about_the_last_minute() -> None:
    """In its life the process has waited for data for a third of the time, and not any more."""
    reports = [
        report_of(None, at_s, steps, stages=(), activities={"data": 100 * SECOND, "step": step_ns})
        for at_s, steps, step_ns in ((200, 400, 100 * SECOND), (250, 500, 150 * SECOND))
    ]
    rank = rank_of(None, world_size=None, step_age_ns=SECOND // 2)
    for history, kind in ((history_of(*reports), "healthy"), (history_of(reports[-1]), "input-bound")):
        (job,) = jobs_of([Row(rank, START, history, 0.5)])
        assert kind == job.verdict.kind


def test_late_rank_of_the_period_is_named() -> None:
    """Rank 1 takes 100 ms longer in forward, and rank 0 waits for it. Before the period, nobody was late."""

    def stages(steps: int, forward: float, sync: float) -> tuple[StageTotal, ...]:
        seconds = {**dict.fromkeys(STAGES, 0.05), "data": 0.001}
        late = {**seconds, "forward": forward, "sync": sync}
        return tuple(
            StageTotal(stage, "", False, Total(400 + steps, 400 * seconds[stage] + steps * late[stage]))
            for stage in late
        )

    def row(rank: int, forward: float, sync: float) -> Row:
        reports = [
            report_of(rank, 100 + 0.4 * steps, 400 + steps, stages=stages(steps, forward, sync))
            for steps in range(0, 101, 20)
        ]
        return Row(rank_of(rank, step_age_ns=SECOND // 10), START, history_of(*reports), 0.4)

    (job,) = jobs_of([row(0, 0.05, 0.15), row(1, 0.15, 0.05)])
    assert ("late-rank", 1, "forward") == (job.verdict.kind, job.verdict.rank, job.verdict.stage)
    assert job.verdict.seconds == pytest.approx(0.1)


def test_wait_of_another_thread_names_no_rank() -> None:
    """A thread that loads batches waits at all times."""
    waits = (Wait("queue", 500 * SECOND, 7), Wait("all_reduce", 90 * SECOND, 5))
    stuck: dict[str, Any] = {"step_age_ns": 100 * SECOND, "activity_age_ns": 90 * SECOND}
    ranks = (
        rank_of(0, waits=waits, activity="stuck", **stuck),
        rank_of(1, waits=waits[:1], activity="other", **stuck),
    )
    rows = [
        Row(rank, START, history_of(report_of(rank.rank, 200, 400)), 0.5, thread=5 + (rank.rank or 0)) for rank in ranks
    ]
    (job,) = jobs_of(rows)
    assert "stuck" == job.verdict.kind
    assert "queue" not in job.verdict.text


def test_period_begins_again_where_totals_fall() -> None:
    """A second pipeline of a process starts its series at zero."""
    earlier, later = report_of(0, 100, 400), report_of(0, 110, 30)
    found = between(earlier, later)
    assert (0, Total(30, 15.0), {}) == (found.steps, found.step_time, dict(found.activities))
    found = between(report_of(0, 100, 400), report_of(0, 110, 420))
    assert (20, Total(20, 10.0)) == (found.steps, found.step_time)
    assert {"data": 2 * SECOND, "step": 8 * SECOND} == dict(found.activities)


def test_period_has_at_least_three_seconds_and_history_is_bounded() -> None:
    """A shorter time has too few cuts."""
    history = history_of(report_of(0, 100, 10), report_of(0, 102.9, 15))
    assert history.last(10 * SECOND) is None
    history.add(report_of(0, 103, 16))
    period = history.last(10 * SECOND)
    assert period is not None
    assert 6 == period.steps
    for second in range(104, 2000):
        history.add(report_of(0, second, second))
    period = history.last(10 * SECOND)
    assert period is not None
    assert 8 <= period.steps <= 10
    assert len(history._kept) < 100


def test_period_is_longer_where_looks_are_farther_apart() -> None:
    """A machine that is overloaded, or a long interval."""
    history = history_of(report_of(0, 100, 100), report_of(0, 130, 160), report_of(0, 160, 230))
    period = history.last(10 * SECOND)
    assert period is not None
    assert 70 == period.steps


def test_order_and_filter_of_rows() -> None:
    """Unknown values come last in both directions."""
    ranks = [rank_of(0, rate=2.0), rank_of(1), rank_of(2, rate=5.0, death="killed by SIGKILL")]
    assert [2, 0, 1] == [each.rank for each in sorted_ranks(ranks, "rate", descending=True)]
    assert [0, 2, 1] == [each.rank for each in sorted_ranks(ranks, "rate", descending=False)]
    with pytest.raises(ValueError, match="there is no column 'speed'"):
        sorted_ranks(ranks, "speed", descending=True)
    assert [2] == [each.rank for each in ranks if matches(each, "sigkill")]
    assert [0, 1, 2] == [each.rank for each in ranks if matches(each, "LLM")]
    assert [1] == [each.rank for each in ranks if matches(each, "4001")]
