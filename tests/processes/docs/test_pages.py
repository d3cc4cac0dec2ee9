"""The demo, whose telemetry is complete however it ends, and pages that start processes or train for seconds."""

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from tests.processes.patience import patience
from tests.support.paths import EXAMPLES
from tests.support.receiver import Receiver
from tests.support.scripts import Process, finish, started
from tests.support.spools import Content, cat
from tests.unit.doc_pages import page_parameters, run_page
from tests.unit.tensorboard.files import LEDGER, reader_of


@pytest.mark.parametrize("page", page_parameters(processes=True))
def test_page_runs(page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks run in order, in one namespace and an empty folder, and print what the page shows."""
    run_page(page, capsys, monkeypatch)


SCRIPT = EXAMPLES / "train_char_model.py"
#: Runs the script that is its first argument.
PROGRAM = f"""{patience()}
import os, runpy
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
STATS = {"loss", "model.gradient.norm", "step.time"}
NUMBERS = {"loss", "training.steps", "training.samples"}
EVENTS = {"epoch", "run.log", "checkpoint"}
SMALL = ("--epoch-steps", "20", "--batch-size", "64", "--hidden", "32")


def running(runs_dir: Path, *arguments: str, **environment: str) -> AbstractContextManager[Process]:
    command = ("-c", PROGRAM, SCRIPT, *SMALL, *arguments)
    return started(runs_dir, *command, env={**environment, "MONITEL_RUNS_DIR": str(runs_dir)}, fresh=True)


def folder_of_run(runs_dir: Path) -> Path:
    (folder,) = runs_dir.glob("monitel-demo-*-1")
    return folder


def check_everything_is_written(run_dir: Path) -> Content:
    tags = reader_of(run_dir).Tags()
    charts = [tag for tag in tags["scalars"] if not tag.startswith(("step.time/", *LEDGER))]
    assert ["loss/max{split=train}", "loss/mean{split=train}", "loss{split=val}"] == sorted(charts)[:3]
    assert {*charts[3:]} | {"step.time/p99"} <= {*tags["scalars"]}
    assert {"events/epoch", "events/checkpoint"} <= {*tags["tensors"]}
    assert ["step.time/histogram"] == tags["histograms"]
    content = cat(run_dir)
    metrics = {f"{stat}.mean" for stat in STATS} | NUMBERS | {"step.time.p99", "step.time.histogram"}
    assert set() == {metric for metric in metrics if not content.points(metric)}
    assert {*content.names} >= EVENTS
    with np.load(run_dir / "checkpoint.npz") as checkpoint:
        assert checkpoint["step"] > 0
    return content


def test_a_run_that_is_profiled_and_sent(tmp_path: Path, receiver: Receiver) -> None:
    """Metrics and logs arrive, with percentiles; the trace has the steps around the end of the first epoch."""
    given = ("--seconds", "1", "--profile", "4")
    with running(tmp_path, *given, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as process:
        ended = finish(process)
    assert (0, False) == (ended.status, "\r" in ended.stderr)  # no progress bar into a pipe
    names = {*NUMBERS, "loss.mean", "step.time.p50", "step.time.p99"}
    assert names == {name for name in {*names, "step.time.histogram"} if receiver.points(name)}
    assert {*receiver.record_names()} >= EVENTS
    (path,) = folder_of_run(tmp_path).glob("*.pt.trace.json")
    assert f"see the trace    {path}" in ended.stdout
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert [f"ProfilerStep#{step}" for step in range(18, 22)] == [event["name"] for event in steps]
    for step in steps:
        end = step["ts"] + step["dur"]
        parts = [event["name"] for event in events if event is not step and step["ts"] <= event["ts"] < end]
        closing = ["validation", "checkpoint"] if step["name"] == "ProfilerStep#20" else []
        assert [*closing, "data", "gradients", "optimizer"] == parts


def test_ctrl_c_ends_a_run_with_everything_written(tmp_path: Path) -> None:
    """SIGINT ends a run within seconds, with exit code 130: TensorBoard files, a spool and a checkpoint."""
    with running(tmp_path, "--seconds", "600", MONITEL_DISTRIBUTIONS="both") as process:
        assert process.stdout is not None
        assert any(line.startswith("epoch") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert (ended.status, "Traceback" in ended.stderr) == (130, False)
    folder = folder_of_run(tmp_path)
    assert "interrupted" in check_everything_is_written(folder).names
    assert f"report           {(folder / 'report.html').as_uri()}" in ended.stdout
    assert f"tensorboard --logdir {tmp_path}" in ended.stdout
