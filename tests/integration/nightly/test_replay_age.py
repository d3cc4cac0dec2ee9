"""Old data and a real Prometheus: replay counts the points that it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conftest import Prometheus, Python

RUN = """\
import sys, time

age_ns = int(float(sys.argv[1]) * 3600 * 10**9)
now_ns = time.time_ns
time.time_ns = lambda: now_ns() - age_ns  # before anything takes it from there

import monitel, monitel_otlp

pipeline = monitel_otlp.configure(service_name="train", export_interval=3600.0, spool_dir="spool")
with monitel.testing.ManualClock(time.time_ns()) as clock:
    loss = monitel.Stat(sys.argv[2], [monitel.MEAN], 60.0)
    for number in range(3):
        loss.add(number)
        clock.advance(60)
        assert pipeline.force_flush(60)  # a request for each
pipeline.shutdown()
"""


@pytest.fixture
def replayed(python: Python, prometheus: Prometheus, tmp_path: Path) -> Callable[..., list[str]]:
    """Record three windows so many hours ago, replay them into Prometheus, and tell what that prints."""
    (tmp_path / "train.py").write_text(RUN)

    def replayed(hours: float, name: str, status: int = 0) -> list[str]:
        python("train.py", hours, name)
        url = f"{prometheus.url}/api/v1/otlp"
        done = python("-m", "monitel", "replay", "spool", "--endpoint", url, returncode=status)
        return done.stdout.splitlines()

    return replayed


def test_prometheus_takes_nothing_old_by_default(replayed: Callable[..., list[str]], prometheus: Prometheus) -> None:
    """With present data in Prometheus, points older than an hour are refused, and counted."""
    assert ["delivered 3 items from 1 spool"] == replayed(0.1, "fresh")
    (result,) = replayed(3.1, "old", 1)
    assert "delivered 0 items from 1 spool; refused for their age, and set aside in the spool: 3" == result
    assert (3, 0) == (len(prometheus.samples("fresh_mean")), len(prometheus.samples("old_mean", "1d")))


@pytest.mark.parametrize("prometheus", ["5h"], indirect=True)
def test_what_is_older_than_the_window_is_refused(replayed: Callable[..., list[str]], prometheus: Prometheus) -> None:
    """With a longer window the same data is stored; what is beyond it gets a 500, for good."""
    replayed(0.1, "fresh")
    assert "delivered 3 items from 1 spool" == replayed(3, "old")[-1]
    assert replayed(9, "older", 1)[-1].endswith("refused for their age, and set aside in the spool: 3")
    stored = [len(prometheus.samples(f"{name}_mean", "1d")) for name in ("fresh", "old", "older")]
    assert [3, 3, 0] == stored
