"""The ledger of a training by transformers: evaluations and checkpoints, beside a measurement of its methods."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import monitel

pytest.importorskip("transformers")

import torch
from tests.torch.trainers.stopwatch import Stopwatch, checkpoints
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from monitel.integrations.transformers import MonitelCallback

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """Measure evaluations and checkpoints of the Trainer."""
    found = Stopwatch(monkeypatch)
    found.measure("evaluation", Trainer, "evaluate", "predict")
    found.measure("checkpoint.save", Trainer, "_save_checkpoint", "save_model")
    found.measure("checkpoint.load", Trainer, "_load_from_checkpoint", "_load_optimizer_and_scheduler")
    found.measure("checkpoint.load", Trainer, "_load_scaler", "_load_rng_state", "_load_best_model")
    return found


class Slow(TrainerCallback):  # type: ignore[misc]
    """Waits 50 ms in each batch of an evaluation."""

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Wait."""
        Event().wait(0.05)


class Tiny(torch.nn.Module):  # type: ignore[misc]
    """A model with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a loss."""
        found = self.layer(rows)
        return {"loss": (found - labels).square().mean(), "logits": found}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state, after 50 ms: each checkpoint calls it."""
        Event().wait(0.05)
        return super().state_dict(*args, **kwargs)


def rows(number: int) -> list[dict[str, torch.Tensor]]:
    """Return rows of data."""
    return [{"rows": torch.ones(1), "labels": torch.zeros(1)} for _ in range(number)]


def create(*callbacks: TrainerCallback, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    """Return a Trainer with these callbacks that evaluates and saves at every fourth step."""
    usual: dict[str, Any] = {
        "max_steps": 8,
        **dict.fromkeys(("eval_strategy", "save_strategy"), "steps"),
        **dict.fromkeys(("eval_steps", "save_steps", "per_device_eval_batch_size"), 4),
    }
    usual |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments("out", **{**usual, **options})
    trainer = kind(Tiny(), arguments, train_dataset=rows(40), eval_dataset=rows(8), callbacks=[*callbacks])
    trainer.remove_callback(PrinterCallback)
    return trainer


def size(folder: str) -> int:
    """Return the bytes of the files in a folder, without those in its folders."""
    return sum(each.stat().st_size for each in Path(folder).iterdir() if each.is_file())


@pytest.mark.parametrize("instrumented", [False, True])
def test_each_activity_is_measured(stopwatch: Stopwatch, events: list[monitel.Event], *, instrumented: bool) -> None:
    """A training, its resumption at a lower step, and single calls; each checkpoint has one event, in whole."""
    steps: list[int | None] = []

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            steps.append(monitel.get_step())

    with ExitStack() as stack:
        if instrumented:
            from monitel.torch import instrument

            stack.enter_context(instrument(failures=False, compilation=False))
        trainer = create(MonitelCallback(), Slow(), gradient_accumulation_steps=2)
        trainer.train()
        trainer.save_model()
        resumed = create(MonitelCallback(), Slow(), Steps(), load_best_model_at_end=True, save_steps=8, eval_steps=8)
        resumed.train(resume_from_checkpoint="out/checkpoint-4")
        resumed.evaluate()
        resumed.predict(rows(4))
    found = stopwatch.check()
    assert found["evaluation"] >= (2 + 2 + 2 + 2 + 1) * 0.05
    assert found["checkpoint.save"] >= 4 * 0.05
    assert found["checkpoint.load"] > 0
    assert instrumented == ("data" in found)
    assert [4, 5, 6, 7] == steps
    sizes = [size(f"out/{name}") for name in ("checkpoint-4", "checkpoint-8", ".")]
    assert [
        ("saved", 4, "checkpoint-4", sizes[0]),
        ("saved", 8, "checkpoint-8"),
        ("saved", 8, "out", sizes[2]),
        ("loaded", 4, "checkpoint-4", sizes[0]),
        ("saved", 8, "checkpoint-8", sizes[1]),
        ("loaded", 8, "checkpoint-8", sizes[1]),
    ] == [each[:3] if number == 1 else each for number, each in enumerate(checkpoints(events))]  # 1: was replaced
    seconds = [float(event.data["checkpoint.duration"]) for event in events if event.name == "checkpoint.saved"]
    assert pytest.approx(stopwatch.seconds["checkpoint.save"], abs=0.15) == sum(seconds)


class Failing(TrainerCallback):  # type: ignore[misc]
    """Raises in an evaluation."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("no more"), KeyboardInterrupt()])
def test_evaluation_that_raises_ends(error: BaseException) -> None:
    """The evaluation ends, and the exception is raised unchanged."""
    trainer = create(MonitelCallback(), Failing(error))
    for call in (trainer.train, trainer.evaluate, lambda: trainer.predict(rows(4))):
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error
        book = monitel.ledger()
        assert book is not None
        assert book.activities["evaluation"] > 0
        assert "step" == book.current


class Replaced(Trainer):  # type: ignore[misc]
    """A Trainer whose methods do without those of the base class."""

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Wait, and return numbers."""
        Event().wait(0.05)
        return {"eval_loss": 0.0}

    def _save_optimizer_and_scheduler(self, _folder: str) -> None:
        raise OSError("no space")


def test_subclass(events: list[monitel.Event]) -> None:
    """A training's evaluation counts even if a subclass replaces it; a save that fails is an event."""
    trainer = create(MonitelCallback(), kind=Replaced)
    with pytest.raises(OSError, match="no space"):
        trainer.train()
    book = monitel.ledger()
    assert book is not None
    assert 0.05e9 <= book.activities["evaluation"]
    assert [("failed", 4, "checkpoint-4", None)] == checkpoints(events)
    trainer.save_model("later")
    assert [("saved", 4, "later", size("later"))] == checkpoints(events)[1:]


def test_load_that_fails_is_not_that_of_the_next_training(events: list[monitel.Event]) -> None:
    """The next training starts without a checkpoint, and no event says otherwise."""
    create(MonitelCallback(), max_steps=4).train()
    trainer = create(MonitelCallback(), eval_strategy="no", save_strategy="no")
    Path("out/checkpoint-4/optimizer.pt").write_bytes(b"broken")
    with pytest.raises(Exception, match=r".+"):
        trainer.train(resume_from_checkpoint="out/checkpoint-4")
    trainer.train()
    assert ["saved"] == [name for name, *_ in checkpoints(events)]
    assert 8 == monitel.get_step()


def test_trainer_without_the_adapter_is_not_observed(events: list[monitel.Event]) -> None:
    """Another Trainer of the process has no activities."""
    create(MonitelCallback(), eval_strategy="no", save_strategy="no").train()
    other = create()
    other.train()
    other.evaluate()
    book = monitel.ledger()
    assert book is not None
    assert not {"evaluation", "checkpoint.save"} & book.activities.keys()
    assert [] == checkpoints(events)
