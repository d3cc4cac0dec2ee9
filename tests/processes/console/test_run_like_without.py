"""A command with ``monitel run`` in front of it ends, prints and inherits as without."""

import os
import signal
import stat
import sys
from pathlib import Path

from tests.processes.console.commands import PYTHON, RUN, check_same, is_running, outcome, pending, running
from tests.support.checks import wait_until
from tests.support.scripts import read_line

INHERITED = """\
import os, resource, signal, sys
with open("/proc/self/status") as file:
    lines = dict(line.split(":", 1) for line in file)
print({name: lines[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Umask", "NoNewPrivs", "CapEff", "Uid")})
print(os.getcwd(), os.nice(0), os.sched_getaffinity(0), open("/proc/self/oom_score_adj").read())
print([resource.getrlimit(number) for number in range(16)])
print([number for number in range(10) if os.path.lexists(f"/proc/self/fd/{number}")])
print(os.getsid(0) == os.getpgrp(), [os.isatty(number) for number in range(3)], sys.argv[1:])
"""


def test_command_inherits_everything() -> None:
    """Signals, limits, umask, niceness, descriptors, session and arguments are those of the caller."""
    script = (
        "trap '' HUP USR2; umask 027; ulimit -n 99; ulimit -c 0; ulimit -s 4000; cd /; exec 7</dev/null;"
        ' exec nice -n 5 "$@"'
    )
    arguments = ["--", "-x", "", "a b", "\udc80", "--endpoint", "*"]
    ended = check_same([*PYTHON, INHERITED, *arguments], before=["sh", "-c", script, "sh"])
    assert (0, True) == (ended.status, "'\\udc80'" in ended.stdout), ended


def test_blocked_and_ignored_signals_are_inherited() -> None:
    block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1});"
    block += "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGPIPE, signal.SIG_DFL);"
    block += "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    status = ["/bin/grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status"]
    assert "4200" in check_same(status, before=[*PYTHON, block]).stdout


def test_options_of_the_command_are_left_alone() -> None:
    """Without ``--`` the first word that is not an option begins the command."""
    assert "--endpoint x -- --help\n" == outcome([*RUN[:-1], "echo", "--endpoint", "x", "--", "--help"]).stdout
    assert "-- a\n" == outcome([*RUN, "echo", "--", "a"]).stdout


def test_command_starts_at_once() -> None:
    """Only modules of the standard library are loaded before, and none of those that find entry points."""
    ended = outcome([RUN[0], "-X", "importtime", *RUN[1:], "true"])
    loaded = {each.rpartition("|")[2].strip() for each in (ended.stderr + ended.summary).splitlines()}
    assert "monitel_run.command" in loaded
    assert set() == loaded & {"monitel", "importlib.metadata", "dataclasses", "tempfile"}


def test_reader_that_goes_away() -> None:
    script = '"$@" | head -n 1; echo "${PIPESTATUS[0]}"'
    assert "y\n141\n" == check_same(["yes"], before=["bash", "-c", script, "bash"]).stdout


def test_other_processes_of_the_command_go_on() -> None:
    """A daemon outlives the command, and the end does not wait for it."""
    ended = outcome([*RUN, "sh", "-c", "sleep 100 </dev/null >/dev/null 2>&1 & echo $!"])
    daemon = int(ended.stdout)
    assert (0, True) == (ended.status, is_running(daemon))
    os.kill(daemon, signal.SIGKILL)


def test_folder_of_a_run_is_private(own_boxes: Path) -> None:
    with running("sh", "-c", 'echo "$MONITEL_RUN_FOLDER"; read line') as process:
        folder = Path(read_line(process))
        assert folder.parent == own_boxes.parent
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
        assert {0o600} == {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
        process.communicate("end\n", timeout=60)


def test_no_place_for_a_folder() -> None:
    """The command runs without telemetry, and ends as it does."""
    code = "import os\ndef full(*_): raise OSError(28, 'No space left on device')\nos.mkdir = full\n"
    code += "from monitel_run.__main__ import main\nmain(['run', 'sh', '-c', 'exit 3'])"
    ended = outcome([sys.executable, "-c", code])
    message = "monitel: without telemetry, because there is no place for a folder: [Errno 28] No space left on device\n"
    assert (3, message) == (ended.status, ended.summary)


def test_signal_of_the_command_to_its_parent_does_not_come_back() -> None:
    """Otherwise the command would be ended by it."""
    script = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); os.kill(os.getppid(), signal.SIGUSR1)"
    with running(*PYTHON, f"{script}; print('sent', flush=True); input(); raise SystemExit(3)") as process:
        assert "sent" == read_line(process)
        wait_until(lambda: not pending(process.pid))
        process.communicate("\n", timeout=60)
        assert 3 == process.returncode


def test_parent_that_ignores_the_end_of_children() -> None:
    """An ignored SIGCHLD, which discards statuses, is not inherited."""
    script = "trap '' CHLD; \"$@\" sh -c 'exit 8'; echo $?"
    assert "8\n" == outcome(["bash", "-c", script, "bash", *RUN]).stdout
