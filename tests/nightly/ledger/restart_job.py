"""A rank of a job without torch, which notes what it does. It kills itself in one attempt, and resumes in another one.

Arguments: the endpoint, the first step, the last step, and the step in which it kills itself, or 0.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path

from tests.unit.ledger.notes import Notes

import monitel
import monitel_otlp

ROOT = Path("spool")


def heartbeat() -> set[int]:
    """Return the times at which the files of the run's ledger were written."""
    return {path.stat().st_mtime_ns for path in ROOT.glob("ledgers/*/ledger.json")}


def kill(notes: Notes) -> None:
    """Kill this process as soon as its ledger has been written."""
    before = heartbeat()
    while heartbeat() == before:
        pass
    notes.moment("killed")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train."""
    endpoint, (first, last, killed_in) = sys.argv[1], map(int, sys.argv[2:])
    notes = Notes(f"notes-{os.environ['RANK']}")
    atexit.register(notes.moment, "end")
    monitel_otlp.configure(endpoint=endpoint, spool_dir=ROOT, resource_attributes={"training.run.id": "proof"})
    atexit.register(notes.moment, "exit")
    notes.sleep("startup", 0.2)
    if first > 1:
        with notes.around("checkpoint.load"), monitel.activity("checkpoint.load"):
            notes.sleep("checkpoint.load", 0.3)
    for step in range(first, last + 1):
        monitel.set_step(step)
        notes.moment(f"step {step}")
        with notes.around("data"), monitel.activity("data"):
            notes.sleep("data", 0.02)
        notes.sleep("step", 0.06)
        if step == killed_in:
            kill(notes)
        if step % 20 == 0:
            with notes.around("checkpoint.save"), monitel.activity("checkpoint.save"):
                notes.sleep("checkpoint.save", 0.3)
            with notes.around("evaluation"), monitel.activity("evaluation"):
                notes.sleep("evaluation", 0.3)


main()
