"""Metrics from a black box: they continue the series of the dead process, to the last sample in the newest cut."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import TEMPORALITY
from tests.unit.blackbox.collection.killed_jobs import replay, run_killed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver

#: Sends the samples 0 to 9 and the first 3 things, and is killed with further ones that are in no request.
JOB = """\
pipeline = monitel_otlp.configure(
    endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, distributions="both"
)
ALL = [COUNT, SUM, MEAN, monitel.MIN, monitel.MAX, monitel.HISTOGRAM]
loss, same = (Stat("loss", ALL, 3600.0, attributes={"split": "train"}) for _ in range(2))
new = Stat("new", ALL, 3600.0)
things = monitel.counter("things", unit="{thing}")
for number in range(10):
    loss.add(number)
things.add(3)
loss.flush()
assert pipeline.force_flush()
loss.add(100)
same.add(7)
new.add(0.25)
things.add(5)
kill()
"""


@pytest.fixture(params=["cumulative", "delta"])
def temporality(request: pytest.FixtureRequest) -> str:
    """The temporality of the job."""
    kind: str = request.param
    return kind


@pytest.fixture
def killed(tmp_path: Path, receiver: Receiver, temporality: str) -> str:
    """Run the job, and collect and deliver its box; return the temporality."""
    run_killed(tmp_path, JOB, receiver.url, env={TEMPORALITY: temporality})
    replay(tmp_path / "spool", receiver.url)
    return temporality


def test_metrics_of_a_killed_process_continue_its_series(receiver: Receiver, killed: str) -> None:
    """Counts, sums, distributions and counters have every sample once; starts and resource are those of the process."""
    expected = {
        "loss.count": (10, 12),
        "loss.sum": (45.0, 152.0),
        "things": (3, 8),
        "new.count": (1,),
        "new.sum": (0.25,),
    }
    for metric, totals in expected.items():
        points = receiver.points(metric)
        # Sums of Stats that are not monotonic are cumulative in any case.
        cumulative = killed == "cumulative" or metric.endswith(".sum")
        steps = totals if cumulative else tuple(b - a for a, b in zip((0, *totals), totals, strict=False))
        values = tuple(point.value for point in points)
        assert steps == (tuple(dict.fromkeys(values)) if cumulative else values), metric  # a flush makes two rounds
        times = [point.time_ns for point in points]
        assert sorted(set(times)) == times
        if cumulative:
            assert 1 == len({point.start_ns for point in points}), metric
            assert 1 == len(receiver.start_points(metric)), metric
        else:
            assert all(later.start_ns >= point.time_ns for point, later in pairwise(points)), metric
    counts = [point.proto.count for point in receiver.points("loss.histogram")]
    assert counts == ([10, 12] if killed == "cumulative" else [10, 2])
    assert [1] == [point.proto.count for point in receiver.points("new.histogram")]
    gauges = {"loss.mean": [4.5, 53.5], "loss.min": [0, 7], "loss.max": [9, 100], "new.mean": [0.25]}
    assert gauges == {metric: receiver.values(metric) for metric in gauges}
    assert 1 == len({point.resource["service.instance.id"] for point in receiver.all_points()})
    assert {"train"} == {point.attributes["split"] for point in receiver.points("loss.count")}
