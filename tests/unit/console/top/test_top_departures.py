"""Boxes that appear, die and vanish while they are watched."""

from __future__ import annotations

import sys
from shutil import rmtree
from subprocess import PIPE, Popen, run
from typing import TYPE_CHECKING

import pytest
from tests.unit.console.top.noted_jobs import (
    ENDLESS,
    PATIENCE_S,
    SHORT,
    by_rank,
    jobs,
    looking,
    ranks_of,
    until,
)

from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.collection.death import Deaths, End
from monitel_otlp.spool.folder import SpoolError
from monitel_otlp.top.rank import RankState

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.console.top.noted_jobs import Job

    from monitel_otlp.top.rank import Look


def kill(job: Job) -> None:
    """Kill a job, and wait for its end."""
    job.process.kill()
    job.process.wait(PATIENCE_S)


def states(look: Look) -> dict[int | None, RankState]:
    """Return the states by rank."""
    return {each.rank: each.state for each in look.ranks}


def test_box_that_appears_is_shown(tmp_path: Path, own_boxes: Path) -> None:
    """The command was there before the job; the folder of the boxes was not."""
    with looking() as ranks:
        assert () == ranks.look().jobs
        with ranks_of(tmp_path, {"0": ENDLESS}) as running:
            (row,) = until(ranks, lambda look: look.ranks).ranks
            assert running["0"].process.pid == row.pid


def test_rank_that_ends_by_itself_has_ended(tmp_path: Path, own_boxes: Path) -> None:
    """Its last step is kept, which is not that of the last look."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": SHORT}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: len(look.ranks) == 2 and by_rank(look)[1].value is not None)
        running["1"].process.communicate("end\n", timeout=PATIENCE_S)
        look = until(ranks, lambda look: states(look)[1] is RankState.ENDED)
        row = by_rank(look)[1]
        assert (9, "", None) == (row.step, row.death, row.rate)
        assert RankState.ALIVE is states(look)[0]
        assert row.value in {note.loss for note in running["1"].notes()}


@pytest.mark.parametrize("seen_dead", [True, False])
def test_killed_rank_stays_when_its_box_is_collected(tmp_path: Path, own_boxes: Path, seen_dead: bool) -> None:
    """The cause comes from the event in the spool, even if the box was collected between two looks."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: len(look.ranks) == 2)
        kill(running["1"])
        if seen_dead:
            assert (RankState.DEAD, "") == (states(ranks.look())[1], by_rank(ranks.look())[1].death)
        deaths = Deaths()
        deaths.add(running["1"].process.pid, End(signal=9))
        assert [] == collect_boxes(own_boxes, fallback=tmp_path, deaths=deaths).problems
        look = until(ranks, lambda look: by_rank(look)[1].death)
        row = by_rank(look)[1]
        assert (RankState.DEAD, "killed by SIGKILL") == (row.state, row.death)
        assert row.step in {note.step for note in running["1"].notes()[-2:]}
        assert RankState.ALIVE is states(look)[0]
        look = ranks.look()
        assert (RankState.DEAD, "killed by SIGKILL") == (states(look)[1], by_rank(look)[1].death)
        assert ("dead", 1) == (look.jobs[0].verdict.kind, look.jobs[0].verdict.rank)


