"""Signals reach a command with ``monitel run`` as without: each one once, whoever it was sent to."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import wait_until
from tests.processes.console.commands import PREFIXES, PYTHON, RUN, SIGNALS, children, is_running, line, running, state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Signals that have no special meaning for a process that handles them.
ORDINARY = [
    *("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGABRT", "SIGALRM", "SIGCONT", "SIGTSTP"),
    *("SIGWINCH", "SIGURG", "SIGIO", "SIGPROF", "SIGVTALRM", "SIGXCPU", "SIGPWR", "SIGTTIN", "SIGRTMIN", "SIGRTMAX"),
]

#: Of several pending signals the one with the lowest number is handled first. When this one has been passed on, ``run``
#: has handled all others.
LAST = signal.SIGWINCH


@contextmanager
def recording(
    prefix: tuple[str, ...] = RUN, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a command that prints the signals that it receives; yield the first process, and its id."""
    with running([*prefix, *PYTHON, SIGNALS], env={**os.environ, **(env or {})}) as process:
        yield process, int(line(process))


def rest(process: subprocess.Popen[str]) -> list[str]:
    """End a command that prints signals, and return the lines that were not read."""
    stdout, _ = process.communicate(timeout=60)
    assert 0 == process.returncode
    return stdout.split()


@pytest.mark.parametrize("name", ORDINARY)
def test_signal_to_run_alone_is_passed_on(name: str) -> None:
    """The signal arrives once."""
    with recording() as (process, command):
        assert command != process.pid
        process.send_signal(signal.Signals[name])
        assert name == line(process)
        assert [] == rest(process)


@pytest.mark.parametrize("prefix", PREFIXES, ids=["without", "with"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGCONT", "SIGHUP"])
def test_signal_to_the_group_arrives_once(prefix: tuple[str, ...], name: str) -> None:
    """Twice in a row it arrives twice. The next signal shows that no further one was on its way."""
    with recording(prefix) as (process, _):
        for _ in range(2):
            os.killpg(process.pid, signal.Signals[name])
            assert name == line(process)
        process.send_signal(LAST)
        assert [LAST.name] == [line(process), *rest(process)]


def test_signals_to_the_group_and_to_run_alone_are_distinguished() -> None:
    """An earlier signal to the group has no effect on a later one."""
    with recording() as (process, _):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            os.killpg(process.pid, number)
            assert number.name == line(process)
            process.send_signal(LAST)
            assert LAST.name == line(process)
            process.send_signal(number)
            assert number.name == line(process)
        assert [] == rest(process)


def test_sender_that_signals_every_process() -> None:
    """The command receives one signal, and not a second one from ``run``, whoever comes first."""
    with recording() as (process, command):
        others = {*children(process.pid)} - {command}
        for order in ([process.pid, *others, command], [command, *others, process.pid]):
            for pid in order:
                os.kill(pid, signal.SIGTERM)
            assert "SIGTERM" == line(process)
        process.send_signal(signal.SIGUSR1)
        assert ["SIGUSR1"] == [line(process), *rest(process)]


@pytest.mark.parametrize("prefix", PREFIXES, ids=["without", "with"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT, signal.SIGUSR1])
def test_signal_to_the_command_alone(prefix: tuple[str, ...], number: int) -> None:
    """``run`` ends as the command does."""
    with running([*prefix, "sh", "-c", "ulimit -c 0; echo $$; read line"]) as process:
        os.kill(int(line(process)), number)
        assert -number == process.wait(60)


@pytest.mark.parametrize("prefix", PREFIXES, ids=["without", "with"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_that_ends_the_command(prefix: tuple[str, ...], number: int) -> None:
    """A command without a handler ends by the signal that was sent to ``run``."""
    with running([*prefix, "sh", "-c", "ulimit -c 0; echo $$; exec sleep 100"]) as process:
        command = int(line(process))
        process.send_signal(number)
        assert -number == process.wait(60)
        assert not is_running(command)


def test_exit_status_after_a_handled_signal() -> None:
    """A command that handles SIGTERM, for instance to write a checkpoint, decides its status."""
    with running([*RUN, "sh", "-c", "trap 'echo saved; exit 9' TERM; echo ready; while :; do sleep 0.01; done"]) as job:
        assert "ready" == line(job)
        job.send_signal(signal.SIGTERM)
        assert ("saved", 9) == (line(job), job.wait(60))


def test_nothing_is_passed_on_under_slurm() -> None:
    """SLURM signals all processes of a job."""
    with recording(env={"SLURM_JOB_ID": "7"}) as (process, command):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: not _pending(process.pid), "the end of the signals")
        os.kill(command, signal.SIGUSR2)
        assert ["SIGUSR2"] == [line(process), *rest(process)]


def _pending(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return any(int(each.split()[1], 16) for each in lines if each.startswith("ShdPnd:"))


def test_signal_of_the_command_to_its_parent_does_not_come_back() -> None:
    """Otherwise the command would be ended by it."""
    script = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); os.kill(os.getppid(), signal.SIGUSR1)"
    with running([*RUN, *PYTHON, f"{script}; print('sent', flush=True); input(); raise SystemExit(3)"]) as process:
        assert "sent" == line(process)
        wait_until(lambda: not _pending(process.pid))
        process.communicate("\n", timeout=60)
        assert 3 == process.returncode


def test_job_without_a_terminal_is_stopped_and_continued() -> None:
    """SIGTSTP and SIGCONT to ``run`` act on the command; the parent sees both stop and go on."""
    script = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: os.write(1, b'.'); time.sleep(0.01)"
    with running([*RUN, *PYTHON, script]) as process:
        command = int(line(process))
        process.send_signal(signal.SIGTSTP)
        # A session without a terminal is an orphaned group: there SIGTSTP has no effect by default.
        wait_until(lambda: not _pending(process.pid))
        assert (True, True) == (is_running(command), is_running(process.pid))
        os.kill(command, signal.SIGSTOP)
        wait_until(lambda: state(command) == "T")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state(command) != "T", "that the command goes on")
        assert state(process.pid) != "T"


def test_timeout_program_ends_the_job() -> None:
    """``timeout`` signals its child, and then the group; the command receives one signal."""
    script = "trap 'echo TERM; exit 4' TERM; while :; do sleep 0.01; done"
    command = ["timeout", "2", *RUN, "sh", "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (124, "TERM\n") == (ended.returncode, ended.stdout)


def test_parent_that_ignores_the_end_of_children() -> None:
    """An ignored SIGCHLD, which discards statuses, is not inherited."""
    script = "trap '' CHLD; \"$@\" sh -c 'exit 8'; echo $?"
    ended = subprocess.run(
        ["bash", "-c", script, "bash", *RUN], capture_output=True, text=True, timeout=60, check=False
    )
    assert "8\n" == ended.stdout
