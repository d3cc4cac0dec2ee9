"""A job of several ranks that measures rows of ``late_rows.py``, one after the other, each with its own windows.

    torchrun --nproc-per-node 4 -m tests.integration.nightly.jobs.late_ranks_job FOLDER ATTEMPTS

Each rank writes the file ``FOLDER/<rank>.json``: for each row the means of monitel's windows, and the sections of each
cycle by this script's clock. If the machine has made a rank late, the row is measured again, up to ATTEMPTS times: the
script compares the means of its clock with the known pauses. The measurements by monitel play no part in this decision.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from threading import Event
from typing import TYPE_CHECKING, Any

import torch
from tests.integration.nightly.late_rows import PAUSES, ROWS, Row
from torch import distributed

import monitel
import monitel.torch

if TYPE_CHECKING:
    from torch import Tensor


WIDTH = 64
WARM_UP = 2  # cycles before the measured ones
_STAT = "training.stage.duration"
_never = Event()


class Work:
    """The known work of a rank in a row, and how long it took by this script's clock."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.start(Row(1))

    def start(self, row: Row) -> None:
        self.cycle, self._cycles = 1 - WARM_UP, row.cycles
        self._delays = [each for each in row.delays if each.rank == self._rank]
        self.sections: dict[str, list[float]] = {}

    def spend(self, stage: str) -> None:
        late = sum(each.in_cycle(self.cycle) for each in self._delays if each.stage == stage)
        _never.wait(PAUSES[stage] + late)

    @contextmanager
    def timed(self, section: str) -> Iterator[None]:
        """Note the duration of a section of the current cycle."""
        begin = time.perf_counter()
        yield
        self.note(section, time.perf_counter() - begin)

    def note(self, section: str, seconds: float) -> None:
        if 0 < self.cycle <= self._cycles:
            self.sections.setdefault(section, []).append(seconds)


class Spend(torch.autograd.Function):  # type: ignore[misc]  # Any where torch is not installed
    """Pass a tensor on, and spend the time of forward and of backward."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, work: Work) -> Tensor:
        context.work = work
        work.spend("forward")
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        context.work.spend("backward")
        return gradient, None


class Model(torch.nn.Module):  # type: ignore[misc]  # as above
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self._work = work

    def forward(self, inputs: Tensor) -> Tensor:
        """Return something that depends on both layers."""
        return self.second(Spend.apply(self.first(inputs), self._work))


class Batches(torch.utils.data.Dataset):  # type: ignore[misc]  # as above
    def __init__(self, work: Work) -> None:
        self._work = work

    def __len__(self) -> int:
        return sys.maxsize // 2

    def __getitem__(self, _number: int) -> Tensor:
        self._work.spend("data")
        return torch.ones(8, WIDTH)


class Job:
    """The training loop. Its steps are the same in all rows."""

    def __init__(self, rank: int) -> None:
        self.work = Work(rank)
        model = Model(self.work)
        self._model = torch.nn.parallel.DistributedDataParallel(model)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        sampler: Iterator[int] = iter(int, 1)  # zeros, without an end
        self._batches = iter(torch.utils.data.DataLoader(Batches(self.work), batch_size=None, sampler=sampler))
        self._gradients_at = self.synchronized_at = self._stepped_at = 0.0
        # The last gradients of backward: these hooks run after DDP's, which starts the exchange.
        self._nodes = [each.expand_as(each).grad_fn.next_functions[0][0] for each in model.first.parameters()]
        for node in self._nodes:
            node.register_hook(self._gradient)

    def _gradient(self, *_gradients: object) -> None:
        self._gradients_at = time.perf_counter()

    def step(self) -> None:
        """Take a step: the rest of one cycle, and the begin of the next one."""
        work = self.work
        work.note("other", time.perf_counter() - self._stepped_at)
        with work.timed("data"):
            batch = next(self._batches)
        with work.timed("forward"):
            loss = self._model(batch).square().mean()
            self._optimizer.zero_grad()
        begin = time.perf_counter()
        loss.backward()
        self.synchronized_at = time.perf_counter()
        work.note("backward", self._gradients_at - begin)
        work.note("backward with the wait", self.synchronized_at - begin)
        work.cycle += 1
        with work.timed("optimizer"):
            work.spend("optimizer")
            self._optimizer.step()
        self._stepped_at = time.perf_counter()

    def rest(self) -> None:
        """Spend the time between two steps."""
        self.work.spend("other")


def measure(job: Job, row: Row, windows: list[monitel.Window]) -> dict[str, Any]:
    """Measure a row once; its first windows, those of the warm-up, are dropped."""
    job.work.start(row)
    for _ in range(WARM_UP):
        job.step()
        job.rest()
    monitel.flush()
    windows.clear()
    begin = job.synchronized_at
    for cycle in range(row.cycles):
        if cycle:
            job.rest()
        job.step()
    seconds = (job.synchronized_at - begin) / row.cycles
    monitel.flush()
    stages = {str(each.attributes["training.stage"]): each for each in windows if each.name == _STAT}
    job.rest()
    return {
        "means": {stage: window.mean for stage, window in stages.items()},
        "counts": {stage: window.count for stage, window in stages.items()},
        "sections": job.work.sections,
        "seconds": seconds,
    }


def disturbed(work: Work, row: Row) -> bool:
    """Return whether the machine has made a rank late, by this script's clock.

    A known lateness may be off by a tenth. Where none is known, a rank may be late by 40 % of the smallest delay, or by
    1 ms in a row without delays. The same holds for the sum of the stages, with 30 % of the smallest delay.
    """
    ranks: list[dict[str, float]] = [{}] * distributed.get_world_size()
    distributed.all_gather_object(ranks, {stage: fmean(work.sections[stage]) for stage in PAUSES})
    least = min((each.mean for each in row.delays), default=0.0025)
    totals = _above_median([sum(each.values()) for each in ranks])
    known_totals = _above_median([sum(row.delay(rank, stage) for stage in PAUSES) for rank in range(len(ranks))])
    if any(abs(own - late) > max(0.1 * abs(late), 0.3 * least) for own, late in zip(totals, known_totals, strict=True)):
        return True
    for stage in PAUSES:
        known = _above_median([row.delay(rank, stage) for rank in range(len(ranks))])
        found = _above_median([each[stage] for each in ranks])
        if any(abs(own - late) > (0.1 * abs(late) or 0.4 * least) for own, late in zip(found, known, strict=True)):
            return True
    return False


def _above_median(seconds: list[float]) -> list[float]:
    middle = median(seconds)
    return [each - middle for each in seconds]


def measure_all(attempts: int) -> list[dict[str, Any]]:
    windows: list[monitel.Window] = []
    monitel.register_event_handler(lambda event: windows.append(event.window) if event.window else None)
    monitel.torch.instrument(window_size=24 * 3600.0)
    job, found = Job(distributed.get_rank()), []
    for row in (each for each in ROWS if each.ranks == distributed.get_world_size()):
        for attempt in range(1, attempts + 1):
            measured = {**measure(job, row, windows), "attempts": attempt, "quiet": not disturbed(job.work, row)}
            if measured["quiet"]:
                break
        found.append(measured)
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(measure_all(int(sys.argv[2]))))
    gc.collect()  # the model holds the process group, whose threads must end before the interpreter does
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
