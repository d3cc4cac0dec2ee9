"""``monitel top`` in a real terminal, on real processes: ranks that run, one that hangs, and one that is killed."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE
from tests.unit.console.autopsy.test_autopsy_processes import jobs
from tests.processes.console.tmux import needs_tmux, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.scripts import Process
    from tests.processes.console.tmux import Terminal

pytest.importorskip("textual", reason="the extra monitel-otlp[top] is not installed")
pytestmark = needs_tmux

TOP = [sys.executable, "-m", "monitel_otlp", "top"]
STAY = "exec tail -f /dev/null"  # the end of a script, which keeps its screen
#: Makes steps of 10 ms without end, of which rank 1 hangs in its 40th, and writes down each step that it makes.
STEPS = """
pipeline = monitel_otlp.configure(service_name="llm\\x1b[31m数据", spool_dir="spool")
monitel.emit("epoch.start", epoch=1)
loss = Stat("train.loss", [MEAN], 60.0)
notes = os.open("steps", os.O_WRONLY | os.O_CREAT)
rank = int(os.environ["RANK"])
for step in range(1, 10**6):
    monitel.set_step(step)
    os.pwrite(notes, b"%20d" % step, 0)
    loss.add(2.5)
    if step == 30:
        print("ready", flush=True)
    if rank == 1 and step == 40:
        with monitel.WaitCounter("all_reduce").guard():
            time.sleep(1000)
    time.sleep(0.01)
