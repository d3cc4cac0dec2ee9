"""``monitel top`` and ``monitel autopsy``: what they show agrees with what the processes have noted themselves."""

import os
import re
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.jobs import EQUAL, HANG, IS_LATE, MONITEL, WAITS, Console, Job, jobs, loop, ranks
from tests.processes.console.tmux import needs_tmux, terminal
from tests.processes.promises.test_live_record import moment
from tests.support.checks import wait_until

#: The fields of a row, as docs/reference/commands.md has them.
FIELDS = {
    *("time", "pid", "rank", "step", "state", "death", "last_seen", "host", "namespace", "service", "run", "attempt"),
    *("world_size", "step_age_seconds", "steps_per_second", "step_seconds_p50", "step_seconds_p99", "data_share"),
    *("wait_share", "goodput", "value_name", "value", "activity", "activity_age_seconds", "stage", "waits", "event"),
    *("verdict", "box", "problem", "exception", "cpu_cores", "memory_bytes", "gpu_share", "gpu_memory_bytes"),
    *("local_rank", "started"),
}


def verdict(rows: Mapping[Any, Any]) -> tuple[str, int | None]:
    found = {(row["verdict"]["kind"], row["verdict"]["rank"]) for row in rows.values()}
    assert 1 == len(found)
    return found.pop()


