"""The demo: its model learns, and its telemetry is there whichever way the run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EXAMPLES = Path(__file__).parents[1]
sys.path.insert(0, str(EXAMPLES))

from char_model import Adam, CharModel, Corpus, draw_batch
import numpy as np

STATS = {"loss", "gradient.norm", "step.time", "throughput"}
EVENTS = {"epoch", "validation", "checkpoint"}
SMALL = ("--epoch-steps", "20", "--batch-size", "64", "--hidden", "32")
TIMEOUT = 60


@pytest.fixture
def corpus(tmp_path):
    """Forty small files: the first and the 21st are for validation."""
    for number in range(40):
        (tmp_path / f"file{number:02}.py").write_text(f"for item in range({number}):\n    print(item)\n" * 200)
    return Corpus.read(tmp_path)


def start(run_dir, *arguments, **environment):
    """Start the demo with these flags and environment variables, without any OTel settings of the machine."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.Popen(
        [sys.executable, EXAMPLES / "train_char_model.py", "--run-dir", run_dir, *SMALL, *arguments],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Wait for the end of the demo: its exit code, what it printed, and its errors."""
    try:
        printed, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return process.returncode, printed, errors


def scalar_tags(run_dir):
    """The tags that TensorBoard finds."""
    accumulator = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return set(accumulator.Tags()["scalars"])


def spooled(run_dir):
    """The names of the metrics and of the log events in the spool."""
    lines = subprocess.run(
        [sys.executable, "-m", "monitel_otlp", "cat", run_dir / "spool"],
        stdout=subprocess.PIPE,
        timeout=TIMEOUT,
        check=True,
    ).stdout.splitlines()
    metrics, events = set(), set()
    for request in map(json.loads, lines):
        for resource in request.get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                metrics.update(metric["name"] for metric in scope["metrics"])
        for resource in request.get("resourceLogs", ()):
            for scope in resource["scopeLogs"]:
                events.update(record["eventName"] for record in scope["logRecords"])
    return metrics, events


def assert_everything_is_written(run_dir, printed):
    """Check TensorBoard's files, the spool, the checkpoint and the table."""
    tags = scalar_tags(run_dir)
    assert tags >= {"loss.mean{split=train}", "loss.mean{split=val}", "step.time.max", "validation/loss"}
    metrics, events = spooled(run_dir)
    assert metrics >= {f"{stat}.mean" for stat in STATS} | {"data.loading.time"}
    assert events >= EVENTS
    with np.load(run_dir / "checkpoint.npz") as checkpoint:
        assert checkpoint["step"] > 0
    table = {line.split()[0] for line in printed.splitlines() if line}
    assert table >= {*STATS, "events", "data.loading"}


def test_gradients_are_those_of_finite_differences():
    """Backpropagation agrees with the loss's own slope, in every parameter."""
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


def train_for(steps, corpus, seed):
    """The loss of each of so many steps."""
    rng = np.random.default_rng(seed)
    model = CharModel(corpus.vocabulary, rng, hidden=32)
    optimizer = Adam(model.parameters)
    losses = []
    for _ in range(steps):
        loss, gradients = model.loss_and_gradients(*draw_batch(corpus.train, model.context, 64, rng))
        optimizer.step(gradients)
        losses.append(loss)
    return losses


def test_the_model_learns(corpus):
    """A hundred steps get far below what the frequency of the characters alone would tell."""
    losses = train_for(100, corpus, seed=0)
    assert losses[0] > corpus.unigram_entropy() > 2 * losses[-1]


def test_a_seed_gives_the_same_losses_again(corpus):
    """Runs of one seed are the same, of another seed they are not."""
    assert train_for(5, corpus, seed=1) == train_for(5, corpus, seed=1) != train_for(5, corpus, seed=2)


def test_a_batch_holds_contexts_and_the_characters_that_follow_them():
    """The target is the character after its context, at every place of the text alike."""
    ids = np.arange(10)
    contexts, targets = draw_batch(ids, 3, 1000, np.random.default_rng(0))
    np.testing.assert_array_equal(contexts, targets[:, None] + [-3, -2, -1])
    assert set(targets) == set(range(3, 10))


def test_too_little_source_text_is_refused(tmp_path):
    """The error names the folder and what was found in it."""
    (tmp_path / "tiny.py").write_text("pass\n")
    with pytest.raises(ValueError, match=r"some 20 files of 10 kB, got 1 files with 5 characters$"):
        Corpus.read(tmp_path)


def test_a_run_writes_tensorboard_files_the_spool_and_a_checkpoint(tmp_path):
    """A run of two seconds ends by itself and leaves everything behind, without a progress bar in the pipe."""
    code, printed, errors = finish(start(tmp_path, "--seconds", "2"))
    assert (code, "\r" in errors) == (0, False), errors
    assert_everything_is_written(tmp_path, printed)
    assert f"-m monitel_otlp replay {tmp_path}/spool --endpoint" in printed
    assert f"tensorboard --logdir {tmp_path}" in printed


def test_ctrl_c_ends_a_run_with_everything_written(tmp_path):
    """SIGINT in mid-run ends it soon after, with exit code 130 and the same files as at a normal end."""
    process = start(tmp_path, "--seconds", "600")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "nan"), "argument --seconds: must be at least 0.1, got nan"),
        (("--seed", "-1"), "argument --seed: must be at least 0, got -1"),
        (("--run-dir", "/dev/null/run"), "argument --run-dir: cannot make /dev/null/run: Not a directory"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path, arguments, message):
    """What was given and what is allowed, in one line."""
    code, _, errors = finish(start(tmp_path, *arguments))
    assert (code, errors.splitlines()[-1]) == (2, f"train_char_model.py: error: {message}")
