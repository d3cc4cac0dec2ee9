"""An interactive shell controls a job with ``monitel run`` as without."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from tests.processes.console.commands import RUN
from tests.processes.console.tmux import needs_tmux, shell

pytestmark = [pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"), needs_tmux]
#: Reads a line, and prints that it was continued.
READING = """\
import os, signal, sys
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"[SIGCONT]\\n"))
print("got=" + sys.stdin.readline(), flush=True)
"""


def test_command_that_stops_itself(tmp_path: Path) -> None:
    """A pager or an editor does that: the shell gets the terminal."""
    with shell(tmp_path) as screen:
        screen.press(shlex.join([*RUN, "sh", "-c", "kill -TSTP $$; echo contin''ued; exit 6"]), "Enter")
        screen.until_shown("Stopped")
        screen.press("fg", "Enter")
        screen.until_shown("continued")
        screen.press("echo status=$?", "Enter")
        screen.until_shown("status=6")


def test_job_in_the_background_is_stopped_at_input(tmp_path: Path) -> None:
    """A job in the background that reads the terminal stops, and reads it in the foreground."""
    with shell(tmp_path) as screen:
        (tmp_path / "reading.py").write_text(READING)
        screen.press(shlex.join([*RUN, sys.executable, "-I", "-S", "reading.py"]) + " &", "Enter")
        screen.press("until jobs | grep -q Stopped; do :; done; echo stop''ped", "Enter")
        screen.until_shown("stopped")
        screen.press("fg", "Enter")
        screen.until_shown("[SIGCONT]")  # the terminal is its own
        screen.press("input", "Enter")
        screen.until_shown("got=input")
