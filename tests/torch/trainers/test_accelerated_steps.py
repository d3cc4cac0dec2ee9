"""Steps of ``monitel.torch.instrument()`` with accelerate's optimizer. The truth is whether parameters changed."""

from __future__ import annotations

from importlib.util import find_spec
from math import inf, nan
from typing import Any

import pytest

import monitel

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("accelerate") is None, reason="pip install accelerate"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("fused", [False, True], ids=["", "fused"])
def test_skipped_steps_of_accelerate(fused: bool) -> None:
    """Each attempt advances the step; a micro-batch of gradient accumulation does not.

    ``step_was_skipped`` is the truth only without fused optimizers.
    """
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    Accelerator(cpu=True)
    parameter = torch.nn.Parameter(torch.ones(2))
    scaler = torch.amp.GradScaler("cpu")
    optimizer = AcceleratedOptimizer(torch.optim.AdamW([parameter], lr=0.1, fused=fused), scaler=scaler)
    gradients = (inf, 1.0, nan, -inf, 2.0, 0.5, 1.0, inf)
    applied = skipped = 0
    with monitel.torch.instrument():
        for number, gradient in enumerate(gradients, 1):
            for syncs in (False, True):
                optimizer.gradient_state._set_sync_gradients(syncs)
                parameter.grad = scaler.scale(torch.full((2,), gradient))
                before = parameter.detach().clone()
                optimizer.step()
                applied += not torch.equal(before, parameter.detach())
                assert number - 1 + syncs == (monitel.get_step() or 0)
            skipped += optimizer.step_was_skipped
    found = {reading.counter.name: reading.total for reading in monitel.counters()}
    counted = found["training.steps"], found["training.steps.skipped"]
    assert (applied, len(gradients) - applied) == counted == (4, 4)
    assert skipped == (0 if fused else 4)
