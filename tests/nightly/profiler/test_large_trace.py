"""Large traces: of a million ranges, and in bounded memory."""

import tracemalloc
from pathlib import Path

import pytest

from monitel.profiler import profile, record_function, trace

MANY = 1_000_000


def test_a_million_ranges(tmp_path: Path) -> None:
    with profile() as prof:
        label = record_function("a")
        for _ in range(MANY):
            with label:
                pass
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(path)
    with path.open() as file:
        assert MANY == sum(line.startswith('{"ph":"X"') for line in file)


def test_memory_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing six times as many ranges does not take more memory."""
    monkeypatch.setattr(trace, "_MAX_DISORDER", 1000)
    cycle, peaks = trace.Recording("id"), []
    cycle.start()
    for number in range(30_000):
        with record_function(f"{number}"):
            pass
    cycle.stop()
    everything = cycle._began
    for part in (5_000, 30_000):
        cycle._began = everything[:part]
        tracemalloc.start()
        trace.write_chrome_trace(cycle, tmp_path / "trace.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 2 * 2**20
