"""``top``, ``autopsy`` and the summary of ``monitel run`` say the same about one job, while it runs and at its end."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import command
from tests.unit.console.made_processes import owner_of
from tests.unit.console.recorded import ATTRIBUTES, DOING, START, record_in, recorded

from monitel.blackbox.death import Deaths, End
from monitel.console.job import jobs_of
from monitel.console.summary import summary_lines
from monitel.runs.ended import VERSION, encode
from monitel.runs.process import Process, State, process_of
from monitel.runs.stored import load
from monitel.text import Screen

HUNG: dict[str, Any] = {**DOING, "step": 300, "step_seconds": 125.0, "waits": [], "stage": None, "thread": 7}
IN_STEP = {**HUNG, "activity": ("step", 125.0)}
IN_DATA = {**HUNG, "activity": ("data", 124.0)}
WAITS = {**IN_STEP, "waits": [("all_reduce", 7, 124.0)]}
FORWARD = {**IN_STEP, "stage": ("forward", False, 124.0, 7)}
BACKWARD = {**IN_STEP, "stage": ("backward", True, 124.0, 7)}
SAVES = {**HUNG, "activity": ("checkpoint.save", 124.0)}
TRAINS = {**IN_STEP, "step_seconds": 0.05, "activity": ("step", 0.01)}
STARTS = {**HUNG, "step": None, "first_step": None, "step_seconds": None, "activity": ("init", 124.0)}

#: Name of the job: what its ranks do, and kind, rank and stage of the verdict.
JOBS: dict[str, tuple[Sequence[Mapping[str, Any]], tuple[str, int | None, str]]] = {
    "hung in data": ([IN_DATA], ("stuck", 0, "data")),
    "a late loader": ([WAITS, IN_DATA, WAITS], ("stuck", 1, "all_reduce")),
    "hung in a collective": ([WAITS, WAITS], ("stuck", None, "all_reduce")),
    "hung in a stage": ([BACKWARD, FORWARD], ("stuck", 1, "forward")),
    "hung in a checkpoint": ([SAVES, WAITS, WAITS], ("paused", 0, "all_reduce")),
    "hung without a trace": ([IN_STEP], ("no-steps", 0, "")),
    "not started": ([STARTS, STARTS], ("starting", None, "init")),
    "at work": ([TRAINS], ("healthy", None, "")),
}


def end_of_run(processes: Sequence[Process]) -> str:
    """Return the verdict in the summary of a run, after what is stored was read."""
    stored = [
        load(Process, encode(replace(each, owner=owner_of(number), started_ns=START)), VERSION)
        for number, each in enumerate(processes)
    ]
    return next(line.split(None, 1)[1] for line in summary_lines(stored, (), Screen(1000)) if "  verdict " in line)


@pytest.mark.parametrize("name", JOBS)
def test_views_agree_about_a_job(name: str, own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live in ``top`` and ``autopsy``; at the end, after SIGTERM and after a kill, in the summary."""
    monkeypatch.setattr("monitel.console.reader.request_stacks", lambda _boxes: {})  # nobody answers
    ranks, expected = JOBS[name]
    running, killed, interrupted = [list[Process]() for _ in range(3)]
    with ExitStack() as stack:
        for number, doing in enumerate(ranks):
            attributes = {**ATTRIBUTES, "training.rank": number, "training.world_size": len(ranks)}
            found = stack.enter_context(recorded(own_boxes, None, attributes=attributes))
            found.box.sources["doing"] = lambda doing=doing: doing  # type: ignore[misc]
            found.box.sources["counters"] = lambda doing=doing: counters(doing)  # type: ignore[misc]
            (found.path / "page").unlink()  # it has the step of this process
            found.box.snapshot()
            record = record_in(found.path)
            running.append(process_of(record, alive=True))
            names = [{**record.identity, "pid": 4194399 + number, "start": "5"}, *record.names[1:]]  # it has ended
            record, deaths = replace(record, names=names), Deaths()
            for number_of_signal, ended in ((9, killed), (2, interrupted)):
                deaths.add(int(record.owner.pid), End(signal=number_of_signal, time_ns=record.time_ns + number))
                ended.append(process_of(record, alive=False, deaths=deaths))
        rows = json.loads(command("top", own_boxes, "--once", "--json", "--interval", "0.1").stdout)
        report = json.loads(command("autopsy", own_boxes, "--json").stdout)
        text = command("autopsy", own_boxes).stdout
    verdicts = [row["verdict"] for row in rows] + [job["verdict"] for job in report["jobs"]]
    assert {expected} == {tuple(each[key] for key in ("kind", "rank", "stage")) for each in verdicts}, verdicts
    if len(ranks) > 1:
        assert verdicts[0]["text"].partition(" for ")[0] in text
    preempted = [replace(each, state=State.ENDED, status="preempted") for each in running]
    for stopped in (preempted, interrupted):  # by Ctrl-C in the shutdown: Python does not handle it any more
        (job,) = jobs_of(stopped)
        assert expected == (job.verdict.kind, job.verdict.rank, job.verdict.stage)
        assert expected[0].replace("-", " ") == end_of_run(stopped).partition(":")[0]
        assert ([], len(ranks)) == (job.deaths, len(job.unfinished))
    for view in (jobs_of(killed)[0].verdict.text, end_of_run(killed)):
        assert view.startswith("dead: rank")
        assert "killed by SIGKILL" in view


def counters(doing: Mapping[str, Any]) -> list[Any]:
    steps = doing["step"] or 0
    name, seconds = doing["activity"]
    times = {"step": steps * 0.12, name: seconds + steps * 0.12 * (name == "step")}
    return [
        *(("training.time", {"training.activity": each}, total) for each, total in times.items()),
        ("training.steps", {}, steps),
    ]
