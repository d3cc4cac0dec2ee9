"""Training jobs that note each of their steps in a file, and the truth of the columns from these notes alone."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.scripts import started, wait_until_ready, write_script

from monitel_otlp.top.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.scripts import Process

    from monitel_otlp.top.rank import Look, Rank

PATIENCE_S = 60.0
STEP_S, DATA_S = 0.30, 0.12  # of a step, and of the wait for data in it

#: Makes steps of known parts until it is ended. Each line of the notes: step, monotonic time at which it was set, loss,
#: seconds in which it has waited for data up to then.
STEPS = f"""
import json
pipeline = monitel_otlp.configure(service_name="llm", spool_dir="spool")
notes = open("notes.jsonl", "w", buffering=1)
loss = Stat("train.loss", [MEAN], 60.0)
data = 0.0

def run(steps):
    global data
    for step in steps:
        monitel.set_step(step)
        loss.add(1 / (step + 1))
        notes.write(json.dumps([step, time.monotonic(), 1 / (step + 1), data]) + "\\n")
        if step == 3:
            monitel.emit("epoch.start", epoch=1)
            print("ready", flush=True)
        begin = time.monotonic()
        with monitel.activity("data"):
            time.sleep({DATA_S})
        data += time.monotonic() - begin
        time.sleep({STEP_S - DATA_S})
"""
ENDLESS = STEPS + "run(range(1_000_000))\n"
#: Hangs in a wait after ten steps, and notes when it began.
HANG = f"""{STEPS}
run(range(10))
with monitel.WaitCounter("all_reduce").guard():
    notes.write(json.dumps(["wait", time.monotonic()]) + "\\n")
    time.sleep(10_000)
"""
#: Ends by itself after ten steps after a line on its stdin.
SHORT = f"""{STEPS}
run(range(10))
sys.stdin.readline()
"""


class Note(NamedTuple):
    """The notes of one step."""

    step: int
    set_s: float
    loss: float
    data_s: float


class Job(NamedTuple):
    """A process that runs one of the scripts.

    Attributes:
        process: The process.
        folder: Its working directory.
        started_s: Monotonic time shortly before its start.
    """

    process: Process
    folder: Path
    started_s: float

    def lines(self) -> list[list[Any]]:
        """Return the complete lines of the notes."""
        text = (self.folder / "notes.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def notes(self) -> list[Note]:
        """Return the notes of all steps so far."""
        return [Note(*line) for line in self.lines() if not isinstance(line[0], str)]

    def mark(self, name: str) -> float | None:
        """Return the time of a line with a name; None if it is not there yet."""
        return next((float(line[1]) for line in self.lines() if line[0] == name), None)


@contextmanager
def jobs(folder: Path, scripts: Mapping[str, str], env: Callable[[str], Mapping[str, str]]) -> Iterator[dict[str, Job]]:
    """Start a job for each name and script, and wait until each has made some steps.

    Args:
        folder: Each has a folder in it.
        scripts: The script of each.
        env: Returns the environment variables of each.
    """
    with ExitStack() as stack:
        found = {}
        for name, script in scripts.items():
            own = folder / name
            own.mkdir()
            began = time.monotonic()
            process = stack.enter_context(started(own, write_script(own, script), env=env(name)))
            found[name] = Job(process, own, began)
        for each in found.values():
            wait_until_ready(each.process)
        yield found


def ranks_of(folder: Path, scripts: Mapping[str, str]) -> AbstractContextManager[dict[str, Job]]:
    """Return a context manager: the ranks of one job, whose names are their numbers."""
    size = f"{len(scripts)}"
    return jobs(folder, scripts, lambda name: {"RANK": name, "LOCAL_RANK": name, "WORLD_SIZE": size})


@contextmanager
def looking(*targets: object, show: str | None = None) -> Iterator[Ranks]:
    """Look at boxes, and close them at the end of the block."""
    ranks = Ranks([*map(str, targets)], show=show)
    try:
        yield ranks
    finally:
        ranks.close()


def until(ranks: Ranks, expected: Callable[[Look], object], pause_s: float = 0.2) -> Look:
    """Look until a look is as expected, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        look = ranks.look()
        if expected(look):
            return look
        assert time.monotonic() < deadline, look
        Event().wait(pause_s)


def by_rank(look: Look) -> dict[int | None, Rank]:
    """Return the rows by rank."""
    return {each.rank: each for each in look.ranks}


def true_rate(notes: list[Note], at_s: float, seconds: float) -> float:
    """Return the steps per second in the last seconds before a time."""
    within = [note for note in notes if at_s - seconds <= note.set_s <= at_s]
    return (len(within) - 1) / (within[-1].set_s - within[0].set_s)


def true_step_times(notes: list[Note], at_s: float) -> list[float]:
    """Return the times of all steps before a time, sorted."""
    times = [note.set_s for note in notes if note.set_s <= at_s]
    return sorted(after - before for before, after in pairwise(times))


def true_data_share(notes: list[Note], at_s: float, seconds: float) -> float:
    """Return the share of data in the steps of the last seconds before a time."""
    within = [note for note in notes if at_s - seconds <= note.set_s <= at_s]
    return (within[-1].data_s - within[0].data_s) / (within[-1].set_s - within[0].set_s)
