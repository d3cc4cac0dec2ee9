"""``monitel top`` while processes appear, end and are replaced, and the terminal in which it runs."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.jobs import MONITEL, Console, jobs, loop, ranks
from tests.processes.console.tmux import needs_tmux, terminal
from tests.support.scripts import Run, without


def states(rows: Mapping[Any, Any]) -> dict[Any, str]:
    return {rank: row["state"] for rank, row in rows.items()}


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


def test_process_whose_c_code_holds_the_gil_is_silent(tmp_path: Path, console: Console) -> None:
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


TOP = (sys.executable, *MONITEL, "top")


@needs_tmux
@pytest.mark.parametrize(
    ("end", "status"), [("q", 0), ("F10", 0), ("C-c", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_end_restores_the_terminal(tmp_path: Path, end: str | signal.Signals, status: int) -> None:
    """Keys and signals end it with the screen, the cursor and the modes of the terminal as they were."""
    pytest.importorskip("textual", reason="the extra monitel[top] is not installed")
    (tmp_path / "boxes").mkdir()
    top = f"sh -c 'echo $$ >pid; exec {shlex.join(TOP)}'"
    script = f"stty -g >modes; {top}; echo status $?; stty -g >>modes; touch over; exec tail -f /dev/null"
    with terminal(tmp_path, "sh", "-c", script, env={"MONITEL_BLACK_BOX_DIR": str(tmp_path / "boxes")}) as screen:
        screen.until_shown("no process of this user with a black box runs here: waiting for one")
        if isinstance(end, signal.Signals):
            os.kill(int((tmp_path / "pid").read_text()), end)
        else:
            screen.press(end)
        screen.until_shown("status ")
        screen.until((tmp_path / "over").exists, "the modes of the terminal")
        before, after = (tmp_path / "modes").read_text().splitlines()
        assert (before, [f"status {status}"]) == (after, [line for line in screen.lines if line])
        flags = screen.tmux("display-message", "-p", "#{cursor_flag} #{alternate_on}").strip()
        assert "1 0" == flags


@needs_tmux
def test_colours_are_left_out_with_no_color(tmp_path: Path, own_boxes: Path) -> None:
    """Without the variable the state of a rank has one."""
    with jobs(tmp_path, loop(), loop()):  # the row under the cursor has no colour
        script = f"{shlex.join([*TOP, str(own_boxes)])}; exec tail -f /dev/null"
        with terminal(tmp_path, "sh", "-c", script) as screen:
            screen.until(lambda: re.search(r"\x1b\[32malive", screen.escapes), "a colour")
        with terminal(tmp_path, "sh", "-c", script, env={"NO_COLOR": "1"}) as plain:
            plain.until(lambda: re.search(r"\d alive +\d", plain.text), "a row")
            assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38)[;m]", plain.escapes)


def test_screen_names_the_command_that_installs_it(run: Run) -> None:
    """Without the extra the command ends with one line; the table and JSON need no package."""
    env = without("textual", "rich")
    (line,) = run(*MONITEL, "top", returncode=1, env=env).stderr.splitlines()
    assert line.startswith("monitel: ")
    for words in ("pip install 'monitel[top]'", "--once", "--json"):
        assert words in line
    assert run(*MONITEL, "top", "--once", env=env).stdout.startswith("no black boxes")
    assert "[]\n" == run(*MONITEL, "top", "--once", "--json", env=env).stdout