def check_row(row: dict[str, Any], job: Job) -> None:
    wait_until(lambda: job.notes[-1].step > row["step"], "the notes of the step")
    notes = job.notes
    times = sorted(after.set_s - before.set_s for before, after in pairwise(notes))
    begin, end = notes[0], notes[-1]
    expected = {"pid": job.process.pid, "state": "alive", "service": "llm", "run": "run-7", "world_size": 2}
    assert expected.items() <= row.items()
    set_s = moment(row["time"]) - row["step_age_seconds"] - time.time() + time.monotonic()
    assert -0.1 < notes[row["step"]].set_s - set_s < 10  # a busy machine may run others between a step and its note
    assert 0.3 / times[-1] < row["steps_per_second"] < 1.1 / times[0]
    assert 0.9 * times[len(times) // 10] < row["step_seconds_p50"] < 1.1 * times[-len(times) // 10]
    assert row["data_share"] == pytest.approx((end.data_s - begin.data_s) / (end.set_s - begin.set_s), abs=0.2)
    assert ("train.loss", True) == (row["value_name"], row["value"] in {note.loss for note in notes[-80:]})
    assert 0 < row["goodput"] < 1 - row["data_share"] + 0.1
    assert ("epoch.start", 1) == (row["event"]["name"], row["event"]["attributes"]["epoch"])
    assert ("", "") == (row["death"] or "", row["problem"] or "")


def test_rows_of_healthy_ranks_have_their_numbers(tmp_path: Path, console: Console) -> None:
    """Step and its age, rate, median step, share of data, loss, goodput, memory, last event; the verdict is healthy."""
    large = 'ballast = b"x" * (64 << 20)\n'
    with ranks(tmp_path, loop(EQUAL), large + loop(EQUAL)) as running, console.watching() as until:
        until(lambda rows: len(rows) == 2 and all(row["step"] >= 60 for row in rows.values()))
        until(lambda rows: ("healthy", None) == verdict(rows))
        rows = until(lambda rows: all(row["data_share"] is not None for row in rows.values()))
        assert [FIELDS, FIELDS] == [row.keys() for row in rows.values()]
        for rank, job in enumerate(running):
            check_row(rows[rank], job)
        assert rows[0]["verdict"]["text"].startswith("healthy: 2 ranks, ")
        assert rows[0]["memory_bytes"] + (32 << 20) < rows[1]["memory_bytes"] < 1 << 30
        assert all(row["cpu_cores"] >= 0 for row in rows.values())
        assert [1, 0] == [row["rank"] for row in console.rows("--sort", "memory")]


def test_late_rank_is_named(tmp_path: Path, console: Console) -> None:
    """With its stage and milliseconds, from the stages of both ranks."""
    with ranks(tmp_path, loop(WAITS), loop(IS_LATE)), console.watching() as until:
        rows = until(lambda rows: ("late-rank", 1) == verdict(rows) and rows[0]["wait_share"] is not None)
        # Each step says that it waits for 30 ms, and takes 50 ms, or longer on a busy machine.
        assert (True, 0.0) == (0 < rows[0]["wait_share"] <= 0.62, rows[1]["wait_share"])
        found = rows[0]["verdict"]
        expected = {"stage": "data", "seconds": pytest.approx(0.030), "share": pytest.approx(30 / 130)}
        assert expected.items() <= found.items()
        assert "late rank: rank 1 takes 30.0 ms longer than the others in data (23 % of each step)" == found["text"]


def test_dead_rank_stays_with_its_last_step(tmp_path: Path, console: Console) -> None:
    """The step is exact, by --json and --once, which are of the same rows; a filter leaves rows out."""
    with ranks(tmp_path, loop(), loop()) as running:
        console.until(
            lambda rows: [True] * 2 == [row["value"] is not None for row in rows], "top", "--once", "--interval", "0.1"
        )
        running[1].kill()
        alive, dead = console.rows()
        assert [(0, "alive"), (1, "dead")] == [(row["rank"], row["state"]) for row in (alive, dead)]
        last = running[1].notes[-1].step  # it may have died between a step and its note
        assert (True, None) == (dead["step"] in {last, last + 1}, dead["steps_per_second"])
        assert f"dead: rank 1 died of an unknown cause at step {dead['step']}" == dead["verdict"]["text"]
        lines = console.top().splitlines()
        assert "1 job, 2 processes: 1 dead, 1 alive" == lines[0]
        assert lines[2].startswith("llm, run run-7, 2 of 2 ranks, on ")
        assert dead["verdict"]["text"] == lines[3]
        assert ["RANK", "PID", "STATE", "STEP"] == lines[4].split()[:4]
        assert ["0", f"{running[0].process.pid}", "alive"] == lines[5].split()[:3]
        assert ["1", f"{running[1].process.pid}", "dead", f"{dead['step']}"] == lines[6].split()[:4]
        assert lines[7].startswith("  cause unknown, as after SIGKILL or by the OOM killer; last sign of life ")
        assert "LAST EVENT" in lines[4]  # nothing is cut without a terminal
        assert [1] == [row["rank"] for row in console.rows("--filter", "RANK 1")]
        assert 50 >= max(map(len, console.top(env={"COLUMNS": "50"}).splitlines()))
        assert [1] == [row["rank"] for row in console.rows(running[1].process.pid)]


def test_wrong_arguments(console: Console) -> None:
    """The exit statuses are those of the documentation."""
    console("top", "--sort", "nothing", status=2)
    ended = console("top", status=1)
    assert ended.stderr.startswith(
        "monitel: monitel top needs a terminal as stdin, stdout and stderr, and not TERM=dumb: use monitel top --once"
    )


def row_of(screen: str, job: Job) -> list[str]:
    """Return the words in the row of a process on a screen; empty if it has none."""
    rows = (line.split() for line in screen.split("\n"))
    return next((row for row in rows if row[1:2] == [f"{job.process.pid}"]), [])


@needs_tmux
def test_screen_shows_the_ranks_and_follows_keys_and_size(tmp_path: Path, own_boxes: Path) -> None:
    """Steps go on, a death appears, a filter, another order, help and details work."""
    pytest.importorskip("textual", reason="the extra monitel[top] is not installed")
    top = (sys.executable, *MONITEL, "top", str(own_boxes))
    with ranks(tmp_path, loop(), loop(until=10, then=HANG), loop()) as running, terminal(tmp_path, *top) as screen:
        screen.until(lambda: all(row_of(screen.text, job) for job in running), "a row for each rank")
        before = running[0].notes[-1].step
        screen.until(lambda: int((row_of(screen.text, running[0]) or ["0"] * 4)[3]) > before, "a new step")
        assert int(row_of(screen.text, running[0])[3]) <= running[0].notes[-1].step + 1
        seen = screen.until_shown(" s all_reduce", "3 alive")
        assert ["1", f"{running[1].process.pid}", "alive", "9"] == row_of(seen, running[1])[:4]
        screen.press("/", "all_red", "Enter")
        screen.until(lambda: not row_of(screen.text, running[0]), "rows without the text are hidden")
        assert row_of(screen.text, running[1])
        screen.press("Escape")
        screen.until(lambda: row_of(screen.text, running[0]), "all rows")
        screen.press("s")
        screen.until_shown("by pid, ascending")
        screen.press("<", "r")
        screen.until_shown("by rank, descending")
        screen.press("Home", "Down", "Down", "Enter")
        screen.until_shown(f"process {running[1].process.pid}, host", "all_reduce for", "stacks now", "in stuck_here")
        screen.press("Escape")
        screen.until_shown("by rank, descending")
        screen.press("?")
        screen.until_shown("Page up")
        screen.press("?")
        screen.until(lambda: "Page up" not in screen.text, "the help is hidden")
        screen.resize(50, 12)
        screen.until_shown("RANK STATE    STEP STEP/S WAITING")
        screen.resize(200, 20)
        screen.until_shown("GOODPUT", "LAST EVENT", " MiB ")
        running[2].kill()
        screen.until_shown("1 dead, 2 alive", "dead: rank 2 ", "cause unknown, as after SIGKILL")
        assert [None, None] == [running[0].process.poll(), running[1].process.poll()]


#: Hangs in a function with a name after 50 steps, and a NaN.
HANGS = f"""
lr = Stat("lr", [COUNT], 1e9, attributes={{"group": "head"}})
lr.add(float("nan"))
{HANG.replace('activity("stuck")', 'activity("checkpoint.save")')}
"""


def complete(report: Any) -> bool:
    """Return True if the report has what the process has done last; its box is written once a second."""
    return [("checkpoint.save", 1)] == [(each["activity"], len(each["waits"])) for each in report["processes"]]


def test_dead_process_is_read_in_its_box_and_its_spool(tmp_path: Path, console: Console, own_boxes: Path) -> None:
    """Nothing of it changes until it is collected. A NaN is text in JSON."""
    with jobs(tmp_path, loop(until=50, then=HANGS)) as (job,):
        pid = job.process.pid
        console.until(complete, "autopsy", pid)
        job.kill()
        (box,) = own_boxes.iterdir()
        before = {each.name: each.read_bytes() for each in box.iterdir()}
        for target in ([], [box], [own_boxes]):
            (found,) = console.json("autopsy", *target)["processes"]
            assert ("dead", pid, None, str(box)) == tuple(found[each] for each in ("state", "pid", "death", "box"))
        windows = {each["name"]: each for each in found["windows"]}
        assert ({"group": "head"}, 1, "NaN") == tuple(windows["lr"][name] for name in ("attributes", "count", "last"))
        assert (49, 50) == (found["step"], windows["train.loss"]["count"])
        text = console("autopsy", pid).stdout
        assert "state dead: cause unknown, as after SIGKILL or by the OOM killer; last sign of" in " ".join(
            text.split()
        )
        assert text.endswith(f"\nmonitel replay {own_boxes} --endpoint http://HOST:4318\n")
        assert before == {each.name: each.read_bytes() for each in box.iterdir()}
        console("replay", own_boxes, status=1, env={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/"})
        assert [] == [*own_boxes.iterdir()]
        spool = job.folder / "spool"
        for words, env in (([spool], {}), ([pid], {"MONITEL_SPOOL_DIR": str(spool)})):
            text = console("autopsy", *words, env=env).stdout
            assert f"process {pid}, host " in text
            assert re.search(r"\nstep           49, set .* before the last sign of life", text)
            assert "process.died" in text


@pytest.mark.parametrize("command", [("top", "--once"), ("autopsy",)], ids=lambda command: command[0])
def test_nothing_there_and_unknown_targets(tmp_path: Path, console: Console, command: tuple[str, ...]) -> None:
    """A sentence and the status 0 without a box; an unknown process or folder has the status 1, and a reason."""
    assert console(*command).stdout.startswith("no black boxes of this user on this machine")
    found = console.json(*command)
    assert [] == (found if isinstance(found, list) else found["processes"] + found["jobs"])
    for target, words in {
        "4194305": "no such process runs",
        f"{os.getpid()}": "the process runs, but",
        "missing": "there is no folder",
        f"{tmp_path}": "it holds no black box",
    }.items():
        ended = console(*command, target, status=1)
        assert ("", True) == (ended.stdout, ended.stderr.startswith("monitel: "))
        assert words in " ".join(ended.stderr.split())