"""


@contextmanager
def ranks(folder: Path) -> Iterator[list[Process]]:
    """Run a job of three ranks."""
    names = {f"rank{number}": STEPS for number in range(3)}

    def env(name: str) -> dict[str, str]:
        rank = name.removeprefix("rank")
        run = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=run-7", "MONITEL_BLACK_BOX_DIR": str(folder / "boxes")}
        return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "3", **run}

    (folder / "boxes").mkdir(mode=0o700)
    with jobs(folder, names, env) as processes:
        yield [*processes.values()]


def steps_of(folder: Path, rank: int) -> int:
    """Return the last step that a rank has written down."""
    return int((folder / f"rank{rank}" / "steps").read_text())


def row_of(screen: str, process: Process) -> list[str]:
    """Return the words in the row of a process; empty if it has none."""
    rows = (line.split() for line in screen.split("\n"))
    return next((row for row in rows if row[1:2] == [str(process.pid)]), [])


@contextmanager
def top(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """Run ``monitel top`` on the boxes of the job."""
    with terminal(folder, *TOP, str(folder / "boxes"), env=env) as made:
        yield made


def test_screen_shows_the_truth_about_ranks_that_run_hang_and_die(tmp_path: Path) -> None:
    """The row of each rank agrees with what the rank itself has written down, and a death appears with its row."""
    with ranks(tmp_path) as processes, top(tmp_path) as screen:
        screen.until(lambda: all(row_of(screen.text, process) for process in processes), "a row for each rank")
        before = steps_of(tmp_path, 0)

        def step() -> int:
            row = row_of(screen.text, processes[0])
            return int(row[3]) if row and row[3].isdecimal() else 0

        screen.until(lambda: step() > before, "a new step in the row of rank 0")
        shown = step()
        assert before < shown <= steps_of(tmp_path, 0)
        row = row_of(screen.text, processes[0])
        assert ["0", str(processes[0].pid), "alive"] == row[:3]
        assert "2.5" in row
        seen = screen.until_shown(" s all_reduce")
        assert ["1", str(processes[1].pid), "alive", "40"] == row_of(seen, processes[1])[:4]
        assert "1 job, 3 processes: 3 alive" in seen
        assert r"llm\x1b[31m数据, run run-7, 3 of 3 ranks, on " in seen
        processes[2].kill()
        seen = screen.until_shown("2 alive, 1 dead", "dead: rank 2 ")
        assert ["2", str(processes[2].pid), "dead"] == row_of(seen, processes[2])[:3]
        assert "cause unknown, as after SIGKILL" in seen
        assert [None, None, -signal.SIGKILL] == [processes[0].poll(), processes[1].poll(), processes[2].wait()]


def test_keys_of_a_real_terminal_work(tmp_path: Path) -> None:
    """Arrows, function keys and letters arrive, and the screen follows another size."""
    with ranks(tmp_path) as processes, top(tmp_path) as screen:
        screen.until_shown("3 alive", "all_reduce")
        screen.press("F4", "all_red", "Enter")
        seen = screen.until_shown("filter 'all_red'")
        screen.until(lambda: not row_of(screen.text, processes[0]), "rows without the text are hidden")
        assert row_of(seen, processes[1])
        screen.press("Escape")
        screen.until(lambda: row_of(screen.text, processes[0]), "all rows")
        screen.press("I")
        screen.until_shown("by rank, descending")
        screen.press("Home", "Down", "s")
        screen.until_shown(f"process {processes[1].pid}, host", "all_reduce for", "stacks at", "train.py", "line ")
        screen.press("q")
        screen.until_shown("by rank, descending")
        screen.press("F1")
        screen.until_shown("monitel top: keys and columns")
        screen.press("Escape")
        screen.until_shown("by rank, descending")
        screen.press("p")
        screen.until_shown("PAUSED")
        screen.press("p")
        screen.resize(50, 12)
        screen.until(lambda: max(map(len, screen.lines)) <= 50 and "GOODPUT" not in screen.text, "fewer columns")
        screen.until_shown("RANK STATE       STEP  STEP/S WAITING")
        screen.resize(200, 20)
        screen.until_shown("GOODPUT", "LAST EVENT")


@pytest.mark.parametrize(
    ("end", "status"),
    [("F10", 0), ("q", 0), ("C-c", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
)
def test_end_restores_the_terminal(tmp_path: Path, end: str | signal.Signals, status: int) -> None:
    """Keys and signals end it with the screen, the cursor and the modes of the terminal as they were."""
    (tmp_path / "boxes").mkdir()
    script = f"stty -g; sh -c 'echo $$ >pid; exec {shlex.join(TOP)}'; echo status $?; stty -g; {STAY}"
    env = {"MONITEL_BLACK_BOX_DIR": str(tmp_path / "boxes")}
    with terminal(tmp_path, "sh", "-c", script, env=env) as screen:
        screen.until_shown("no process of this user with a black box runs here: waiting for one")
        if isinstance(end, signal.Signals):
            os.kill(int((tmp_path / "pid").read_text()), end)
        else:
            screen.press(end)
        screen.until_shown("status ")
        screen.until(lambda: screen.lines[2], "the modes of the terminal")
        before, shown, after, *others = screen.lines
        assert (f"status {status}", before) == (shown, after)
        assert not any(others)
        assert "1" == screen.tmux("display-message", "-p", "#{cursor_flag}").strip()
        assert "0" == screen.tmux("display-message", "-p", "#{alternate_on}").strip()


def test_lost_terminal_ends_it(tmp_path: Path) -> None:
    """A terminal that is closed leaves no process behind."""
    (tmp_path / "boxes").mkdir()
    env = {"MONITEL_BLACK_BOX_DIR": str(tmp_path / "boxes")}
    with terminal(tmp_path, *TOP, env=env) as screen:
        screen.until_shown("waiting for one")
        process = os.pidfd_open(screen.pid)
    with os.fdopen(process):
        assert select.select([process], [], [], DEADLINE)[0], "the process goes on without its terminal"


def test_job_goes_on_when_it_is_killed(tmp_path: Path) -> None:
    """SIGKILL of ``monitel top`` changes nothing in the job: its ranks make steps, and the files stay."""
    with ranks(tmp_path) as processes, top(tmp_path) as screen:
        screen.until_shown("3 alive", "all_reduce")
        names = sorted(path.name for path in (tmp_path / "boxes").rglob("*"))
        os.killpg(screen.pid, signal.SIGKILL)
        before = steps_of(tmp_path, 0)
        screen.until(lambda: steps_of(tmp_path, 0) > before + 10, "ten more steps of rank 0")
        assert names == sorted(path.name for path in (tmp_path / "boxes").rglob("*"))
        assert [None] * 3 == [process.poll() for process in processes]


def test_no_color_is_respected(tmp_path: Path) -> None:
    """With NO_COLOR the screen has no colours; without it the state of a rank has one."""
    with ranks(tmp_path):
        with top(tmp_path) as screen:
            screen.until_shown("3 alive")
            assert re.search(r"\x1b\[32malive", screen.escapes)
        with top(tmp_path, env={"NO_COLOR": "1"}) as screen:
            screen.until_shown("3 alive")
            assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38)[;m]", screen.escapes)


@pytest.mark.parametrize(
    ("redirection", "variables", "reason"),
    [
        ("> out", "", "stdout is not one"),
        ("< /dev/null", "", "stdin is not one"),
        ("2> out", "", "stderr is not one"),
        ("", "TERM=dumb", "and TERM is 'dumb'"),
    ],
)
def test_other_streams_are_refused(tmp_path: Path, redirection: str, variables: str, reason: str) -> None:
    """Without a terminal the message names the option for scripts, and the exit status is 1."""
    script = f"{variables} {shlex.join(TOP)} {redirection}; echo status $?; cat out 2>/dev/null; {STAY}"
    env = {"MONITEL_BLACK_BOX_DIR": str(tmp_path)}
    with terminal(tmp_path, "sh", "-c", script, env=env, width=200) as screen:
        screen.until_shown("status 1", reason, "use monitel top --once, or --json for programs")


def test_without_a_terminal_nothing_is_drawn(tmp_path: Path) -> None:
    """In a pipe, as in a script, it ends with one line."""
    ended = subprocess.run(TOP, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert (1, "") == (ended.returncode, ended.stdout)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("monitel: monitel top needs a terminal, and stdin is not one: use monitel top --once")
