"""Two runs in one process, as in a sweep: each has its own start, time, steps and totals."""

import json
import os
import re
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.commands import running
from tests.processes.console.jobs import Console
from tests.support.inbox import DEADLINE
from tests.support.scripts import Run, read_line, write_script

#: Prints the time and the ledger of the process at the begin and at the end of the steps of each run.
JOB = """\
import json
from monitel.training import step as step_module
def note():
    print(json.dumps([os.getpid(), time.time(), monitel.ledger().activities]), flush=True)
def train(service, steps, **attributes):
    pipeline = monitel_otlp.configure(service_name=service, spool_dir="spool", resource_attributes=attributes)
    note()
    monitel.emit("begin")
    time.sleep(0.1)
    for step in steps:
        MAKE_STEP
        monitel.counter("train.samples").add(8)
        with monitel.activity("data"):
            time.sleep(0.01)
        time.sleep(0.03)
    note()
    return pipeline
with monitel.activity("init"):
    time.sleep(0.5)
"""
SET = "monitel.set_step(step)"
#: As instruments count steps: from 1 in each run.
COUNT = 'step_module.advance((monitel.get_step() or 0) + 1); monitel.counter("training.steps").add()'
COUNTED, BOTH, JOB = (
    JOB.replace("MAKE_STEP", each) for each in (COUNT, f'{SET}; monitel.counter("training.steps").add()', SET)
)


def begin(run: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(run["started"].replace("Z", "+00:00")).astimezone()


def all_runs(console: Console) -> list[dict[str, Any]]:
    """Return all runs, the first one first, as ``compare`` has them; they are named by their starts."""
    names = [f"{begin(each):%Y-%m-%d %H:%M:%S}" for each in console.json("runs", "--spool-dir", "spool")["runs"][::-1]]
    return console.compare(*names)


def parts(lines: list[str]) -> list[tuple[float, float, dict[str, float]]]:
    """Return the begin and the end of each run, and the seconds of its activities."""
    notes = [json.loads(each) for each in lines]
    found = []
    for (_, began, before), (_, ended, after) in zip(notes[::2], notes[1::2], strict=True):
        rests = {name: (time_ns - before.get(name, 0)) / 1e9 for name, time_ns in after.items()}
        found.append((began, ended, {name: seconds for name, seconds in rests.items() if seconds}))
    return found


def test_forked_child_counts_from_its_fork(train: Run, console: Console) -> None:
    """Its counters start at zero, whatever the runs of the parent have counted."""
    fork = "if not os.fork():\n    monitel.set_step(0)\n    monitel.counter('train.samples').add(8)\n"
    fork += "    sys.exit()\nos.wait()\n"
    train(JOB + 'train("first", range(3)).shutdown()\ntrain("second", ())\n' + fork)
    assert [24, 8] == [each["values"]["train.samples"] for each in all_runs(console)]


def test_runs_with_ids_are_continued(train: Run, console: Console) -> None:
    """A second pipeline with the same id continues the attempt; after another run, the id has another attempt."""
    calls = [f'train("{run}", range(5), **{{"training.run.id": "{run}"}})\n' for run in "abba"]
    found = parts(train(JOB + "".join(calls)).stdout.splitlines())
    first, second = console.compare("a", "b")
    assert [(2, 10), (1, 10)] == [(each["attempts"], each["steps"]) for each in (first, second)]
    assert begin(second).timestamp() == pytest.approx(found[1][0], abs=1)
    assert second["duration_seconds"] == pytest.approx(found[2][1] - found[1][0], abs=1)
    assert first["activities"]["down"] == pytest.approx(found[3][0] - found[0][1], abs=0.5)
    assert {"init", "startup"} < first["activities"].keys()
    assert [80, 80] == [each["values"]["train.samples"] for each in (first, second)]


@pytest.mark.parametrize(
    ("job", "end", "killed"),
    [
        (JOB, "", False),
        (JOB, ".shutdown()", False),
        (BOTH, ".__exit__(None, None, None)", True),
        (COUNTED, "", False),
        (COUNTED, ".shutdown()", True),
    ],
    ids=["set again", "set", "with, set and counted", "counted again", "counted"],
)
def test_each_run_has_its_own_numbers(console: Console, job: str, end: str, killed: bool) -> None:
    """In ``top``, ``autopsy``, the summary of ``monitel run``, ``runs``, ``ledger`` and ``compare``.

    The first run counts from the start of the process, the second one from its ``configure()``.
    """
    both = f'train("first", range(30)){end}\ntrain("second", range(100, 112))\nsys.stdin.readline()\n'
    last = 12 if job is COUNTED else 111
    with running(sys.executable, str(write_script(Path.cwd(), job + both))) as process:
        lines = [read_line(process) for _ in range(4)]
        pid, (began, _, own) = str(json.loads(lines[0])[0]), parts(lines)[1]
        report = console.until(lambda found: 96 == totals(found).get(("train.samples", None)), "autopsy", pid)
        found = totals(report)
        assert job is JOB or found["training.steps", None] == 12
        times = {name: seconds for (_, name), seconds in found.items() if name and seconds}
        assert own.keys() == times.keys()
        assert times["data"] == pytest.approx(own["data"], abs=0.1)
        (row,) = console.rows(pid)
        assert ("second", last) == (row["service"], row["step"])
        seconds = sum(own.values())
        assert row["goodput"] >= 1 - own["data"] / seconds - 0.05
        console.until(lambda found: stored(found)["duration_seconds"] >= seconds, "runs", "--spool-dir", "spool")
        console("report", "second", "--spool-dir", "spool", "--output", "page.html")
        assert "a verdict needs 20 steps" in Path("page.html").read_text()  # that of the live process
        if killed:
            os.kill(int(pid), signal.SIGKILL)
        _, errors = process.communicate(None if killed else "\n", timeout=DEADLINE)
    summary = " ".join(errors.split())
    assert re.search(r"monitel run: second, 12 steps(?: \(steps 100 to 111\))?, [\d.]+ steps/s ", summary), summary
    startup = re.search(r"startup (\d+) %", summary)  # that of the process is not in it
    assert startup is None or int(startup[1]) < 100 * own["startup"] / seconds + 2
    second, first = console.json("runs", "--spool-dir", "spool")["runs"]
    assert ("first", "completed", 30 if job is COUNTED else 29) == tuple(
        first[name] for name in ("name", "state", "last_step")
    )
    assert (last, "killed" if killed else "completed") == (second["last_step"], second["state"].split()[0])
    assert first["last_seen"] <= second["started"]
    compared = all_runs(console)
    assert {"startup", "init"} < {*compared[0]["activities"]}
    assert [(30, 240), (12, 96)] == [(each["steps"], each["values"]["train.samples"]) for each in compared]
    own.pop("step")  # it has waited since then
    for run in (console.json("ledger", "--spool-dir", "spool"), compared[1]):
        assert begin(run).timestamp() == pytest.approx(began, abs=1)
        assert {*own, "step"} <= run["activities"].keys() <= {*own, "step", "shutdown"}
        assert {name: run["activities"][name] for name in own} == pytest.approx(own, abs=0.5)


def totals(report: Any) -> dict[tuple[str, str | None], float]:
    counters = report["processes"][0]["counters"]
    return {(each["name"], each["attributes"].get("training.activity")): each["value"] for each in counters}


def stored(report: Any) -> Any:
    return next(each for each in report["runs"] if each["name"] == "second")
