"""The example with a late rank, as a job of torchrun: the shipped rules name rank, stage and delay."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.integration.stack.filling import store
from tests.support.paths import EXAMPLES
from tests.support.scripts import Run

STEPS = 100  # of about 140 ms


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_example_is_explained(backends: Path, run: Run, tmp_path: Path) -> None:
    """``torchrun train_ddp.py --late data:2:30ms`` prints a query, which returns rank 2, ``data``, 30 ms."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    with store(backends, tmp_path) as prometheus:
        exports = {
            **prometheus.variables,
            "OTEL_METRIC_EXPORT_INTERVAL": "100",  # the rules are sixty times as fast, too
            "OMP_NUM_THREADS": "1",
        }
        job = (*torchrun, EXAMPLES / "train_ddp.py", "--late", "data:2:30ms", "--steps", STEPS)
        printed = run(*job, env=exports, fresh=True).stdout
        assert "injected: rank 2 is late in data by 30 ms in every step\n" in printed
        (selector,) = re.findall(r"^    sort_desc\((training:suspect:seconds\{.*\})\)$", printed, re.MULTILINE)
        first, *_ = prometheus.query(f"sort_desc(quantile_over_time(0.5, {selector}[1h]))")
    assert ("2", "data") == (first["metric"]["training_rank"], first["metric"]["training_stage"])
    assert float(first["value"][1]) == pytest.approx(0.030, rel=0.15)
