"""Two runs in one process, as in a sweep: each has its own start, time, steps and totals."""

import json
import os
import re
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.processes.console.commands import RUN, line, running
from tests.processes.console.jobs import Console
from tests.support.inbox import DEADLINE
from tests.support.scripts import Run, write_script

#: Notes the time and the ledger of the process at the begin and at the end of the steps of each run.
JOB = """\
import json
def note(service):
    book = monitel.ledger()
    print(json.dumps([os.getpid(), service, time.time(), book.activities]), flush=True)
def train(service, steps, **attributes):
    pipeline = monitel_otlp.configure(service_name=service, spool_dir="spool", resource_attributes=attributes)
    note(service)
    monitel.emit("begin")
    time.sleep(0.1)
    for step in steps:
        MAKE_STEP
        monitel.counter("train.samples").add(8)
        with monitel.activity("data"):
            time.sleep(0.01)
        time.sleep(0.03)
    note(service)
    return pipeline
with monitel.activity("init"):
    time.sleep(0.5)
"""
SET = "monitel.set_step(step)"
#: As instruments count steps: from 1 in each process.
COUNT = 'step_module.advance((monitel.get_step() or 0) + 1); monitel.counter("training.steps").add()'
COUNTED = "from monitel.training import step as step_module\n" + JOB.replace("MAKE_STEP", COUNT)
BOTH = JOB.replace("MAKE_STEP", f'{SET}; monitel.counter("training.steps").add()')
JOB = JOB.replace("MAKE_STEP", SET)


class Part(NamedTuple):
    began: float  # Unix time
    ended: float
    activities: dict[str, float]  # seconds

    def check(self, run: dict[str, Any]) -> None:
        assert self.activities.keys() <= run["activities"].keys() <= {*self.activities, "shutdown"}
        assert {name: run["activities"][name] for name in self.activities} == pytest.approx(self.activities, abs=0.5)
        self.check_time(run)

    def check_time(self, run: dict[str, Any]) -> None:
        assert begin(run).timestamp() == pytest.approx(self.began, abs=1)
        assert run["duration_seconds"] == pytest.approx(self.ended - self.began, abs=1)


