"""The example with a late rank, as a job of torchrun: the shipped rules name rank, stage and delay."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.integration.conftest import DEADLINE, ROOT
from tests.integration.services import run_python
from tests.integration.stack.filling import store

EXAMPLE = ROOT / "docs" / "examples" / "train_ddp.py"
STEPS = 100  # of about 140 ms


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_example_is_explained(backends: Path, tmp_path: Path) -> None:
    """``torchrun train_ddp.py --late data:2:30ms`` prints a query, which returns rank 2, ``data``, 30 ms."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))}
    with store(backends, tmp_path) as prometheus:
        exports = {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{prometheus.url}/api/v1/otlp/v1/metrics",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",  # the rules are sixty times as fast, too
            "OMP_NUM_THREADS": "1",
        }
        job = (*torchrun, EXAMPLE, "--late", "data:2:30ms", "--steps", STEPS)
        printed = run_python(tmp_path, *job, environment={**clean, **exports}, timeout=2 * DEADLINE).stdout
        assert "injected: rank 2 is late in data by 30 ms in every step\n" in printed
        (selector,) = re.findall(r"^    sort_desc\((training:suspect:seconds\{.*\})\)$", printed, re.MULTILINE)
        first, *_ = prometheus.query(f"sort_desc(quantile_over_time(0.5, {selector}[1h]))")
    assert ("2", "data") == (first["metric"]["training_rank"], first["metric"]["training_stage"])
    assert float(first["value"][1]) == pytest.approx(0.030, rel=0.15)
