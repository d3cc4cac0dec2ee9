"""The processes of one job and one rank: forked children, launchers, and programs that call exec."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.support.scripts import PRELUDE
from tests.unit.console.top.noted_jobs import PATIENCE_S, STEPS, by_rank, jobs, looking, ranks_of, until

from monitel_otlp.top.rank import RankState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Makes four steps, forks a child that records an event and waits for a line, and makes steps until it is ended.
FORKING = f"""{STEPS}
run(range(4))
if os.fork() == 0:
    monitel.emit("upload")
    sys.stdin.readline()
    sys.exit(0)
run(range(4, 1_000_000))
"""
#: Starts two ranks of a job without a run id, as mpirun does.
LAUNCHER = f"""
import subprocess
rank = '''{PRELUDE}
pipeline = monitel_otlp.configure(service_name="llm", spool_dir="spool")
monitel.set_step(1)
monitel.emit("begin")
print("ready", flush=True)
sys.stdin.readline()
'''
names = {{"RANK": "0", "WORLD_SIZE": "2"}}, {{"RANK": "1", "WORLD_SIZE": "2"}}
ranks = [subprocess.Popen([sys.executable, "-c", rank], env={{**os.environ, **each}}) for each in names]
for each in ranks:
    each.wait()
"""
#: Records an event, and becomes another program when it gets a line.
BECOMING = """
pipeline = monitel_otlp.configure(service_name="llm", spool_dir="spool")
monitel.set_step(7)
monitel.emit("begin")
print("ready", flush=True)
sys.stdin.readline()
os.execv("/bin/cat", ["cat"])
"""


def plain(_name: str) -> Mapping[str, str]:
    """Return no variables."""
    return {}


def test_forked_child_does_not_hide_the_death_of_its_rank(tmp_path: Path, own_boxes: Path) -> None:
    """The child has the rank and the step of its parent, and makes no steps. It lives on, and then ends by itself."""
    with ranks_of(tmp_path, {"0": FORKING}) as running, looking(own_boxes) as ranks:
        process = running["0"].process

        def kinds() -> list[tuple[str, Any]]:
            return [(job.verdict.kind, job.verdict.rank) for job in ranks.look().jobs]

        look = until(ranks, lambda look: len(look.ranks) == 2 and all(row.event is not None for row in look.ranks))
        assert [2] == [len(job.ranks) for job in look.jobs]
        process.kill()
        process.wait(PATIENCE_S)
        until(ranks, lambda look: {RankState.DEAD, RankState.ALIVE} == {row.state for row in look.ranks})
        assert [("dead", 0)] == kinds()
        assert process.stdin is not None
        process.stdin.write("end\n")
        process.stdin.flush()
        until(ranks, lambda look: {RankState.DEAD, RankState.ENDED} == {row.state for row in look.ranks})
        assert [("dead", 0)] == kinds()


def test_jobs_of_two_launchers_are_two_jobs(tmp_path: Path, own_boxes: Path) -> None:
    """Their names are the same, and they have no run id."""
    with jobs(tmp_path, {"a": LAUNCHER, "b": LAUNCHER}, plain), looking(own_boxes) as ranks:
        look = until(ranks, lambda look: len(look.ranks) == 4)
        assert [[0, 1], [0, 1]] == [[row.rank for row in job.ranks] for job in look.jobs]
        assert 2 == len({job.name.launcher for job in look.jobs})


def test_process_that_calls_exec_has_ended(tmp_path: Path, own_boxes: Path) -> None:
    """A program that is replaced by another one has not died."""
    with ranks_of(tmp_path, {"0": BECOMING}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: by_rank(look)[0].step == 7)
        stdin = running["0"].process.stdin
        assert stdin is not None
        stdin.write("become\n")
        stdin.flush()
        look = until(ranks, lambda look: by_rank(look)[0].state is not RankState.ALIVE)
        row = by_rank(look)[0]
        assert (RankState.ENDED, "replaced by exec") == (row.state, row.death)
        assert "dead" != look.jobs[0].verdict.kind
        assert time.time_ns() - row.seen_ns < PATIENCE_S * 1e9
