"""Old data and a real Prometheus: replay counts the points that it refuses."""

from pathlib import Path

import pytest
from tests.integration.conftest import Prometheus
from tests.support.scripts import Run

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


@pytest.mark.parametrize(("prometheus", "ages"), [("0s", (0.1, 3.1)), ("5h", (0.1, 3, 9))], indirect=["prometheus"])
def test_points_that_are_too_old_are_refused_and_counted(
    prometheus: Prometheus, run: Run, tmp_path: Path, ages: tuple[float, ...]
) -> None:
    """An hour older than the newest ones, or older than a longer window: they get a 500, and are set aside for good."""
    (tmp_path / "train.py").write_text(RUN)
    for number, hours in enumerate(ages):
        run("train.py", hours, f"stat{number}", fresh=True)
        refused = hours == ages[-1]
        command = ("-m", "monitel", "replay", "spool", "--endpoint", f"{prometheus.url}/api/v1/otlp")
        result = run(*command, returncode=int(refused)).stdout.splitlines()[-1]
        expected = "; refused, and set aside in the spool: 3" if refused else "delivered 3 items from 1 spool"
        assert result.endswith(expected)
        assert 3 * (not refused) == len(prometheus.samples(f"stat{number}_mean", "1d"))
