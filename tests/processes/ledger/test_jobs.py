"""A job with known sleeps in every activity: its ledger agrees with what the job has noted itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.ledger import notes
from tests.unit.ledger.notes import Span

if TYPE_CHECKING:
    from tests.core_conftest import RunScript

FIND_NOTES = f"sys.path.insert(0, {str(Path(notes.__file__).parent)!r})\n"
JOB = """\
import asyncio, atexit, json
from monitel import run_events
from notes import Notes

notes = Notes("notes")

def report():
    book = monitel.ledger()
    notes.moment("end")
    totals = {
        each.counter.attributes["training.activity"]: each.total
        for each in monitel.counters() if each.counter.name == "training.time"
    }
    say(json.dumps([book.elapsed_ns, dict(book.activities), totals, monitel.ledger().elapsed_ns]))

atexit.register(report)
atexit.register(notes.sleep, "shutdown", 0.2)
run_events.enter("an exporter")

def during(name, seconds=0.2):
    with notes.around(name), monitel.activity(name):
        notes.sleep(name, seconds)

@monitel.activity("evaluation")
def evaluate():
    notes.sleep("evaluation", 0.2)
    with notes.around("data"), monitel.activity("data"):
        notes.sleep("data", 0.1)
    raise ValueError("the evaluation fails")

@monitel.activity("data")
def batches():  # a generator counts while it runs
    while True:
        notes.sleep("data", 0.15)
        yield 1

async def saves():  # tasks that take turns
    async def save(seconds):
        with monitel.activity("checkpoint.save"):
            await asyncio.sleep(seconds)
    await asyncio.gather(save(0.1), save(0.3))

notes.sleep("startup", 0.2)
for name in ("init", "checkpoint.load", "data"):
    during(name)
stream = batches()
with notes.around("data"):
    next(stream)
monitel.set_step(1)
notes.moment("first step")
during("compile")
for step in (2, 3):
    with notes.around("data"):
        next(stream)
    notes.sleep("step", 0.3)
    monitel.set_step(step)
with notes.around("evaluation"):
    try:
        evaluate()
    except ValueError:
        pass
with notes.around("checkpoint.save"):
    asyncio.run(saves())
during("stuck")
during("my own")
thread = threading.Thread(target=monitel.activity("evaluation")(threading.Event().wait), args=[0.2])
thread.start()
notes.sleep("step", 0.2)  # what another thread does is not the loop's
thread.join()
notes.moment("exit")
"""


def test_job_with_every_activity(run_script: RunScript, tmp_path: Path) -> None:
    """Exceptions, generators, tasks that take turns and another thread change nothing; the counters agree."""
    started_ns = notes.now_ns()
    ended = run_script(FIND_NOTES + JOB)
    assert "" == ended.stderr
    elapsed_ns, activities, totals, later_ns = json.loads(ended.lines[-1])
    noted = notes.read(tmp_path / "notes")
    ((first_step,), (exited,), (end,)) = (notes.moments(noted, name) for name in ("first step", "exit", "end"))
    whole = [
        Span("startup", started_ns, first_step),
        Span("step", first_step, exited),
        Span("shutdown", exited, end),
        *(each for each in noted if each.ns and not each.name.startswith("slept ")),
    ]
    assert elapsed_ns == sum(activities.values())
    notes.check(activities, notes.durations(whole), notes.slept(noted))
    assert {*activities} == {*totals}
    assert elapsed_ns - 1000 <= sum(totals.values()) * 1e9 <= later_ns + 1000  # rounded
