"""monitel.torch without what Windows or macOS do not have. torch itself is the one that was built for this platform."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from tests.nightly.platforms.conftest import RunOn

pytestmark = pytest.mark.torch

_STEPS = 8
#: Imported before anything is taken away; monitel itself afterwards.
_IMPORTED = "torch torch.utils.data torch._dynamo"

_TRAIN = f"""
import json, sys
from datetime import datetime
assert not [name for name in sys.modules if name.split(".")[0] == "monitel"]
import monitel
import monitel.torch
import torch
from monitel.profiler import ranges

assert sys.platform in {{"win32", "darwin"}}
events, ended = [], []
monitel.register_event_handler(events.append)
ranges.listen(ended=lambda each: ended.append(each.name))
monitel.torch.instrument(samples_per_step=8, stuck_after=60.0)
loss_stat = monitel.Stat("loss", [monitel.COUNT, monitel.VALUE], 3600.0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.utils.data.TensorDataset(torch.randn({_STEPS} * 8, 4), torch.randn({_STEPS} * 8, 2))
for inputs, targets in torch.utils.data.DataLoader(samples, batch_size=8):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    loss_stat.add(loss.detach())
torch.save(model.state_dict(), "model.pt")
torch.load("model.pt", weights_only=True)
torch.monitor.log_event(torch.monitor.Event("of.torch", datetime.now(), {{"number": 1.0}}))
monitel.flush()
windows = {{key for event in events if event.window is not None for key in event.data}}
print(json.dumps({{
    "step": monitel.get_step(),
    "samples": [each.total for each in monitel.counters() if each.counter.name == "training.samples"],
    "loss": [event.data["loss.count"] for event in events if "loss.count" in event.data],
    "windows": sorted(name for name in windows if name.endswith(("duration.mean", "loss.value"))),
    "names": sorted({{event.name for event in events if event.window is None}}),
    "activities": sorted(name for name, time_ns in monitel.ledger().activities.items() if time_ns),
    "ranges": sorted(set(ended)),
}}))
"""
_DONE: dict[str, object] = {
    "step": _STEPS,
    "samples": [_STEPS * 8],
    "loss": [_STEPS],
    "windows": ["loss.value", "training.stage.duration.mean", "training.step.duration.mean"],
    "names": ["checkpoint.loaded", "checkpoint.saved", "of.torch", "run.log"],
    "activities": ["checkpoint.load", "checkpoint.save", "data", "startup", "step"],
    "ranges": [f"training.{name}" for name in ("backward", "data", "forward", "optimizer", "step")],
}


@pytest.mark.parametrize("twin", ["c", "py"])
def test_training_is_instrumented(run_on: RunOn, platform: str, twin: str) -> None:
    """A loop with a DataLoader, an optimizer and a checkpoint has its steps, stages, events and activities."""
    environment = {"MONITEL_TEST_IMPORTED": _IMPORTED} | ({"MONITEL_NO_EXTENSIONS": "1"} if twin == "py" else {})
    finished = run_on(platform, "-W", "default", "-c", _TRAIN, env=environment)
    assert _DONE == json.loads(finished.stdout)
    assert "" == finished.stderr
