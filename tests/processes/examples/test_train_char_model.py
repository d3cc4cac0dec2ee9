"""The demo: its model learns, and its telemetry is complete however the run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread, Timer
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]
from tests.support.paths import EXAMPLES

sys.path.insert(0, str(EXAMPLES))  # the examples are scripts, not a package

import numpy as np
from char_model import Adam, CharModel, Corpus, draw_batch

if TYPE_CHECKING:
    from pathlib import Path
    from collections.abc import Iterator

SCRIPT = EXAMPLES / "train_char_model.py"
STATS = {"loss", "gradient.norm", "step.time"}
NUMBERS = {"loss", "training.steps", "training.samples"}
EVENTS = {"epoch", "run.log", "checkpoint"}
SMALL = ("--epoch-steps", "20", "--batch-size", "64", "--hidden", "32")
TIMEOUT = 60


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Forty small files: the first and the 21st are for validation."""
    for number in range(40):
        source = f"for item in range({number}):\n    print(item)\n" * 200
        (tmp_path / f"file{number:02}.py").write_text(source)
    return Corpus.read(tmp_path)


def start(run_dir: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the demo with some flags and environment variables, without the machine's OpenTelemetry settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.Popen(
        [sys.executable, SCRIPT, "--run-dir", run_dir, *SMALL, *arguments],
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


def tags(run_dir: Path, kind: str) -> set[str]:
    """Return the tags of a kind that TensorBoard finds."""
    accumulator = event_accumulator.EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return set(accumulator.Tags()[kind])


def spooled(run_dir: Path) -> tuple[set[str], set[str]]:
    """Return the names of the metrics and of the log events in the spool."""
    lines = subprocess.run(
        [sys.executable, "-m", "monitel_otlp", "cat", run_dir / "spool"],
        stdout=subprocess.PIPE,
        timeout=TIMEOUT,
        check=True,
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
    """Check TensorBoard's files, the spool, the checkpoint and the table."""
    scalars = {"loss.mean{split=train}", "loss{split=val}", "step.time.p99", "epoch/waited"}
    assert tags(run_dir, "scalars") >= scalars
    assert {"step.time.histogram"} == tags(run_dir, "histograms")
    metrics, events = spooled(run_dir)
    assert metrics >= {f"{stat}.mean" for stat in STATS} | NUMBERS | {"step.time.p99", "step.time.histogram"}
    assert events >= EVENTS
    with np.load(run_dir / "checkpoint.npz") as checkpoint:
        assert checkpoint["step"] > 0
    table = {line.split()[0] for line in printed.splitlines() if line.strip()}
    assert table >= {*STATS, "counters", "events", "data.loading"}


def test_gradients_are_those_of_finite_differences() -> None:
    """Backpropagation agrees with finite differences of the loss, for every parameter."""
    rng = np.random.default_rng(0)
    model = CharModel("abcdef", rng, context=3, embedding=4, hidden=5, dtype=np.float64)
    contexts, targets = rng.integers(6, size=(7, 3)), rng.integers(6, size=7)
    _, gradients = model.loss_and_gradients(contexts, targets)
    nudge = 1e-6
    for name, parameter in model.parameters.items():
        slopes = np.zeros_like(parameter)
        for index in np.ndindex(parameter.shape):
            value = parameter[index]
            losses = []
            for parameter[index] in (value + nudge, value - nudge):
                losses.append(model.loss(contexts, targets))
            parameter[index] = value
            slopes[index] = (losses[0] - losses[1]) / (2 * nudge)
        np.testing.assert_allclose(gradients[name], slopes, rtol=1e-5, atol=1e-8, err_msg=name)


def train_for(steps: int, corpus: Corpus, seed: int) -> list[float]:
    """Return the losses of some steps."""
    rng = np.random.default_rng(seed)
    model = CharModel(corpus.vocabulary, rng, hidden=32)
    optimizer = Adam(model.parameters)
    losses = []
    for _ in range(steps):
        loss, gradients = model.loss_and_gradients(*draw_batch(corpus.train, model.context, 64, rng))
        optimizer.step(gradients)
        losses.append(loss)
    return losses


def test_the_model_learns(corpus: Corpus) -> None:
    """After a hundred steps the loss is far below that of a model of character frequencies."""
    losses = train_for(100, corpus, seed=0)
    assert losses[0] > corpus.unigram_entropy() > 2 * losses[-1]


def test_a_seed_gives_the_same_losses_again(corpus: Corpus) -> None:
    """Runs with one seed have the same losses; with another seed they differ."""
    assert train_for(5, corpus, seed=1) == train_for(5, corpus, seed=1) != train_for(5, corpus, seed=2)


def test_a_batch_holds_contexts_and_the_characters_that_follow_them() -> None:
    """The target is the character after its context, at every position of the text."""
    ids = np.arange(10)
    contexts, targets = draw_batch(ids, 3, 1000, np.random.default_rng(0))
    np.testing.assert_array_equal(contexts, targets[:, None] + [-3, -2, -1])
    assert set(targets) == set(range(3, 10))


def test_too_little_source_text_is_refused(tmp_path: Path) -> None:
    """The error names the folder and what was found in it."""
    (tmp_path / "tiny.py").write_text("pass\n")
    with pytest.raises(ValueError, match=r"some 20 files of 10 kB, got 1 files with 5 characters$"):
        Corpus.read(tmp_path)


def test_a_run_writes_tensorboard_files_the_spool_and_a_checkpoint(tmp_path: Path) -> None:
    """A run of two seconds ends by itself with everything written, and prints no progress bar into a pipe."""
    code, printed, errors = finish(start(tmp_path, "--seconds", "2", "--distributions", "both"))
    assert (code, "\r" in errors) == (0, False), errors
    assert_everything_is_written(tmp_path, printed)
    assert f"-m monitel_otlp replay {tmp_path}/spool --endpoint" in printed
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


@pytest.fixture
def collector() -> Iterator[tuple[str, set[str]]]:
    """Run a server that accepts everything; yield its endpoint and the requested paths."""
    paths: set[str] = set()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            paths.add(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


def test_for_a_backend_without_histograms(tmp_path: Path) -> None:
    """Without an argument only percentiles are exported."""
    code, _, errors = finish(start(tmp_path, "--seconds", "1"))
    assert code == 0, errors
    metrics, _ = spooled(tmp_path)
    assert {"step.time.p50", "step.time.p99"} <= metrics
    assert "step.time.histogram" not in metrics


def test_with_an_endpoint_it_is_sent(tmp_path: Path, collector: tuple[str, set[str]]) -> None:
    """If OTEL_EXPORTER_OTLP_ENDPOINT is set, metrics and logs arrive there."""
    endpoint, paths = collector
    code, printed, errors = finish(start(tmp_path, "--seconds", "1", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint))
    assert code == 0, errors
    assert paths == {"/v1/metrics", "/v1/logs"}
    assert f"sent to          {endpoint}" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "nan"), "argument --seconds: must be at least 0.1, got nan"),
        (("--seed", "-1"), "argument --seed: must be at least 0, got -1"),
        (("--run-dir", "/dev/null/run"), "argument --run-dir: cannot make /dev/null/run: Not a directory"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """The error of a wrong argument is one line with the value and the allowed values."""
    code, _, errors = finish(start(tmp_path, *arguments))
    assert (code, errors.splitlines()[-1]) == (2, f"train_char_model.py: error: {message}")
