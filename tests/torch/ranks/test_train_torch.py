"""The PyTorch example: its model learns, telemetry does not change the training, and Ctrl-C loses no telemetry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Timer

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
PLAIN, WITH_TELEMETRY = "torch_char_model.py", "train_torch.py"
SMALL = ("--batch-size", "8")
TIMEOUT = 240


def start(folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start an example in a folder, without the machine's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.Popen(
        [sys.executable, EXAMPLES / script, *SMALL, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; return the exit code, the output and the errors."""
    try:
        printed, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return process.returncode, printed, errors


def spooled(folder: Path) -> Counter[str]:
    """Return the number of points of each metric, and of records of each event, in the spool."""
    command = [sys.executable, "-m", "monitel_otlp", "cat", str(folder / "monitel-runs")]
    lines = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True).stdout.splitlines()
    found: Counter[str] = Counter()
    for request in map(json.loads, lines):
        for resource in request.get("resourceMetrics", ()):
            for metric in (metric for scope in resource["scopeMetrics"] for metric in scope["metrics"]):
                found[metric["name"]] += len(metric.get("sum", metric.get("gauge"))["dataPoints"])
        for resource in request.get("resourceLogs", ()):
            found.update(record["eventName"] for scope in resource["scopeLogs"] for record in scope["logRecords"])
    return found


def test_telemetry_changes_nothing(tmp_path: Path) -> None:
    """The scripts with and without telemetry print the same losses."""
    both = [finish(start(tmp_path, script, "--steps", "50")) for script in (PLAIN, WITH_TELEMETRY)]
    (code, printed, _), (code_with_telemetry, printed_with_telemetry, errors) = both
    assert (0, 0) == (code, code_with_telemetry), errors
    assert printed == printed_with_telemetry
    assert ["step", "held-out"] == [line.split()[0] for line in printed.splitlines()]
    found = spooled(tmp_path)
    assert {
        "train.loss.mean",
        "training.steps",
        "training.tokens",
        "training.tokens.rate",
        "training.mfu",
    } < found.keys()
    assert 1 == found["evaluation"]


def test_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    """Ctrl-C ends the run and its data loader with exit code 130, and everything is in the spool."""
    process = start(tmp_path, WITH_TELEMETRY, "--steps", "1000000")
    timer = Timer(TIMEOUT, process.kill)
    timer.start()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step"), process.communicate()
    timer.cancel()
    os.killpg(process.pid, signal.SIGINT)  # like a terminal
    code, _, errors = finish(process)
    assert (130, 0) == (code, errors.count("Traceback")), errors
    assert spooled(tmp_path)["training.steps"] > 0
