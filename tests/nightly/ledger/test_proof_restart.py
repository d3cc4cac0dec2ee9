"""A job that is killed and resumes at a lower step: the run's ledger agrees with the notes of both attempts."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.paths import ROOT
from tests.support.scripts import finish, started
from tests.unit.ledger import notes
from tests.unit.ledger.notes import TICK_NS, Span

from monitel_otlp.ledger.reading import read_runs

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

JOB = Path(__file__).with_name("restart_job.py")
KILLED_IN, RESUMED_AT, LAST = 33, 21, 50


def durations(noted: list[Span], started_ns: int, end_ns: int, repeated: int) -> Counter[str]:
    """Return nanoseconds by activity of an attempt, by its notes; steps from ``repeated`` on are ``lost``."""
    steps = [each for each in noted if each.name.startswith("step ")]
    exits = notes.moments(noted, "exit") or [end_ns]
    spans = [
        Span("startup", started_ns, steps[0].begin_ns),
        *(Span(name, begin, end) for (name, begin, _), (_, end, _) in pairwise([*steps, Span("", exits[0], 0)])),
        Span("shutdown", exits[0], end_ns),
        *(each for each in noted if each.ns and not each.name.startswith("slept ")),
    ]
    found: Counter[str] = Counter()
    for name, ns in notes.durations(spans).items():
        kind, _, step = name.partition(" ")
        found["lost" if step and int(step) >= repeated else kind] += ns
    return found


def run_ranks(folder: Path, ranks: int, *arguments: object, status: int) -> int:
    """Run all ranks of the job to their end, and return the time at which they were started."""
    started_ns = notes.now_ns()
    with ExitStack() as stack:
        environments = [{"PYTHONPATH": str(ROOT), "RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
        processes = [stack.enter_context(started(folder, JOB, *arguments, env=each)) for each in environments]
        assert [status] * ranks == [finish(each).status for each in processes]
    return started_ns


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_job_resumes_at_a_lower_step(receiver: Receiver, run: Run, tmp_path: Path, ranks: int) -> None:
    """The ledger in the spool has both attempts of rank zero, and the metrics have the second one of each rank."""
    paths = [tmp_path / f"notes-{rank}" for rank in range(ranks)]
    started_ns = run_ranks(tmp_path, ranks, receiver.url, 1, LAST, KILLED_IN, status=-9)
    first = [notes.read(path) for path in paths]
    ((killed_ns,), *_) = (notes.moments(each, "killed") for each in first)
    run("-c", "import time; time.sleep(0.7)")  # until a scheduler starts it again
    resumed_ns = run_ranks(tmp_path, ranks, receiver.url, RESUMED_AT, LAST, 0, status=0)
    second = [notes.read(path)[len(before) :] for path, before in zip(paths, first, strict=True)]

    earlier = durations(first[0], started_ns, killed_ns, RESUMED_AT)
    later = [durations(each, resumed_ns, notes.moments(each, "end")[0], LAST + 1) for each in second]
    later[0]["down"] = resumed_ns - killed_ns
    truth, at_least = earlier + later[0], {"down": resumed_ns - killed_ns - TICK_NS}
    ((stored,), _) = read_runs(tmp_path / "spool")
    notes.check(stored.activities, truth, at_least)
    assert stored.elapsed_ns == sum(stored.activities.values())
    assert ("proof", 2, True) == (stored.run, stored.attempts, stored.ended)

    later[0]["step"] -= earlier["lost"]  # a total cannot fall: the first new steps count as lost
    later[0]["lost"] = earlier["lost"]
    for rank, expected in enumerate(later):
        points = [each for each in receiver.points("training.time") if each.resource["training.rank"] == rank]
        arrived = {
            each.attributes["training.activity"]: round(1e9 * each.value)
            for each in points
            if each.start_ns == points[-1].start_ns
        }
        notes.check(arrived, expected, {})
    goodputs = [each.value for each in receiver.points("training.goodput") if each.resource["training.rank"] == 0]
    assert [pytest.approx(truth["step"] / sum(truth.values()), abs=0.01)] * 2 == [goodputs[-1], stored.goodput]
