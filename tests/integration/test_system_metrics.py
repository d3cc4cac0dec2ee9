"""The queries of the guide to system metrics, asked of a real Prometheus, with a stand-in for the driver of GPUs."""

import re
import socket
import sys
from pathlib import Path

import pytest
from tests.integration.conftest import Stack
from tests.support.checks import wait_until
from tests.support.paths import ROOT


def documented(start: str) -> str:
    """Return the query of the guide that starts with these words."""
    page = (ROOT / "docs/how-to/opentelemetry.md").read_text("utf-8")
    (found,) = [each for each in re.findall(r"\? \| `(.*)` \|", page) if each.startswith(start)]
    return str(found)


def test_documented_queries_return_the_state_of_the_process(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Memory, CPU time and GPUs of this process, each compared with the value that the test has read."""
    psutil = pytest.importorskip("psutil", reason="pip install opentelemetry-instrumentation-system-metrics")
    pytest.importorskip(
        "opentelemetry.instrumentation.system_metrics",
        reason="pip install opentelemetry-instrumentation-system-metrics",
    )
    from tests.support.nvml import FakeNvml

    import monitel_otlp

    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("RANK", "3")
    query = stack.prometheus.values
    with monitel_otlp.configure(
        endpoint=stack.endpoint, spool_dir=tmp_path, export_interval=3600.0, system=True
    ) as pipeline:
        for _ in range(3):
            begin = sum(psutil.Process().cpu_times()[:2])
            while sum(psutil.Process().cpu_times()[:2]) < begin + 0.3:
                sum(range(10_000))
            assert pipeline.force_flush(60)
        resident = psutil.Process().memory_info().rss
        wait_until(lambda: len(query("process_cpu_time_seconds_total")) == 2, "Prometheus has both series")
        (found,) = query(documented("process_memory_usage_bytes"))
        assert abs(int(found) - resident) < 32 * 2**20
        (busy,) = query(documented("sum by (training_rank) (rate(process_cpu"))
        assert 0 < float(busy)
        (files,) = query("process_open_file_descriptor_count")
        assert abs(int(files) - psutil.Process().num_fds()) < 20
        (share,) = query(documented("1 - sum by (host_name) (rate(system_cpu"))
        assert 0 < float(share) <= 1
        assert 1 == len(query(documented("sum by (host_name) (rate(system_cpu")))
        assert ["0.21"] == query(documented("max by (host_name, hw_id) (hw_gpu_utilization").removesuffix(" < 0.1"))
        (full,) = query(documented("max by (host_name, hw_id) (hw_gpu_memory"))
        assert abs(float(full) - 2 / 141) < 1e-9
        assert ["650.5", "61"] == [*query("hw_power_watts"), *query("hw_temperature_celsius")]
        where = f'host_name="{socket.gethostname()}", training_rank="3"'
        assert ["1"] == query(f"count(process_thread_count{{{where}}})")