def test_later_attempt_replaces_a_dead_rank(tmp_path: Path, own_boxes: Path) -> None:
    """As torchrun restarts all ranks."""

    def environment(name: str) -> dict[str, str]:
        attempt, _, rank = name.partition("-")
        return {"RANK": rank, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_RESTART_COUNT": attempt}

    with looking() as ranks, jobs(tmp_path, {"0-0": ENDLESS, "0-1": ENDLESS}, environment) as first:
        until(ranks, lambda look: len(look.ranks) == 2)
        for each in first.values():
            kill(each)
        assert {RankState.DEAD} == {*states(ranks.look()).values()}
        with jobs(tmp_path, {"1-0": ENDLESS, "1-1": ENDLESS}, environment) as second:
            look = until(ranks, lambda look: {RankState.ALIVE} == {*states(look).values()})
            assert {each.process.pid for each in second.values()} == {row.pid for row in look.ranks}
            assert [1] == [job.attempt for job in look.jobs]


def test_end_is_known_from_monitel_run(tmp_path: Path, own_boxes: Path) -> None:
    """``monitel run`` observes how the process ends, and delivers everything: there is no box and no spool any more."""
    script = tmp_path / "train.py"
    script.write_text(
        "import monitel, os, sys\nmonitel.set_step(3)\nmonitel.emit('epoch')\nprint('ready', flush=True)\n"
        "sys.stdin.readline()\nos.kill(os.getpid(), 9)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "monitel_otlp", "run", "sh", "-c", f"{sys.executable} {script}; read line"]
    with Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, cwd=tmp_path) as process, looking() as ranks:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert "ready\n" == process.stdout.readline()
            (row,) = until(ranks, lambda look: look.ranks).ranks
            assert RankState.ALIVE is row.state
            process.stdin.write("die\n")
            process.stdin.flush()
            (row,) = until(ranks, lambda look: look.ranks[0].death).ranks
            assert (RankState.DEAD, "killed by SIGKILL", 3) == (row.state, row.death, row.step)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("raise ValueError", ("failed", 1)), ("sys.exit(3)", ("failed", 1)), ("pass", ("unknown", None))],
)
def test_status_is_known_from_the_spool(
    tmp_path: Path, own_boxes: Path, monkeypatch: pytest.MonkeyPatch, ending: str, expected: tuple[str, int | None]
) -> None:
    """Without ``monitel run``, from the event about the end."""
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")
    script = f"{SHORT}{ending}\n"
    with ranks_of(tmp_path, {"0": SHORT, "1": script}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: len(look.ranks) == 2)
        for name in ("1", "0"):
            running[name].process.communicate("end\n", timeout=PATIENCE_S)
        look = until(ranks, lambda look: {RankState.ENDED} == {*states(look).values()})
        assert expected == (look.jobs[0].verdict.kind, look.jobs[0].verdict.rank)
        if expected[1] is not None:
            assert "failed: rank 1 failed at step 9" == look.jobs[0].verdict.text


def test_end_without_a_status_is_not_healthy(tmp_path: Path, own_boxes: Path) -> None:
    """The spool is gone, because a backend has it."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": SHORT}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: len(look.ranks) == 2)
        running["1"].process.communicate("end\n", timeout=PATIENCE_S)
        rmtree(tmp_path / "1" / "spool")
        look = until(ranks, lambda look: states(look)[1] is RankState.ENDED)
        found = look.jobs[0].verdict
        assert ("ended", 1) == (found.kind, found.rank)
        assert found.text.startswith("ended: rank 1 ended for an unknown reason at step 9, ")
        assert found.text.endswith(" ago; rank 0 runs on; look at the end of the output")


def test_targets_are_those_of_autopsy(tmp_path: Path, own_boxes: Path) -> None:
    """Process ids, boxes, their folder, and spools with collected boxes; several ones, each process once."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}) as running:
        pids = [running[name].process.pid for name in ("0", "1")]
        box = next(each for each in own_boxes.iterdir() if each.name.startswith(f"{pids[1]}-"))
        for targets, expected in (
            ([pids[0]], {pids[0]}),
            ([box], {pids[1]}),
            ([own_boxes], {*pids}),
            ([pids[1], box, pids[0]], {*pids}),
        ):
            with looking(*targets) as ranks:
                assert sorted(expected) == sorted(row.pid or 0 for row in ranks.look().ranks)
        for each in running.values():
            kill(each)
        outcome = collect_boxes(own_boxes, fallback=tmp_path)
        with looking(tmp_path / "0" / "spool") as ranks:
            (row,) = ranks.look().ranks
            assert (RankState.DEAD, pids[0]) == (row.state, row.pid)
            assert row.step is not None
            assert row.box in outcome.spools


def test_unknown_targets_are_refused_with_the_words_of_autopsy(tmp_path: Path) -> None:
    """A process without a box, a missing folder, and a folder with nothing in it."""
    for target, words in (
        (f"{2**22 + 1}", "there is no black box of process 4194305: no such process runs"),
        ("/nowhere", "there is no folder '/nowhere'"),
        (str(tmp_path), "it holds no black box, and no spool"),
    ):
        with pytest.raises(SpoolError, match=words):
            looking(target).__enter__()
        asked = run(
            [sys.executable, "-m", "monitel_otlp", "top", target, "--once"], capture_output=True, text=True, check=False
        )
        assert (1, "") == (asked.returncode, asked.stdout)
        assert words in asked.stderr
