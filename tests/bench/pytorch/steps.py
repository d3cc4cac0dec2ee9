"""Cost of a whole step of an instrumented job above a bare one, with a pipeline whose record is open."""

import tempfile
from collections.abc import Iterator
from itertools import count
from statistics import median
from time import thread_time
from typing import Any

import torch
from race import Contender, race, timed
from row import Row

import monitel
import monitel.torch
import monitel_otlp

_CALLS = 1000  # long rounds: a class whose method was just replaced is slow for a while
_STEP_NS = 95.5e3  # half of version 0.2's, which took 191 us beside it
_BARE = "next(batches); backward(retain_graph=True); optimize()"
_STEP = """
    set_step(next(steps))
    with activity("data"), loading.guard(): next(batches)
    backward(retain_graph=True)
    optimize()
    log({"loss": 0.25})
    log({"accuracy": 0.9})
    emit("epoch", epoch=3, phase="train")
    with activity("checkpoint.save"), saving.guard(): pass
    emit("checkpoint.written", path="/checkpoints/17", bytes=12_345)
"""


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    def step(self, closure: Any = None) -> None: ...


class Numbers(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return count()


def main() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    names = {
        "batches": iter(torch.utils.data.DataLoader(Numbers(), batch_size=None)),
        "backward": weight.sum().backward,
        "optimize": Optimizer([weight], {}).step,
        "loading": monitel.WaitCounter("loading"),
        "saving": monitel.WaitCounter("saving"),
        "steps": count(1),
        **{each: getattr(monitel, each) for each in ("set_step", "activity", "log", "emit")},
    }
    with tempfile.TemporaryDirectory() as folder, monitel_otlp.configure(spool_dir=folder) as pipeline:

        def running(code: str, *, instrumented: bool) -> Contender:
            def prepare() -> dict[str, Any]:
                pipeline.force_flush()
                running = monitel.torch.instrument()
                if not instrumented:
                    running.uninstrument()
                return names

            return timed(f"for _ in range({_CALLS}): {code}", prepare, _CALLS, clock=thread_time)

        costs = race({"monitel": running(_STEP, instrumented=True), "bare": running(_BARE, instrumented=False)})
    above = [mine - bare for mine, bare in zip(costs["monitel"], costs["bare"], strict=True)]
    Row("torch: a whole step, record open, above a bare one", median(above), most=_STEP_NS).put()


if __name__ == "__main__":
    main()
