"""Processes that appear, end and are replaced while ``monitel top`` and ``monitel autopsy`` look at them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.processes.console.jobs import Console, Job, jobs, loop, ranks
from tests.support.inbox import DEADLINE

#: Ends by itself after a line on its stdin.
SHORT = loop(until=10, then="sys.stdin.readline()")


def end(job: Job) -> None:
    job.process.communicate("end\n", timeout=DEADLINE)


def states(rows: Mapping[Any, Any]) -> dict[Any, str]:
    return {rank: row["state"] for rank, row in rows.items()}


def test_job_that_appears_is_shown(tmp_path: Path, console: Console, own_boxes: Path) -> None:
    """The command was there before the job and its folder of boxes. A rank that ends keeps its last step."""
    with console.watching() as until, ranks(tmp_path, loop(), SHORT) as (first, second):
        until(lambda rows: states(rows) == {0: "alive", 1: "alive"})
        end(second)
        rows = until(lambda rows: states(rows) == {0: "alive", 1: "ended"})
        assert (9, first.process.pid) == (rows[1]["step"], rows[0]["pid"])


def test_killed_rank_stays_when_its_box_is_collected(tmp_path: Path, console: Console, own_boxes: Path) -> None:
    """As by the next pipeline on the machine, or ``monitel replay``. Commands that begin later find its death, too."""
    script = loop().replace('"spool"', repr(str(tmp_path / "spool")))
    with ranks(tmp_path, script, script) as (_, second), console.watching() as until:
        until(lambda rows: len(rows) == 2)
        second.kill()
        until(lambda rows: states(rows)[1] == "dead")
        console("replay", own_boxes, status=1, env={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/"})
        assert [] == [*own_boxes.glob(f"*-{second.process.pid}-*")]
        step = until(len)[0]["step"]
        rows = until(lambda rows: rows[0]["step"] > step + 60)  # some seconds later
        last = second.notes[-1].step
        assert ("dead", True) == (rows[1]["state"], rows[1]["step"] in {last, last + 1})
        report, later = console.json("autopsy"), console.rows()
        for verdict in (rows[0]["verdict"], report["jobs"][0]["verdict"], *(each["verdict"] for each in later)):
            assert ("dead", 1) == (verdict["kind"], verdict["rank"])
        assert [[1], 2] == [report["jobs"][0]["dead"], len(later)]


def test_process_whose_c_code_holds_the_gil_is_silent(tmp_path: Path, console: Console, own_boxes: Path) -> None:
    """``autopsy`` distinguishes code that waits from code that computes, and names tools that show more."""
    sleeps = "import ctypes; ctypes.PyDLL(None).sleep(1000)"
    computes = "pow(7, 10**100_000, 10**40_000 + 9)"  # takes an hour
    with jobs(tmp_path, loop(until=5, then=sleeps), loop(until=5, then=computes)) as (waits, works):
        report = console.until(lambda found: {"silent"} == {each["state"] for each in found["processes"]}, "autopsy")
        found = {each["pid"]: each for each in report["processes"]}
        for job, words in ((waits, "waits"), (works, "computes")):
            process = found[job.process.pid]
            assert f"C code {words} without releasing the GIL" in process["silence"][0]
            assert (f"py-spy dump --pid {job.process.pid}" in process["silence"][-1], None) == (True, process["stacks"])
