"""Execution traces: the files of ExecutionTraceObserver."""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING

import pytest

from monitel import profiler
from monitel.profiler import profile, record_function, schedule

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("clean_profiler")


def test_observer(tmp_path: Path) -> None:
    """An observer records while its profile does, and writes a graph when the profile is left."""
    path = tmp_path / "graph.json"
    observer = profiler.ExecutionTraceObserver().register_callback(path)
    assert observer is observer.register_callback("elsewhere")
    assert (True, False, str(path)) == (observer.is_registered, observer.is_running(), observer.get_output_file_path())
    plan = schedule(wait=1, warmup=1, active=1)
    with profile(schedule=plan, execution_trace_observer=observer, acc_events=True) as prof:
        for _ in range(6):
            with record_function("a", 'x"'), record_function("b"):
                pass
            assert (prof.step_num % 3 == 2) == observer.is_running()
            prof.step()
        assert not path.exists()
    assert not observer.is_registered
    found = json.loads(path.read_text())
    nodes = {node["id"]: node for node in found["nodes"]}
    tree = [(node["name"], nodes[node["ctrl_deps"]]["name"]) for node in found["nodes"]]
    thread = "[pytorch|profiler|execution_trace|thread]"
    process = "[pytorch|profiler|execution_trace|process]"
    cycle = [[(f"ProfilerStep#{step}", thread), ("a", f"ProfilerStep#{step}"), ("b", "a")] for step in (2, 5)]
    assert [(process, process), (thread, process), *cycle[0], *cycle[1]] == tree
    assert ['x"'] == nodes[4]["inputs"]["values"]
    assert {"schema", "pid", "time", "start_ts", "finish_ts", "nodes"} == set(found)
    observer.unregister_callback()


def test_observers_are_independent(tmp_path: Path) -> None:
    """Two observers write two files (torch's second one writes none), one of them when it is garbage-collected."""
    first = profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "1.json"))
    second = profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "2.json.gz"))
    first.start()
    second.start()
    with record_function("a"):
        pass
    first.cleanup()
    del second
    gc.collect()
    assert ["1.json", "2.json.gz"] == sorted(path.name for path in tmp_path.iterdir())
    unregistered = profiler.ExecutionTraceObserver()
    unregistered.start()
    assert not unregistered.is_running()
    assert unregistered.get_output_file_path() is None


def test_observer_with_a_missing_folder(tmp_path: Path) -> None:
    """A missing folder is an error when the file is set, not after the training."""
    with pytest.raises(FileNotFoundError, match="No such folder to write to"):
        profiler.ExecutionTraceObserver().register_callback(tmp_path / "missing" / "graph.json")


def test_names_without_effect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Resources are not collected, and environment variables do not create observers."""
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    assert profiler.ExecutionTraceObserver.build_execution_trace_obs_from_env() is None
    assert profile().execution_trace_observer is None
    observer = profiler.ExecutionTraceObserver().register_callback(tmp_path / "graph.json")
    observer.set_extra_resource_collection(True)
    assert observer.get_resources_dir(can_create=True) is None
    assert observer.get_resources_dir_for_et_path(tmp_path / "graph.json", create_dir=True) is None
    assert [] == list(tmp_path.iterdir())
    observer.cleanup()
