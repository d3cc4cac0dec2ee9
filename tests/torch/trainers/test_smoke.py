"""One training by each trainer: its numbers, its work, its configuration and its end arrive at a backend."""

from importlib import import_module

import pytest
from tests.support.receiver import Receiver
from tests.torch.trainers.small_jobs import COUNTING, ROWS, STEPS, TOKENS, TRAINERS, Truth

import monitel_otlp

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", TRAINERS)
def test_training_arrives(name: str, receiver: Receiver) -> None:
    """Each loss with its step; steps, samples and tokens; the configuration without secrets; and that it completed."""
    import_module(name)
    truth = Truth()
    with monitel_otlp.configure(endpoint=receiver.url, spool_dir="spool", export_interval=3600.0):
        TRAINERS[name](truth)
    loss = "train_loss" if name == "lightning" else "train.loss"
    logged = {
        record.attributes["training.step"]: record.body[loss]
        for record in receiver.records("run.log")
        if loss in record.body
    }
    assert {step: pytest.approx(value, rel=1e-3) for step, value in truth.losses.items()} == logged
    assert STEPS == len(logged)
    assert 2 * ROWS == truth.samples
    names = ("training.step", "training.steps", "training.samples", "training.tokens")
    found = {each: receiver.values(each)[-1] for each in names if receiver.values(each)}
    work = {"training.steps": STEPS, "training.samples": 2 * ROWS, "training.tokens": 2 * ROWS * TOKENS}
    assert {"training.step": STEPS, **(work if name in COUNTING else {})} == found
    (config,) = receiver.records("run.config")
    values = config.body["args"] if name == "transformers" else config.body
    assert 0.1 == values["learning_rate" if name == "transformers" else "lr"]
    assert "***" == values["api_key" if name == "lightning" else "hub_token"]
    assert not [request for request in receiver.requests if b"hidden" in request.body]
    (ended,) = receiver.records("run.ended")
    assert ("completed", STEPS) == (ended.attributes["run.status"], ended.attributes["run.step"])
    saved = [record.attributes["training.step"] for record in receiver.records("checkpoint.saved")]
    assert [5, 10] == saved
