"""``monitel top`` and its terminal: what ends it, colours, and the packages that only the screen needs."""

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from tests.processes.console.jobs import MONITEL, jobs, loop
from tests.processes.console.tmux import needs_tmux, terminal
from tests.support.scripts import Run

TOP = (sys.executable, *MONITEL, "top")
#: Read by every Python below it: the packages cannot be found.
SITE = """\
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {"textual", "rich"} else found(name, path, target)
PathFinder.find_spec = find_spec
"""


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


def test_screen_names_the_command_that_installs_it(run: Run, tmp_path: Path) -> None:
    """Without the extra the command ends with one line; the table and JSON need no package."""
    (tmp_path / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    (line,) = run(*MONITEL, "top", returncode=1, env=env).stderr.splitlines()
    assert line.startswith("monitel: ")
    for words in ("pip install 'monitel[top]'", "--once", "--json"):
        assert words in line
    assert run(*MONITEL, "top", "--once", env=env).stdout.startswith("no black boxes")
    assert "[]\n" == run(*MONITEL, "top", "--once", "--json", env=env).stdout
