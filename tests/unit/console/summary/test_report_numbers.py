"""The numbers of a report: steps, rate, names, and the totals of its series."""

from __future__ import annotations

import math

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from tests.unit.console.summary.made_reports import MS, S, report, totals

from monitel_otlp.black_box.window_state import DEVICE_STAGE_TIME, STAGE_TIME, STEP_TIME
from monitel_otlp.ledger.run_identity import UNSET
from monitel_otlp.summary.jobs import jobs_of
from monitel_otlp.summary.report import JobName, StageTotal, Total, job_of, step_total, whole
from monitel_otlp.verdict.job_facts import OUTSIDE


@pytest.mark.parametrize("activity", sorted(OUTSIDE))
def test_time_outside_of_the_loop_is_not_in_the_rate(activity: str) -> None:
    """Rates and verdicts leave out the same activities. Evaluations are part of the loop."""
    found = report(first_step=1, last_step=10, activities={activity: 90 * S, "step": 4 * S, "evaluation": S})
    assert 2.0 == found.rate


def test_rate_needs_times() -> None:
    """A clock that stands still, and steps without one, have no rate."""
    assert 4.0 == report(steps=10, step_time=Total(8, 2.0), activities={"step": 100 * S}).rate
    assert report(steps=10, step_time=Total(8, 0.0)).rate is None
    assert 5.0 == report(steps=10, step_time=Total(8, 0.0), activities={"step": 2 * S}).rate
    assert report(steps=10, activities={"startup": S}).rate is None
    assert report(activities={"step": S}).rate is None


def test_steps_are_counted_or_those_from_first_to_last() -> None:
    """A step that falls counts as one."""
    assert 12 == report(steps=10, skipped=2, first_step=1, last_step=500).made
    assert [500, 1, 0, 0] == [
        *(report(first_step=1, last_step=500).made, report(first_step=5, last_step=1).made),
        *(report(first_step=1).made, report(last_step=500).made),
    ]


def test_age_of_the_last_step_is_known_only_at_an_observed_death() -> None:
    """The last sign of life may be long before the death."""
    assert 4 * S == report(time_ns=10 * S, step_ns=6 * S, observed=True).step_age_ns
    assert 0 == report(time_ns=10 * S, step_ns=11 * S, observed=True).step_age_ns
    assert report(time_ns=10 * S, step_ns=6 * S).step_age_ns is None
    assert report(time_ns=10 * S, observed=True).step_age_ns is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((7, 7), ("7", 7), ("0", 0), ("9" * 18, 10**18 - 1)),
        *((-1, None), ("1.5", None), ("", None), (None, None), ("٣", None), ("9" * 19, None)),
    ],
)
def test_numbers_of_attributes_fit_into_64_bits(value: object, number: int | None) -> None:
    """Ranks and attempts come from the environment."""
    assert number == whole(value)


def test_launcher_tells_jobs_apart_only_without_a_run_id() -> None:
    """A run id that was never set does not count."""
    names = {"service.namespace": "team", "service.name": "train"}
    assert JobName("team", "train", "run-7") == job_of({**names, "training.run.id": "run-7"}, "agent")
    assert JobName("team", "train", "", "agent") == job_of(names, "agent")
    assert JobName("team", "train", "", "agent") == job_of({**names, "training.run.id": UNSET}, "agent")
    assert 200 == len(job_of({"service.name": "x" * 300}, "").service)


def series(name: str, count: int, seconds: float, **attributes: str) -> tuple[str, list[KeyValue], Total]:
    """Return a series as a report reads it."""
    pairs = [KeyValue(key=f"training.{key}", value=AnyValue(string_value=value)) for key, value in attributes.items()]
    return name, pairs, Total(count, seconds)


def test_series_of_one_name_are_added_up() -> None:
    """By stage, group and device. Empty totals, those that are not finite, and other series do not count."""
    step, stages = step_total(
        [
            series(STEP_TIME, 3, 1.5),
            series(STEP_TIME, 1, 0.5),
            series(STEP_TIME, 0, 9.0),
            series(STEP_TIME, 5, math.nan),
            series(STAGE_TIME, 2, 0.5, stage="data"),
            series(STAGE_TIME, 2, 0.25, stage="data"),
            series(STAGE_TIME, 2, 0.125, stage="data", group="first"),
            series(DEVICE_STAGE_TIME, 2, 4.0, stage="data"),
            series(STAGE_TIME, 2, 8.0, group="first"),
            series("loss", 2, 8.0, stage="data"),
        ]
    )
    assert Total(4, 2.0) == step
    assert {
        StageTotal("data", "", False, Total(4, 0.75)),
        StageTotal("data", "first", False, Total(2, 0.125)),
        StageTotal("data", "", True, Total(2, 4.0)),
    } == {*stages}


def test_late_ranks_are_sorted_by_their_lateness() -> None:
    """The share is that of the cycle of their group, and the time of the job is that of the ledger."""
    times = {0: (50, 30), 1: (50, 30), 2: (60, 20), 3: (70, 10), 4: (50, 30)}
    ranks = [
        report(
            rank,
            steps=200,
            world_size=8 if rank == 1 else None,
            stages=totals({"forward": forward, "sync": sync}),
            activities={} if rank == 0 else {"step": 3 * S},
            death="killed by SIGKILL" if rank == 1 else "",
        )
        for rank, (forward, sync) in times.items()
    ]
    [job] = jobs_of(ranks)
    assert [(3, 20 * MS, 0.25), (2, 10 * MS, 0.125)] == [
        (each.rank, round(each.seconds * S), round(each.share, 6)) for each in job.late()
    ]
    assert 8 == job.world_size
    assert job.time is not None
    assert ((1000 - 3) * S, 1000 * S, False) == (job.time.start_ns, job.time.last_ns, job.time.ended)
