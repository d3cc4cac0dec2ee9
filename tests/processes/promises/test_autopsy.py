"""``monitel autopsy``: what a process was doing when it died, or is doing now, by its black box, without a backend."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.jobs import HANG, Console, Job, jobs, loop

#: Hangs in a function with a name after 50 steps, and a NaN.
HANGS = f"""
lr = Stat("lr", [COUNT], 1e9, attributes={{"group": "head"}})
lr.add(float("nan"))
monitel.emit("epoch.end", epoch=7)
{HANG.replace('activity("stuck")', 'activity("checkpoint.save")')}
"""


def complete(report: Any) -> bool:
    """Return True if the report has what the process has done last; its box is written once a second."""
    return [("checkpoint.save", 1)] == [(each["activity"], len(each["waits"])) for each in report["processes"]]


def check_numbers(found: dict[str, Any], job: Job) -> None:
    """Compare the report about a job that hangs with the notes of the job."""
    losses = [note.loss for note in job.notes]
    assert ("llm", 49, "checkpoint.save") == (found["service"], found["step"], found["activity"])
    (wait,) = found["waits"]
    assert ("all_reduce", True) == (wait["key"], wait["seconds"] <= found["step_age_seconds"] < wait["seconds"] + 5)
    windows = {each["name"]: each for each in found["windows"]}
    lr, loss = windows["lr"], windows["train.loss"]
    assert ({"group": "head"}, 1, "NaN") == (lr["attributes"], lr["count"], lr["last"])
    assert (50, losses[-1], losses[-1], 1.0) == tuple(loss[name] for name in ("count", "last", "min", "max"))
    assert loss["mean"] == pytest.approx(sum(losses) / 50)
    assert 400 == next(each["value"] for each in found["counters"] if each["name"] == "train.samples")
    last = found["events"][-1]
    assert ("epoch.end", 7) == (last["name"], last["attributes"]["epoch"])


def test_hung_process_and_its_death(tmp_path: Path, console: Console, own_boxes: Path) -> None:
    """Its waits, numbers, events and stacks while it hangs; after SIGKILL the same without stacks, in a spool too."""
    with jobs(tmp_path, loop(until=50, then=HANGS)) as (job,):
        pid = job.process.pid
        (found,) = console.until(complete, "autopsy", pid)["processes"]
        assert ("alive", pid, None) == (found["state"], found["pid"], found["death"])
        check_numbers(found, job)
        assert found["stacks"].index("[MainThread]") < found["stacks"].index("in stuck_here")
        text = console("autopsy").output
        assert "state          alive\n" in text
        assert re.search(r"\nwaits          all_reduce for [0-9.]+ s\n", text)
        job.kill()
        (box,) = own_boxes.iterdir()
        before = {each.name: each.read_bytes() for each in box.iterdir()}
        (found,) = console.json("autopsy")["processes"]
        assert ("dead", pid, None) == (found["state"], found["pid"], found["death"])
        check_numbers(found, job)
        for target in (box, own_boxes):
            assert [found["box"]] == [each["box"] for each in console.json("autopsy", target)["processes"]]
        text = console("autopsy", pid).output
        assert text.startswith("1 process: 1 dead\n")
        assert "state dead: cause unknown, as after SIGKILL or by the OOM killer; last sign of" in " ".join(
            text.split()
        )
        assert text.endswith(f"\nmonitel replay {own_boxes} --endpoint http://HOST:4318\n")
        assert before == {each.name: each.read_bytes() for each in box.iterdir()}, "nothing of a dead process changes"
        console("replay", own_boxes, status=1, env={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/"})
        assert [] == [*own_boxes.iterdir()]
        spool = job.folder / "spool"
        for words, env in (([spool], {}), ([pid], {"MONITEL_SPOOL_DIR": str(spool)})):
            text = console("autopsy", *words, env=env).output
            assert f"process {pid}, host " in text
            assert re.search(r"\nstep           49, set .* before the last sign of life", text)
            assert "process.died" in text


@pytest.mark.parametrize("command", [("top", "--once"), ("autopsy",)], ids=lambda command: command[0])
def test_nothing_there_and_unknown_targets(tmp_path: Path, console: Console, command: tuple[str, ...]) -> None:
    """A sentence and the status 0 without a box; an unknown process or folder has the status 1, and a reason."""
    assert console(*command).output.startswith("no black boxes of this user on this machine")
    found = console.json(*command)
    assert [] == (found if isinstance(found, list) else found["processes"] + found["jobs"])
    for target, words in {
        "4194305": "no such process runs",
        f"{os.getpid()}": "the process runs, but",
        "missing": "there is no folder",
        f"{tmp_path}": "it holds no black box",
    }.items():
        ended = console(*command, target, status=1)
        assert ("", True) == (ended.output, ended.errors.startswith("monitel: "))
        assert words in " ".join(ended.errors.split())
