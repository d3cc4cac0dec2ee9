"""Jobs with known numbers, and the commands that report them."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.jobs import Console
from tests.support.checks import wait_until
from tests.support.scripts import Process, finish, started, write_script

#: Steps of known length. Arguments: the first step, the number of steps, the seconds of each, and the learning rate.
#: It prints the time of each step, in nanoseconds of its ledger.
JOB = """\
import json
first, steps, seconds, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
pipeline = monitel_otlp.configure(spool_dir="spool", service_name="train")
monitel.config({"rate": rate, "model": {"layers": [2, 2], "width": 64}})
loss = Stat("loss", [MEAN, COUNT, SUM], 0.1, attributes={"split": "train"})
for step in range(first, first + steps):
    monitel.set_step(step)
    print("step", step, monitel.ledger().elapsed_ns, flush=True)
    with monitel.activity("data"):
        time.sleep(seconds / 4)
    loss.add(1 / (step + 1))
    monitel.counter("training.samples").add(8)
    time.sleep(seconds * 3 / 4)
monitel.log({"eval.accuracy": 1 - rate}, split="validation")
"""
#: The truth at its end, for the test.
END = """\
pipeline.shutdown(30)
print(json.dumps(monitel.ledger().activities))
"""
#: A line that reports the time so far, and waits for a line.
HOLD = 'print("held", monitel.ledger().elapsed_ns, flush=True)\nsys.stdin.readline()\n'


def environment(run: str, attributes: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the variables of a job with a run id and further attributes of the resource."""
    pairs = {"training.run.id": run, **(attributes or {})}
    return {"OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{name}={each}" for name, each in pairs.items())}


def truth(stdout: str) -> dict[str, float]:
    """Return the seconds of each activity that a job has printed."""
    return {name: time_ns / 1e9 for name, time_ns in json.loads(stdout.splitlines()[-1]).items()}


def moments(stdout: str) -> dict[int, float]:
    """Return the seconds of the ledger at which each step began, as a job has printed them."""
    return {int(step): int(ns) / 1e9 for step, ns in re.findall(r"^step (\d+) (\d+)$", stdout, re.MULTILINE)}


def _held(process: Process) -> tuple[str, float]:
    """Return what a job has printed until it holds, and the seconds of its ledger at that moment."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        if line.startswith("held "):
            return "".join(lines), int(line.split()[1]) / 1e9
        lines.append(line)
    pytest.fail(finish(process).stderr)


@contextmanager
def holding(first: int, steps: int, seconds: float) -> Iterator[tuple[Process, str, float]]:
    """Run a job of ``run-7`` until it holds; yield it with what it has printed, and the seconds of its ledger."""
    script = write_script(Path.cwd(), JOB + HOLD).rename("held.py")
    with started(Path.cwd(), script, first, steps, seconds, 0.5, env=environment("run-7")) as process:
        yield process, *_held(process)


def seconds(words: str) -> float:
    """Return the seconds of a duration in words, such as ``1 min 40 s``."""
    units = {"ms": 0.001, "s": 1.0, "min": 60.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (ms|s|min)\b", words))


def compared(console: Console, *arguments: object) -> list[dict[str, Any]]:
    """Return the runs of ``compare --json``, each with its values by name."""
    runs = console.json("compare", *arguments)["runs"]
    return [{**each, "values": {value["name"]: value["value"] for value in each["values"]}} for each in runs]


def run_of(console: Console, name: str) -> dict[str, Any]:
    found, _ = compared(console, name, name, "--spool-dir", "spool")
    assert abs(sum(found["activities"].values()) - found["duration_seconds"]) < 1e-5
    return found


def wait_for_ledger(console: Console, at_least: float) -> float:
    """Wait until the ledger on disk has so many seconds, as its heartbeat writes them, and return them."""

    def total() -> float:
        shown = console("ledger", "--spool-dir", "spool").output
        found = re.search(r"^total +100 % +(.*)$", shown, re.MULTILINE)
        return seconds(found[1]) if found else 0.0

    wait_until(lambda: any(Path("spool").glob("ledgers/*/ledger.json")), "a ledger")
    wait_until(lambda: total() >= at_least, f"a ledger of {at_least} s")
    return total()
