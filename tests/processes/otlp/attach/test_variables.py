"""MONITEL_* variables without code: ``opentelemetry-instrument`` with monitel's exporters and instrumentor."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.spools import spooled

import monitel_otlp
from monitel_otlp import attach
from monitel_otlp._compat import LogRecordExportResult

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Ended, Instrument


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

RECORD = """\
import monitel
for layer in range(3):
    monitel.Stat("wide", [monitel.HISTOGRAM, monitel.COUNT], 60.0, attributes={"layer": layer}).add(1)
monitel.emit("epoch")
"""
#: Ten steps of an unchanged training script; three batches of evaluation are not steps.
TRAIN = """\
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.ones(32, 3)).sum().backward()
    optimizer.step()
for _ in range(3):
    model(torch.ones(32, 3))
"""
STAGES = {"optimizer", "other", "data", "forward", "backward"}


@pytest.fixture
def train(receiver: Receiver, instrument: Instrument) -> Instrument:
    """Return a function that runs a script with monitel's exporters and further variables."""

    def train(script: str, *, env: Mapping[str, str], timeout: float = 60) -> Ended:
        usual = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "monitel",
            "OTEL_LOGS_EXPORTER": "monitel",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel",
        }
        return instrument(script, env={**usual, **env}, timeout=timeout)

    return train


def test_exporters_read_their_variables(receiver: Receiver, train: Instrument) -> None:
    """Windows have both forms of distributions, the rank, and one series beyond the limit; run events are emitted."""
    chosen = {"DISTRIBUTIONS": "both", "RANK_ATTRIBUTE": "on", "SERIES_LIMIT": "2", "RUN_EVENTS": "on"}
    ended = train(RECORD, env={"RANK": "3", **{f"MONITEL_{name}": value for name, value in chosen.items()}})
    found = {(point.metric, point.attributes.get("layer", "others")): point for point in receiver.all_points()}
    counts = {layer: point.value for (metric, layer), point in found.items() if metric == "wide.count"}
    assert {0: 1, 1: 1, "others": 1} == counts
    assert {"wide.p50", "wide.histogram"} <= {metric for metric, _ in found}
    ours = [point for (metric, _), point in found.items() if metric.startswith("wide.")]
    assert {3} == {point.attributes["training.rank"] for point in ours}
    assert ["epoch", "run.ended", "run.started"] == sorted(receiver.record_names())
    assert "MONITEL_" not in ended.stderr


@pytest.mark.parametrize(("rank", "names"), [("0", ["epoch"]), ("1", [])])
def test_only_rank_zero_exports(receiver: Receiver, train: Instrument, rank: str, names: list[str]) -> None:
    """With MONITEL_RANKS=zero the other ranks send nothing and print nothing."""
    ended = train(RECORD, env={"RANK": rank, "MONITEL_RANKS": "zero"})
    assert names == receiver.record_names()
    assert bool(names) == bool(receiver.points("wide.count")) == bool(receiver.requests) == bool(ended.stderr)


def test_exporters_of_silent_ranks_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK counts no failures there."""
    monkeypatch.setattr(attach, "_attached", None)
    monkeypatch.setenv("RANK", "1")
    exporter = monitel_otlp.LogExporter(ranks="zero")
    assert LogRecordExportResult.SUCCESS == exporter.export([])
    assert exporter.force_flush()
    exporter.shutdown()


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ({"ranks": "one"}, ValueError, "ranks must be 'all' or 'zero', got 'one'"),
        ({"run_events": "false"}, TypeError, "run_events must be True or False, got 'false'"),
        ({"rank_attribute": "no"}, TypeError, "rank_attribute must be True or False, got 'no'"),
        ({"workers": 0}, TypeError, "workers must be True or False, got 0"),
        ({"spans": True}, TypeError, "LogExporter() has no argument 'spans'"),
    ],
)
def test_wrong_argument_raises(
    monkeypatch: pytest.MonkeyPatch, argument: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    """The first exporter, which makes no pipeline then."""
    monkeypatch.setattr(attach, "_attached", None)
    with pytest.raises(error, match=re.escape(message)):
        monitel_otlp.LogExporter(**argument)
    assert attach._attached is None


def test_spool_is_in_the_folder_of_the_variable(train: Instrument, tmp_path: Path) -> None:
    """Telemetry that the backend refuses is below MONITEL_SPOOL_DIR."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "MONITEL_SPOOL_DIR": str(tmp_path / "here")}
    train(RECORD, env=env)
    assert "epoch" in spooled(tmp_path / "here", distro=False)[1]
    assert not (tmp_path / "state").exists()


