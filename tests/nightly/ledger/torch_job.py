"""A PyTorch job with a known duration in each activity, on one rank or several, which notes what it does.

Rank 1 joins the others late. Arguments: the endpoint, and the seconds that it is late.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # its import is part of the start
from tests.unit.ledger.notes import Notes
from torch import distributed
from torch.utils.data import DataLoader, Dataset

import monitel
import monitel.torch
import monitel_otlp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANK = int(os.environ["RANK"])
STUCK_AFTER = 1.2  # seconds

notes = Notes(f"notes-{RANK}")


class Rows(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch is not checked
    """Rows that take their time."""

    def __init__(self, activity: str) -> None:
        self._activity = activity

    def __len__(self) -> int:
        """Return their number."""
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a row."""
        notes.sleep(self._activity, 0.03)
        return torch.full((4,), float(index))


class Slow:
    """An object that is slow to save and to load."""

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        """Wait now, and again when the object is loaded."""
        notes.sleep("checkpoint.save", 0.4)
        return load_slowly, ()


def load_slowly() -> None:
    """Wait."""
    notes.sleep("checkpoint.load", 0.3)


def compile_slowly(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """Wait, and compile nothing."""
    notes.sleep("compile", 0.5)
    forward: Callable[..., Any] = graph.forward
    return forward


def note_stuck(event: monitel.Event) -> None:
    """Note the moment from which on a wait is stuck, and let the end of the run take some time."""
    if event.data.get("wait.key") == "barrier":
        notes.moment("stuck from")
    elif event.name == "run.ended":
        notes.sleep("shutdown", 0.4)


def batches(activity: str) -> Iterator[torch.Tensor]:
    """Yield the batches of a DataLoader, and note how long the loop waits for each of them."""
    loading = iter(DataLoader(Rows(activity), batch_size=4))
    for _ in range(6):
        with notes.around(activity):
            rows = next(loading)
        yield rows


def train() -> None:
    """Train; the first batch compiles."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    compiled = torch.compile(lambda rows: model(rows).square().mean(), backend=compile_slowly)
    for number, rows in enumerate(batches("data")):
        if number == 0:
            with notes.around("compile"):
                loss = compiled(rows)
        else:
            loss = compiled(rows)
        loss.backward()
        optimizer.step()
        if number == 0:
            notes.moment("first step")
        notes.sleep("step", 0.1)


def main() -> None:
    """Run the job."""
    endpoint, late = sys.argv[1], float(sys.argv[2])
    atexit.register(notes.moment, "end")
    monitel_otlp.configure(endpoint=endpoint, spool_dir="spool")
    monitel.register_event_handler(note_stuck)
    monitel.torch.instrument(stuck_after=STUCK_AFTER)
    atexit.register(notes.moment, "exit")
    Path(f"ready-{RANK}").touch()
    while not all(Path(f"ready-{rank}").exists() for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)  # noqa: TID251  until all have started
    if RANK == 1:
        notes.sleep("startup", late)
    with notes.around("init"):
        distributed.init_process_group("gloo")
    train()
    path = Path(f"checkpoint-{RANK}.pt")
    with notes.around("checkpoint.save"):
        torch.save(Slow(), path)
    with notes.around("checkpoint.load"):
        torch.load(path, weights_only=False)
    with notes.around("wait"), monitel.WaitCounter("barrier").guard():
        time.sleep(3.2)  # noqa: TID251  a job of known durations
    with notes.around("evaluation"), monitel.activity("evaluation"):
        for _rows in batches("evaluation"):
            notes.sleep("evaluation", 0.02)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
