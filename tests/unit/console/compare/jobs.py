"""Jobs with known numbers for ``compare``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.otlp.commands.spooled_run import Printed

#: Steps of known length; prints the activities of the process. Arguments: the first step, the number of steps, the
#: seconds of each, the learning rate, and then the lines that follow the steps.
JOB = """\
import json
first, steps, seconds, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
pipeline = monitel_otlp.configure(spool_dir="spool", service_name="train")
monitel.config({"rate": rate, "model": {"layers": [2, 2], "width": 64}})
loss = Stat("loss", [MEAN, COUNT, SUM], 0.1, attributes={"split": "train"})
for step in range(first, first + steps):
    monitel.set_step(step)
    with monitel.activity("data"):
        time.sleep(seconds / 4)
    loss.add(1 / (step + 1))
    monitel.counter("training.samples").add(8)
    time.sleep(seconds * 3 / 4)
monitel.log({"eval.accuracy": 1 - rate}, split="validation")
"""
#: Waits until the ledger has been written twice since the last step, so that it has that step.
WRITTEN = """\
from pathlib import Path
stepped, seen, deadline = time.time(), set(), time.monotonic() + 30
while len(seen) < 2:
    seen |= {path.stat().st_mtime for path in Path("spool").glob("ledgers/*/ledger.json")}
    seen = {each for each in seen if each > stepped}
    assert time.monotonic() < deadline
    time.sleep(0.01)
"""
KILL = WRITTEN + "os.kill(os.getpid(), 9)\n"
#: Its end: the truth, for the test.
END = """\
pipeline.shutdown(30)
print(json.dumps(monitel.ledger().activities))
"""


def environment(run: str, attributes: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the variables of a job with a run id and further attributes of the resource."""
    pairs = {"training.run.id": run, **(attributes or {})}
    return {"OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{name}={each}" for name, each in pairs.items())}


def truth(stdout: str) -> dict[str, float]:
    """Return the seconds of each activity that a job has printed."""
    return {name: time_ns / 1e9 for name, time_ns in json.loads(stdout.splitlines()[-1]).items()}


class Compare(Protocol):
    """Type of the fixture ``compare``."""

    def __call__(self, *arguments: object, returncode: int = 0) -> Printed:
        """Run the command."""


class Compared(Protocol):
    """Type of the fixture ``compared``."""

    def __call__(self, *arguments: object) -> list[dict[str, Any]]:
        """Return the runs."""