def test_wrong_values_are_one_warning_each(receiver: Receiver, train: Instrument) -> None:
    """Three exporters read the variables; the job runs with the defaults."""
    wrong = {"DISTRIBUTIONS": "all", "RANKS": "one", "RANK_ATTRIBUTE": "7", "SERIES_LIMIT": "none", "RUN_EVENTS": "so"}
    ended = train(RECORD, env={f"MONITEL_{name}": value for name, value in wrong.items()})
    lines = [line for line in ended.stderr.splitlines() if "MONITEL_" in line]
    assert sorted(f"MONITEL_{name}" for name in wrong) == sorted(line.partition(":")[0] for line in lines)
    assert ["epoch", "run.ended", "run.started"] == sorted(receiver.record_names())
    assert {"wide.count", "wide.p50"} <= {point.metric for point in receiver.all_points()}


@pytest.mark.torch
@needs_torch
def test_samples_per_step_are_counted(receiver: Receiver, train: Instrument) -> None:
    """The instrumentor of torch reads its variables; a wrong value is one warning, and the job runs."""
    chosen = {"MONITEL_SAMPLES_PER_STEP": "32", "MONITEL_STAGES": "maybe", "MONITEL_WINDOW_SIZE": "3600"}
    ended = train(TRAIN, env={"RANK": "0", **chosen}, timeout=120)
    assert 10 * 32 == receiver.values("training.samples")[-1]
    assert 10 == receiver.values("training.steps")[-1]
    assert STAGES == {each.attributes["training.stage"] for each in receiver.points("training.stage.duration.mean")}
    lines = [line for line in ended.stderr.splitlines() if "MONITEL_" in line]
    assert ["MONITEL_STAGES: expected true or false, got 'maybe'; using True"] == lines


@pytest.mark.torch
@needs_torch
def test_contradicting_variables_do_not_stop_the_job(receiver: Receiver, train: Instrument) -> None:
    """The amounts are not used without steps, and a number of operations not without its peak."""
    chosen = {"STEPS": "false", "SAMPLES_PER_STEP": "32", "FLOPS_PER_STEP": "1e9", "RANK_GROUP": "head"}
    ended = train(TRAIN, env={"RANK": "0", **{f"MONITEL_{name}": value for name, value in chosen.items()}}, timeout=120)
    assert [] == receiver.points("training.samples") == receiver.points("training.steps")
    stages = [each.attributes for each in receiver.points("training.stage.duration.mean")]
    assert STAGES == {each["training.stage"] for each in stages}
    assert {"head"} == {each["training.group"] for each in stages}
    lines = [line for line in ended.stderr.splitlines() if "MONITEL_" in line]
    assert [
        "MONITEL_SAMPLES_PER_STEP: samples_per_step requires steps, which is False, got '32'; using the default",
        "MONITEL_FLOPS_PER_STEP: flops_per_step requires steps, which is False, got '1e9'; using the default",
    ] == lines


WORKERS = """import monitel
from torch.utils.data import DataLoader

class Emitting(list):
    def __getitem__(self, index):
        monitel.emit("loaded")
        return index

if __name__ == "__main__":
    list(DataLoader(Emitting(range(4)), num_workers=2, multiprocessing_context="fork"))
"""


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize(("workers", "names"), [("true", 4 * ["loaded"]), ("false", [])])
def test_events_of_workers_are_exported(receiver: Receiver, train: Instrument, workers: str, names: list[str]) -> None:
    """MONITEL_WORKERS has its effect."""
    train(WORKERS, env={"MONITEL_WORKERS": workers}, timeout=120)
    assert names == receiver.record_names()
