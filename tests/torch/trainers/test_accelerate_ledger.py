"""The ledger of a training with accelerate: its checkpoints, beside a measurement of the Accelerator's methods."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

import monitel

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from tests.torch.trainers.stopwatch import Stopwatch, checkpoints

from monitel.integrations.accelerate import MonitelTracker

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """Measure checkpoints of accelerate."""
    found = Stopwatch(monkeypatch)
    found.measure("checkpoint.save", Accelerator, "save_state", "save_model")
    found.measure("checkpoint.load", Accelerator, "load_state")
    return found


def prepare(*trackers: MonitelTracker, **options: Any) -> tuple[Accelerator, torch.nn.Module]:
    """Return an Accelerator with these trackers, and its model."""
    accelerator = Accelerator(cpu=True, log_with=[*trackers], **options)
    model, _ = accelerator.prepare(layer := torch.nn.Linear(4, 1), torch.optim.AdamW(layer.parameters()))
    return accelerator, model


def wait(*_arguments: object) -> None:
    """Wait 50 ms."""
    Event().wait(0.05)


def size(folder: str) -> int:
    """Return the bytes of the files in a folder."""
    return sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())


def test_checkpoints(stopwatch: Stopwatch, events: list[monitel.Event]) -> None:
    """Each has one event with its folder, even if accelerate names it; before and after ``init_trackers()``."""
    from monitel.torch import instrument

    with instrument(failures=False, compilation=False):
        accelerator, model = prepare(MonitelTracker())
        accelerator.register_save_state_pre_hook(wait)
        accelerator.register_load_state_pre_hook(wait)
        accelerator.save_state("first")
        accelerator.load_state("first")
        monitel.set_step(3)
        accelerator.init_trackers("project")
        accelerator.save_model(model, "model")
        naming = ProjectConfiguration(project_dir="named", automatic_checkpoint_naming=True)
        named, _ = prepare(MonitelTracker(), project_config=naming)
        named.save_state()
        named.load_state()
    found = stopwatch.check()
    assert found["checkpoint.save"] >= 0.05 <= found["checkpoint.load"]
    assert [
        ("saved", None, "first", size("first")),
        ("loaded", None, "first", size("first")),
        ("saved", 3, "model", size("model")),
        ("saved", 3, "checkpoint_0", size("named/checkpoints/checkpoint_0")),
        ("loaded", 3, "checkpoint_0", size("named/checkpoints/checkpoint_0")),
    ] == checkpoints(events)
    assert "evaluation" not in found


def test_failures(events: list[monitel.Event]) -> None:
    """Exceptions are those of accelerate and of the program's hooks, and the next checkpoint has its event."""
    accelerator, _ = prepare(MonitelTracker())
    error = OSError("no space")

    def fail(*_arguments: object) -> None:
        raise error

    with pytest.raises(ValueError, match="missing"):
        accelerator.load_state("missing")
    hook = accelerator.register_save_state_pre_hook(fail)
    with pytest.raises(OSError, match="no space") as raised:
        accelerator.save_state("full")
    assert raised.value is error
    hook.remove()
    accelerator.save_state("next")
    assert ["failed", "saved"] == [name for name, *_ in checkpoints(events)]
    assert [] == [*accelerator._save_model_state_pre_hook, *accelerator._load_model_state_pre_hook]


def test_accelerator_without_the_tracker_is_not_observed(events: list[monitel.Event]) -> None:
    """Another Accelerator of the process has no activities."""
    prepare(MonitelTracker())
    prepare()[0].save_state("other")
    book = monitel.ledger()
    assert book is not None
    assert "checkpoint.save" not in book.activities
    assert [] == checkpoints(events)
