"""A job of four ranks that runs kinds of jobs one after the other, each with one rank that is late at one place.

The arguments are a folder, and the cases as ``KIND:PLACE``. Each rank writes ``FOLDER/<rank>.json``: for each kind its
group, whether the gradients were those of a job that is not instrumented, and the typical duration of each stage.
"""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from tests.torch.ranks.kinds_of_jobs import KINDS, group_of
from tests.torch.ranks.late_model import PLACES, Pauses
from tests.torch.ranks.ranks import join
from torch import distributed
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

import monitel
import monitel.testing
import monitel.torch

WARM_UP, STEPS = 2, 6  # of each case
COMPARED = 3  # steps
_STAT = "training.stage.duration"


def victim(kind: str, place: str) -> int:
    """Return the rank that is late in a case: each one in turn."""
    return (list(KINDS).index(kind) + list(PLACES).index(place)) % 4


def gradients(kind: str, within: AbstractContextManager[Any]) -> list[list[float]]:
    """Return all gradients with which a job without pauses calls its optimizers."""
    found: list[list[float]] = []

    def note(optimizer: Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for gradient in (each.grad for each in group["params"] if each.grad is not None):
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                found.append(local.flatten().tolist())

    torch.manual_seed(2)
    hook = register_optimizer_step_pre_hook(note)
    with within:
        step = KINDS[kind](Pauses(0))
        for _ in range(COMPARED):
            step()
    hook.remove()
    return found


def durations(kind: str, place: str, rank: int) -> dict[str, float]:
    """Return the typical duration of each stage of a step while a rank is late at a place."""
    with monitel.testing.capture_events() as events, instrumented(kind, rank):
        pauses = Pauses()
        step = KINDS[kind](pauses)
        for pauses.place in ("", place):
            pauses.victim = victim(kind, place)
            for _ in range(WARM_UP):
                step()
        monitel.flush()
        events.clear()
        for _ in range(STEPS):
            step()
        monitel.flush()
    stages: dict[str, list[float]] = {}
    for each in (each.window for each in events if each.window and each.window.name == _STAT):
        assert 1 == each.count, "a window for each cycle"
        stages.setdefault(str(each.attributes["training.stage"]), []).append(each.mean)
    assert not stages or {STEPS} == {*map(len, stages.values())}, stages
    return {stage: _typical(values) for stage, values in stages.items()}


def _typical(values: list[float]) -> float:
    """Return the median of pairs of steps, because ranks may wait for each other in every second step only."""
    return median(map(fmean, zip(values[::2], values[1::2], strict=True)))


def instrumented(kind: str, rank: int) -> AbstractContextManager[Any]:
    return monitel.torch.instrument(window_size=0.001, rank_group=group_of(kind, rank))


def main() -> None:
    folder, cases = Path(sys.argv[1]), dict(each.split(":") for each in sys.argv[2:])
    torch.set_num_threads(1)
    rank = join(folder)
    found: dict[str, Any] = {}
    for kind, place in cases.items():
        expected = gradients(kind, nullcontext())
        found[kind] = {
            "group": group_of(kind, rank),
            "same": bool(expected) and expected == gradients(kind, instrumented(kind, rank)),
            "stages": durations(kind, place, rank),
        }
        torch._dynamo.reset()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
