"""A job of two ranks that waits in every way. Rank 0 writes ``FOLDER/waits.json``: sync and the truth of each wait."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch
from tests.support.producers import run_together
from tests.torch.ranks.ranks import join
from tests.torch.ranks.waits import waits
from torch import distributed

import monitel
import monitel.testing
import monitel.torch

LATE = 0.150
_never = Event()


class Loop:
    def __init__(self) -> None:
        self._model = torch.nn.Linear(2, 1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def step(self, rest: Callable[[], object] = lambda: None) -> None:
        self._model(torch.ones(2)).sum().backward()
        self._optimizer.step()
        rest()

    def sync(self, rest: Callable[[], object]) -> float:
        """Return how long ``sync`` was in the cycle in which a function was called."""
        with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=3600.0):
            self.step(rest)
            self.step()
        windows = [each.window for each in events if each.window and each.window.name == "training.stage.duration"]
        found = {window.attributes["training.stage"]: window for window in windows}
        assert {1} == {each.count for each in found.values()}
        return float(found["sync"].mean)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    rank, loop = join(folder), Loop()
    found: dict[str, tuple[float, float]] = {}

    def case(name: str, wait: Callable[[], Any]) -> None:
        together = truth = 0.0

        def timed() -> None:
            nonlocal together, truth
            begin = time.perf_counter()
            distributed.barrier()
            together = time.perf_counter() - begin
            if rank == 1:
                _never.wait(LATE)
            begin = time.perf_counter()
            wait()
            truth = time.perf_counter() - begin

        found[name] = loop.sync(timed) - together, truth

    for name, wait in waits(folder).items():
        case(name, partial(wait, rank))
    case("in another thread", lambda: run_together(distributed.barrier))
    case("nothing", lambda: _never.wait(LATE))
    if rank == 0:
        Path(folder, "waits.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
