"""Effects of ``monitel top`` on the jobs that it shows: there are none."""

from __future__ import annotations

import os
import signal
import sys
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING

from tests.unit.console.top.noted_jobs import ENDLESS, PATIENCE_S, STEPS, jobs, looking, ranks_of, until

from monitel_otlp.top.rank import RankState

if TYPE_CHECKING:
    from pathlib import Path

#: Makes forty steps, and prints its totals at its end.
COUNTED = f"""{STEPS}
run(range(40))
account = pipeline.account()
print(json.dumps([monitel.get_step(), {{name: dict(each.dropped) for name, each in account.items()}}]), flush=True)
"""


def files_below(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return inode, size, mode and times of a folder and everything in it."""
    found: dict[str, tuple[int, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        found[str(path)] = status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns
    return found


def test_no_file_is_written(tmp_path: Path, own_boxes: Path) -> None:
    """The process of one box is stopped, and that of the other one is dead, so any change would be ours."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}) as running:
        os.kill(running["0"].process.pid, signal.SIGSTOP)
        running["1"].process.kill()
        running["1"].process.wait(PATIENCE_S)
        before = files_below(own_boxes) | files_below(tmp_path)
        with looking(own_boxes) as ranks:
            until(ranks, lambda look: {RankState.SILENT, RankState.DEAD} == {row.state for row in look.ranks})
        assert before == files_below(own_boxes) | files_below(tmp_path)


def test_killing_the_command_changes_nothing_in_the_job(tmp_path: Path, own_boxes: Path) -> None:
    """The job makes all its steps and loses nothing, with and without a reader that is killed."""
    with jobs(tmp_path, {"watched": COUNTED, "alone": COUNTED}, lambda _: {}) as running:
        watched = running["watched"].process
        command = [sys.executable, "-m", "monitel_otlp", "top", f"{watched.pid}", "--json", "--interval", "0.1"]
        with Popen(command, stdout=PIPE, text=True) as top:
            assert top.stdout is not None
            for _ in range(3):
                assert top.stdout.readline().startswith('[{"time": "')
            top.kill()
        outcomes = {name: each.process.communicate(timeout=PATIENCE_S)[0] for name, each in running.items()}
        assert {0} == {each.process.returncode for each in running.values()}
        assert [40, 40] == [len(each.notes()) for each in running.values()]
        assert outcomes["alone"] == outcomes["watched"]
        assert outcomes["alone"].startswith("[39, ")
