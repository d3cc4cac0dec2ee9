"""The callback for the Trainer: what a backend receives, beside the Trainer's log and the batches of the collator."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripts import CONFIGURE, READY, write_script
from tests.torch.trainers.arrivals import status

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers accelerate"),
]

#: A Trainer with a tiny model. ``found`` has the true numbers of this process.
TRAINER = (
    CONFIGURE
    + """\
import json, threading
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
)
from monitel.integrations.transformers import MonitelCallback

found = {"samples": 0, "tokens": 0, "logs": []}

def collate(items):
    ids = pad_sequence([each["input_ids"] for each in items], batch_first=True)
    if items[0]["split"] == "train":
        found["samples"] += len(items)
        found["tokens"] += ids.numel()
    return {"labels": torch.tensor([each["labels"] for each in items]), "input_ids": ids}

class Report(TrainerCallback):
    def on_log(self, args, state, control, logs, **_):
        found["logs"].append([state.global_step, dict(logs)])

def items(number, split="test"):
    return [
        {"input_ids": torch.arange(3 + each % 5) % 8, "labels": each % 2, "split": split} for each in range(number)
    ]

def create(*callbacks, model=BertForSequenceClassification, **arguments):
    config = BertConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
    usual = dict(
        per_device_train_batch_size=4, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, remove_unused_columns=False,
    )
    trainer = Trainer(
        model(config), TrainingArguments("out", **{**usual, **arguments}), data_collator=collate,
        train_dataset=items(22, "train"), eval_dataset=items(5), callbacks=[MonitelCallback(), Report(), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer

def save(name="found"):
    with open(f"{name}.json", "w") as file:
        json.dump(found, file)

"""
)


def truth(folder: Path, name: str = "found") -> dict[str, Any]:
    """Return the numbers that a script has saved."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


def numbers(receiver: Receiver) -> list[tuple[int, dict[str, float]]]:
    """Return the step and the numbers of each call of monitel.log, without the rates of ``instrument()``."""
    records = [each for each in receiver.records("run.log") if "training.samples.rate" not in each.body]
    return [(each.attributes["training.step"], each.body) for each in records]


def expected(logs: list[tuple[int, dict[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    """Return the numbers of the Trainer's log by the names that they have in monitel."""
    names = {"eval_": "eval.", "test_": "test."}
    return [
        (
            step,
            {
                names.get(name[:5], "train.") + (name[5:] if name[:5] in names else name): value
                for name, value in each.items()
            },
        )
        for step, each in logs
    ]


def totals(receiver: Receiver, rank: int | None = None) -> dict[str, float]:
    """Return the last values of the counters and of the step, of one rank."""
    names = ("training.step", "training.steps", "training.samples", "training.tokens")
    points = {
        name: [each for each in receiver.points(name) if each.resource.get("training.rank") == rank] for name in names
    }
    return {name: found[-1].value for name, found in points.items() if found}


ALONE = """
class Slow(TrainerCallback):
    def on_train_begin(self, *_, **__):
        found["begin"] = time.time_ns()

    def on_step_end(self, *_, **__):
        threading.Event().wait(0.05)

    def on_train_end(self, *_, **__):
        found["end"] = time.time_ns()
        pipeline.force_flush()
        found["flushed"] = time.time_ns()

trainer = create(
    Slow(), num_train_epochs=10, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=7,
    hub_token="a private value", gradient_checkpointing=True,
)
trainer.train()
trainer.evaluate()
found["logs"] = [[each.pop("step"), each] for each in trainer.state.log_history]
found["logs"].append([trainer.state.global_step, trainer.predict(items(3)).metrics])
save()
"""


def test_numbers_configuration_and_work(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Everything arrives, once, and nothing else: with evaluation, accumulated gradients, and incomplete batches."""
    run(write_script(tmp_path, TRAINER + ALONE), receiver.url)
    found = truth(tmp_path)

    logs = expected(found["logs"])
    assert logs == numbers(receiver)
    assert [each["train.loss"] for _, each in logs if "train.loss" in each] == receiver.values("train.loss")
    assert [each["eval.loss"] for _, each in logs if "eval.loss" in each] == receiver.values("eval.loss")
    assert {"eval.loss", "test.loss", "train.train_runtime"} <= {name for _, each in logs for name in each}

    (config,) = receiver.records("run.config")
    assert (4, 5e-5) == tuple(
        config.body["training"][name] for name in ("per_device_train_batch_size", "learning_rate")
    )
    assert ("bert", 0) == tuple(config.body["model"][name] for name in ("model_type", "pad_token_id"))
    assert "***" == config.body["training"]["hub_token"]
    assert not [request for request in receiver.requests if b"a private value" in request.body]

    assert (220, 30) == (found["samples"], logs[-1][0])
    work = {"training.steps": 30, "training.samples": 220, "training.tokens": found["tokens"], "training.step": 30}
    assert work == totals(receiver)
    assert ["completed"] == status(receiver)

    last = next(each for each in receiver.points("training.samples") if each.value == 220)
    rate = 220 / (last.time_ns - last.start_ns)
    assert 0.98 * 220 / (found["flushed"] - found["begin"]) <= rate <= 1.02 * 220 / (found["end"] - found["begin"])


RANKS = """
import monitel.torch
monitel.torch.instrument()
trainer = create(num_train_epochs=2, save_strategy="steps", save_steps=3)
trainer.train()
save(os.environ["RANK"])
"""


def test_two_ranks(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Each rank counts its work, ``instrument()`` beside it counts no step twice, and rank 0 logs for the job.

    A checkpoint is one event, although both ranks write files of it.
    """
    script = write_script(tmp_path, TRAINER + RANKS)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run(*launcher, script, receiver.url)
    for rank in (0, 1):
        found = truth(tmp_path, str(rank))
        work = {"training.samples": found["samples"], "training.tokens": found["tokens"]}
        assert {"training.steps": 6, "training.step": 6, **work} == totals(receiver, rank)
    assert expected(truth(tmp_path, "0")["logs"]) == numbers(receiver)
    assert {0} == {point.resource["training.rank"] for point in receiver.points("train.loss")}
    assert [0] == [record.resource["training.rank"] for record in receiver.records("run.config")]
    saved = receiver.records("checkpoint.saved")
    assert [(0, 3), (0, 6)] == [(each.resource["training.rank"], each.attributes["training.step"]) for each in saved]
    assert len(list((tmp_path / "out" / "checkpoint-3").glob("rng_state_*.pth"))) == 2
    assert ["completed"] * 2 == status(receiver)


RESUMED = """
trainer = create(max_steps=int(sys.argv[2]), save_strategy="steps", save_steps=4)
trainer.train(resume_from_checkpoint=os.path.isdir("out/checkpoint-4"))
save()
"""


def test_resumed_run(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """The steps of a resumed run go on, and its counters count its own work."""
    script = write_script(tmp_path, TRAINER + RESUMED)
    run(script, receiver.url, 4)
    assert 4 == totals(receiver)["training.step"]
    before = len(receiver.records("run.log"))
    run(script, receiver.url, 9)
    found = truth(tmp_path)
    assert expected(found["logs"]) == numbers(receiver)[before:]
    assert [5, 6, 7, 8, 9, 9] == [step for step, _ in numbers(receiver)[before:]]
    work = {"training.steps": 5, "training.samples": 4 + 2 + 4 + 4 + 4, "training.step": 9}
    assert work.items() <= totals(receiver).items()
    assert [4, 9] == [record.attributes["run.step"] for record in receiver.records("run.ended")]


FAILING = """
class Failing(BertForSequenceClassification):
    def forward(self, *arguments, **options):
        if trainer.state.global_step == 4:
            raise RuntimeError("out of luck")
        return super().forward(*arguments, **options)

trainer = create(model=Failing)
trainer.train()
"""


def test_exception_in_training(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """The run has failed; the numbers before the exception arrive, and the batch that failed does not count."""
    ended = run(write_script(tmp_path, TRAINER + FAILING), receiver.url, returncode=1)
    assert "out of luck" in ended.stderr
    assert [1, 2, 3, 4] == [step for step, _ in numbers(receiver)]
    assert {"training.steps": 4, "training.samples": 16, "training.step": 4}.items() <= totals(receiver).items()
    assert ["failed"] == status(receiver)


PREEMPTED = f"""
class Ready(TrainerCallback):
    def on_log(self, args, state, control, **_):
        save()
        if state.global_step == 5:
            {READY.strip()}
            threading.Event().wait(60)

trainer = create(Ready())
trainer.train()
"""


def test_preemption(receiver: Receiver, terminate: Terminate, tmp_path: Path) -> None:
    """After SIGTERM the run is preempted, and everything before it arrives."""
    terminate(TRAINER + PREEMPTED, receiver.url)
    assert expected(truth(tmp_path)["logs"]) == numbers(receiver)
    work = {"training.steps": 5, "training.samples": 20, "training.step": 5}
    assert work.items() <= totals(receiver).items()
    assert ["preempted"] == status(receiver)


COMPILED = """
import torch._dynamo.utils

def fail(event):
    raise ValueError("this handler fails")

monitel.register_event_handler(fail)
trainer = create(
    num_train_epochs=2, gradient_accumulation_steps=2, torch_compile=True, torch_compile_backend="eager",
)
trainer.train()
found["graph breaks"] = dict(torch._dynamo.utils.counters["graph_break"])
save()
"""


def test_compiled_model_and_failing_handler(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Work is counted without a graph break, and an exception of another handler is logged once, not raised."""
    ended = run(write_script(tmp_path, TRAINER + COMPILED), receiver.url)
    found = truth(tmp_path)
    assert {} == found["graph breaks"]
    assert 44 == found["samples"]
    work = {"training.steps": 6, "training.samples": 44, "training.tokens": found["tokens"], "training.step": 6}
    assert work == totals(receiver)
    assert expected(found["logs"]) == numbers(receiver)
    assert 1 == ended.stderr.count("MonitelCallback.on_log() failed (further failures are not logged)")


SKIPPED = """
from types import SimpleNamespace
from accelerate import Accelerator

accelerator = Accelerator()
accelerator.scaler = torch.amp.GradScaler("cpu")
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = accelerator.prepare(torch.optim.SGD([parameter]))
callback = MonitelCallback()
for step, factor in enumerate((1.0, float("inf"), 1.0, float("nan"), 1.0), start=1):
    before = parameter.item()
    accelerator.scaler.scale((parameter * factor).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    found["samples"] += parameter.item() != before
    callback.on_step_end(None, SimpleNamespace(global_step=step), None, optimizer=optimizer)
save()
"""


def test_skipped_steps(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """A step that gradient scaling skips is an attempt, so the process's step advances, but no training step."""
    run(write_script(tmp_path, TRAINER + SKIPPED), receiver.url)
    assert 3 == truth(tmp_path)["samples"]
    assert {"training.steps": 3, "training.step": 5}.items() <= totals(receiver).items()
    assert 2 == receiver.values("training.steps.skipped")[-1]


PLAIN = """
from argparse import Namespace

class Settings:
    def to_dict(self):
        return {"rank": 4, "revision_token": "hidden", "base": Namespace(api_key="hidden")}

class Plain(torch.nn.Module):
    num_parameters = 7
    peft_config = {"default": Settings()}

    def __init__(self, config):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, rows, **_):
        return {"loss": self.layer(rows.to_padded_tensor(0.0)).mean()}

class Twice(Trainer):
    def compute_loss(self, model, inputs, *arguments, **options):
        with torch.no_grad():
            model(**inputs)
        return super().compute_loss(model, inputs, *arguments, **options)

def collate(items):
    found["samples"] += len(items)
    return {"rows": torch.nested.nested_tensor([torch.ones(1 + each % 3, 1) for each in range(len(items))])}

trainer = create(model=Plain, num_train_epochs=2)
trainer.__class__ = Twice
trainer.train()
save()
"""


def test_plain_module(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Nested tensors, a call without gradients, which does not count, and attributes of other types than usual."""
    run(write_script(tmp_path, TRAINER + PLAIN), receiver.url)
    assert 44 == truth(tmp_path)["samples"]
    assert {"training.steps": 12, "training.samples": 44, "training.step": 12} == totals(receiver)
    (config,) = receiver.records("run.config")
    adapter = {"rank": 4, "revision_token": "***", "base": "Namespace(api_key='***')"}
    assert {"default": adapter} == config.body["peft"]
    assert 4 == config.body["training"]["per_device_train_batch_size"]
    assert not [request for request in receiver.requests if b"hidden" in request.body]


THREADS = """
import sys

sys.setswitchinterval(1e-6)
trainer = create()
model, callback = trainer.model.train(), MonitelCallback()
ids = torch.ones(3, 4, dtype=torch.long)
callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=model)

def add():
    for _ in range(5000):
        callback._add_batch(model, (), {"input_ids": ids})

threads = [threading.Thread(target=add) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
callback.on_step_end(trainer.args, trainer.state, trainer.control)
"""


def test_threads_lose_no_batch(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """DataParallel calls a model in a thread per device."""
    run(write_script(tmp_path, TRAINER + THREADS), receiver.url)
    assert {"training.samples": 4 * 5000 * 3, "training.tokens": 4 * 5000 * 12}.items() <= totals(receiver).items()
