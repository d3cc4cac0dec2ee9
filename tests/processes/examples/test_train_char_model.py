"""The demo: its telemetry is complete however the run ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import numpy as np
from tests.processes.patience import patience
from tests.support.paths import EXAMPLES
from tests.support.receiver import Receiver
from tests.unit.tensorboard.files import LEDGER, reader_of

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
TIMEOUT = 120


def start(run_dir: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the demo with some flags and environment variables, without the machine's OpenTelemetry settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, SCRIPT, "--run-dir", run_dir, *SMALL, *arguments],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end of the demo; return its exit code, its output and its errors."""
    try:
        printed, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return process.returncode, printed, errors


def spooled(run_dir: Path) -> tuple[set[str], set[str]]:
    lines = subprocess.run(
        [sys.executable, "-m", "monitel", "cat", run_dir / "spool"], stdout=subprocess.PIPE, timeout=TIMEOUT, check=True
    ).stdout.splitlines()
    metrics: set[str] = set()
    events: set[str] = set()
    for request in map(json.loads, lines):
        for resource in request.get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                metrics.update(metric["name"] for metric in scope["metrics"])
        for resource in request.get("resourceLogs", ()):
            for scope in resource["scopeLogs"]:
                events.update(record["eventName"] for record in scope["logRecords"])
    return metrics, events


def assert_everything_is_written(run_dir: Path, printed: str) -> None:
    tags = reader_of(run_dir / "tensorboard").Tags()
    charts = [tag for tag in tags["scalars"] if not tag.startswith(("step.time/", *LEDGER))]
    assert ["loss/max{split=train}", "loss/mean{split=train}", "loss{split=val}"] == sorted(charts)[:3]
    assert {*charts[3:]} | {"step.time/p99"} <= {*tags["scalars"]}
    assert {"events/epoch", "events/checkpoint"} <= {*tags["tensors"]}
    assert ["step.time/histogram"] == tags["histograms"]
    metrics, events = spooled(run_dir)
    assert metrics >= {f"{stat}.mean" for stat in STATS} | NUMBERS | {"step.time.p99", "step.time.histogram"}
    assert events >= EVENTS
    with np.load(run_dir / "checkpoint.npz") as checkpoint:
        assert checkpoint["step"] > 0
    table = {line.split()[0] for line in printed.splitlines() if line.strip()}
    assert table >= {*STATS, "counters", "events", "data.loading"}


def test_a_run_writes_tensorboard_files_the_spool_and_a_checkpoint(tmp_path: Path) -> None:
    """A run of a second ends by itself with everything written, and prints no progress bar into a pipe."""
    code, printed, errors = finish(start(tmp_path, "--seconds", "1", "--distributions", "both"))
    assert (code, "\r" in errors) == (0, False), errors
    assert_everything_is_written(tmp_path, printed)
    assert f"-m monitel replay {tmp_path}/spool --endpoint" in printed
    assert f"tensorboard --logdir {tmp_path}" in printed


def test_a_run_that_is_profiled(tmp_path: Path) -> None:
    """The trace has the steps around the end of the first epoch, each with its parts. Its path is printed."""
    code, printed, errors = finish(start(tmp_path, "--seconds", "1", "--epoch-steps", "20", "--profile", "4"))
    assert code == 0, errors
    (path,) = (tmp_path / "tensorboard").glob("*.pt.trace.json")
    assert f"see the trace    {path}" in printed
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert [f"ProfilerStep#{step}" for step in range(18, 22)] == [event["name"] for event in steps]
    for step in steps:
        end = step["ts"] + step["dur"]
        parts = [event["name"] for event in events if event is not step and step["ts"] <= event["ts"] < end]
        closing = ["validation", "checkpoint"] if step["name"] == "ProfilerStep#20" else []
        assert [*closing, "data", "gradients", "optimizer"] == parts


def test_ctrl_c_ends_a_run_with_everything_written(tmp_path: Path) -> None:
    """SIGINT ends a run within seconds, with exit code 130 and the same files as a normal end."""
    process = start(tmp_path, "--seconds", "600", "--distributions", "both")
    timer = Timer(TIMEOUT, process.kill)
    timer.start()
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch"):
        assert process.poll() is None, process.communicate()
    timer.cancel()
    process.send_signal(signal.SIGINT)
    code, printed, errors = finish(process)
    assert (code, "Traceback" in errors) == (130, False), errors
    assert_everything_is_written(tmp_path, printed)
    assert "interrupted" in spooled(tmp_path)[1]


def test_with_an_endpoint_it_is_sent(tmp_path: Path, receiver: Receiver) -> None:
    """If OTEL_EXPORTER_OTLP_ENDPOINT is set, metrics and logs arrive there, with percentiles by default."""
    code, printed, errors = finish(start(tmp_path, "--seconds", "1", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url))
    assert code == 0, errors
    assert f"sent to          {receiver.url}" in printed
    names = {*NUMBERS, "loss.mean", "step.time.p50", "step.time.p99"}
    assert names == {name for name in {*names, "step.time.histogram"} if receiver.points(name)}
    assert {*receiver.record_names()} >= EVENTS


def test_wrong_arguments_are_explained(tmp_path: Path) -> None:
    """The error is one line with the value and the allowed values."""
    code, _, errors = finish(start(tmp_path, "--seconds", "nan"))
    message = "train_char_model.py: error: argument --seconds: must be at least 0.1, got nan"
    assert (code, errors.splitlines()[-1]) == (2, message)