def begin(run: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(run["started"].replace("Z", "+00:00")).astimezone()


def parts(lines: list[str]) -> tuple[int, list[Part]]:
    notes = [json.loads(each) for each in lines]
    found = []
    for (*_, began, before), (*_, ended, after) in zip(notes[::2], notes[1::2], strict=True):
        rests = {name: (time_ns - before.get(name, 0)) / 1e9 for name, time_ns in after.items()}
        found.append(Part(began, ended, {name: seconds for name, seconds in rests.items() if seconds}))
    return notes[0][0], found


@pytest.mark.parametrize(
    ("job", "last"), [(JOB, 111), (BOTH, 111), (COUNTED, 42)], ids=["set", "set and counted", "counted"]
)
@pytest.mark.parametrize("end", [".shutdown()", ".__exit__(None, None, None)", ""], ids=["shutdown", "with", "again"])
def test_run_that_has_ended_has_its_own_numbers(train: Run, console: Console, job: str, last: int, end: str) -> None:
    """The first run counts from the start of the process, the second one from its ``configure()``."""
    ended = train(job + f'train("first", range(30)){end}\ntrain("second", range(100, 112))\n')
    _, (_, own) = parts(ended.stdout.splitlines())
    second, first = console.json("runs", "--spool-dir", "spool")["runs"]
    assert [("second", "completed", last), ("first", "completed", 30 if job is COUNTED else 29)] == [
        (each["name"], each["state"], each["last_step"]) for each in (second, first)
    ]
    own.check_time(second)
    assert first["last_seen"] <= second["started"]
    own.check(console.json("ledger", "--spool-dir", "spool"))
    names = [begin(each).strftime("%Y-%m-%d %H:%M:%S") for each in (first, second)]
    compared = console.json("compare", *names, "--spool-dir", "spool")["runs"]
    assert {"startup", "init"} < {*compared[0]["activities"]}
    own.check(compared[1])
    assert 0.1 < compared[1]["activities"]["startup"]
    for each, steps in zip(compared, (30, 12), strict=True):
        values = {value["name"]: value["value"] for value in each["values"]}
        assert (steps, 8 * steps) == (each["steps"], values["train.samples"])


def test_forked_child_counts_from_its_fork(tmp_path: Path, console: Console, own_boxes: Path) -> None:
    """Its counters start at zero, whatever the runs of the parent have counted."""
    fork = """\
if not os.fork():
    monitel.set_step(0)
    monitel.counter("train.samples").add(8)
    monitel.emit("forked")
    note("child")
    sys.stdin.readline()
    os._exit(0)
os.wait()
"""
    runs = 'train("first", range(3)).shutdown()\ntrain("second", range(3))\n'
    with running([sys.executable, str(write_script(tmp_path, JOB + runs + fork))], cwd=tmp_path) as process:
        *_, last = (line(process) for _ in range(5))
        (row,) = console.rows(str(json.loads(last)[0]))
        assert ("second", 0) == (row["service"], row["step"])
        console.until(lambda found: 8 == totals(found).get(("train.samples", None)), "autopsy", str(row["pid"]))
        process.communicate("\n", timeout=DEADLINE)


def test_runs_with_ids_are_continued(train: Run, console: Console) -> None:
    """A second pipeline with the same id continues the attempt; after another run, the id has another attempt."""
    calls = [f'train("{run}", range(5), **{{"training.run.id": "{run}"}})\n' for run in "abba"]
    ended = train(JOB + "".join(calls))
    _, found = parts(ended.stdout.splitlines())
    first, second = console.json("compare", "a", "b", "--spool-dir", "spool")["runs"]
    assert [(2, 10), (1, 10)] == [(each["attempts"], each["steps"]) for each in (first, second)]
    Part(found[1].began, found[2].ended, {}).check_time(second)
    between = found[3].began - found[0].ended
    assert first["activities"]["down"] == pytest.approx(between, abs=0.5)
    assert {"init", "startup"} < first["activities"].keys()
    for each, samples in ((first, 80), (second, 80)):
        assert samples in {value["value"] for value in each["values"] if value["name"] == "train.samples"}


@pytest.mark.parametrize("job", [JOB, BOTH, COUNTED], ids=["set", "set and counted", "counted"])
@pytest.mark.parametrize("killed", [False, True], ids=["ends", "killed"])
def test_run_that_goes_on_has_its_own_numbers(
    tmp_path: Path, console: Console, own_boxes: Path, job: str, killed: bool
) -> None:
    """In ``top`` and ``autopsy``, and in the summary of ``monitel run`` when it has ended or was killed."""
    hold = 'train("first", range(30)).shutdown()\ntrain("second", range(100, 112))\nsys.stdin.readline()\n'
    script = write_script(tmp_path, job + hold)
    with running([*RUN, sys.executable, str(script)], cwd=tmp_path) as process:
        pid, (_, own) = parts([line(process) for _ in range(4)])
        report = console.until(lambda found: 96 == totals(found).get(("train.samples", None)), "autopsy", str(pid))
        found = totals(report)
        assert job is JOB or found["training.steps", None] == 12
        times = {name: seconds for (_, name), seconds in found.items() if name and seconds}
        assert own.activities.keys() == times.keys()
        assert times["data"] == pytest.approx(own.activities["data"], abs=0.1)
        (row,) = console.rows(str(pid))
        assert ("second", 42 if job is COUNTED else 111) == (row["service"], row["step"])
        assert row["goodput"] >= 1 - own.activities["data"] / sum(own.activities.values()) - 0.05
        seconds = sum(own.activities.values())
        console.until(lambda found: stored(found)["duration_seconds"] >= seconds, "runs", "--spool-dir", "spool")
        if killed:
            os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(None if killed else "\n", timeout=DEADLINE)
    summary = " ".join(errors.split())
    assert re.search(r"monitel run: second, 12 steps(?: \(steps 100 to 111\))?, [\d.]+ steps/s ", summary), summary
    startup = re.search(r"startup (\d+) %", summary)  # that of the process is not in it
    assert startup is None or int(startup[1]) < 100 * own.activities["startup"] / seconds + 2
    run = console.json("ledger", "--spool-dir", "spool")
    assert own.activities.keys() <= run["activities"].keys() <= {*own.activities, "shutdown"}
    assert run["state"].startswith("killed" if killed else "completed")


def totals(report: Any) -> dict[tuple[str, str | None], float]:
    counters = report["processes"][0]["counters"]
    return {(each["name"], each["attributes"].get("training.activity")): each["value"] for each in counters}


def stored(report: Any) -> Any:
    return next(each for each in report["runs"] if each["name"] == "second")
