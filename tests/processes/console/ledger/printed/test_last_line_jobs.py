"""The ledger at the end of real processes, and of those that are running or killed."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import wait_until
from tests.support.scripts import READY, finish, started, wait_until_ready, write_script

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.scripts import Run, Terminate

CONFIGURED = 'monitel_otlp.configure(spool_dir="spool", resource_attributes={"training.run.id": "run-7"})\n'
QUICK = CONFIGURED + 'with monitel.activity("data"): pass\nmonitel.set_step(1)\n'
#: A job that measures its time in two activities; the longest one is data.
JOB = (
    CONFIGURED
    + """\
def measured(seconds):
    begin = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - begin
with monitel.activity("data"):
    data = measured(monitel.ledger().elapsed_ns / 1e9 + 0.2)
monitel.set_step(1)
with monitel.activity("sa\\x1b[2Jve"):
    save = measured(0.1)
"""
)
ENDED = JOB + "print(data, save)\n"
START = "monitel ledger: "
ESCAPE = re.compile(r"\x1b\[\d+m")


def ledger_lines(stderr: str) -> list[str]:
    """Return the lines of the ledger, which are the last ones."""
    lines = stderr.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith(START)), len(lines))
    return lines[first:]


def run_in_terminal(folder: Path, script: str, columns: int, env: Mapping[str, str]) -> str:
    """Run a script with a terminal as its stderr, and return the output of the terminal."""
    terminal, stderr = os.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, str(write_script(folder, script))]
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    with subprocess.Popen(
        command, cwd=folder, env={**environment, "TERM": "xterm", **env}, stdout=subprocess.DEVNULL, stderr=stderr
    ) as process:
        os.close(stderr)
        found = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 65536):
                found += part
        os.close(terminal)
        assert 0 == process.wait(60)
    return found.decode().replace("\r\n", "\n")


def test_job_prints_its_ledger_last(run: Run, tmp_path: Path) -> None:
    """In a file it is one plain line, and the times are those that the job has measured."""
    ended = run(write_script(tmp_path, ENDED))
    data, save = map(float, ended.stdout.split())
    (line,) = ledger_lines(ended.stderr)
    assert line.isprintable()
    assert ended.stderr.splitlines()[-2].startswith("monitel: ")
    shares = {name: int(share) for name, share in re.findall(r"[(,] ?([^ ,]+) (\d+) %", line)}
    assert 100 == sum(shares.values())
    assert (
        {"startup", "data", "sa\\x1b[2Jve"} <= shares.keys() <= {"startup", "data", "sa\\x1b[2Jve", "step", "shutdown"}
    )
    assert line.endswith(f"); {shares['data']} % of the time went into waiting for data")

    table = run("-m", "monitel_otlp", "ledger", "run-7", "--spool-dir", "spool").stdout
    seconds = {name: float(each) for name, each in re.findall(r"^(\S+) .* (\S+) s +<?\d+ %$", table, re.MULTILINE)}
    assert {"data": data, "sa\\x1b[2Jve": save} == pytest.approx(
        {name: seconds[name] for name in ("data", "sa\\x1b[2Jve")}, abs=0.15
    )
    assert shares["data"] == pytest.approx(100 * data / seconds["total"], abs=5)


@pytest.mark.parametrize(
    ("env", "colours", "fills"),
    [({}, True, "█▓"), ({"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}, False, "#=")],
    ids=["colours", "plain"],
)
def test_job_prints_a_bar_in_a_terminal(tmp_path: Path, env: Mapping[str, str], colours: bool, fills: str) -> None:
    """The bar has the width of the terminal, less its last column."""
    printed = run_in_terminal(tmp_path, ENDED, 50, env)
    first, *lines = ledger_lines(printed)
    assert re.fullmatch(r"monitel ledger: \d+(\.\d)? s", first)
    assert colours is ("\x1b[31m" in "".join(lines))
    plain = [ESCAPE.sub("", line) for line in lines]
    assert all(line.isprintable() and len(line) <= 49 for line in plain)
    assert 49 == len(plain[0])
    assert set(fills) <= set(plain[0])
    assert re.search(r"\d+ % of the time went into waiting for data$", " ".join(" ".join(plain[1:]).split()))


def test_dumb_terminal_gets_a_plain_line(tmp_path: Path) -> None:
    """TERM=dumb is the terminal of editors and logs."""
    (line,) = ledger_lines(run_in_terminal(tmp_path, QUICK, 50, {"TERM": "dumb"}))
    assert line.isprintable()


@pytest.mark.parametrize(
    ("env", "script"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, QUICK),
        ({}, 'monitel_otlp.configure(spool_dir="spool")\nmonitel.emit("event")\n'),
        ({"OTEL_SDK_DISABLED": "true"}, QUICK),
    ],
    ids=["rank one", "no activity", "disabled"],
)
def test_processes_without_a_ledger_print_none(run: Run, tmp_path: Path, env: Mapping[str, str], script: str) -> None:
    """Other ranks, and processes without a step and an activity."""
    assert [] == ledger_lines(run(write_script(tmp_path, script), env=env).stderr)


def test_forked_child_prints_no_ledger(run: Run, tmp_path: Path) -> None:
    """Only the parent prints the ledger, once."""
    forked = QUICK + 'if os.fork() == 0:\n    monitel.set_step(7)\n    monitel.emit("child")\nelse:\n    os.wait()\n'
    ended = run("-W", "ignore", write_script(tmp_path, forked))
    assert 1 == ended.stderr.count(START)


def test_terminated_job_prints_its_ledger(terminate: Terminate) -> None:
    """After SIGTERM the ledger is printed like at any other end."""
    ended = terminate(JOB + READY + "time.sleep(60)\n", "")
    (line,) = ledger_lines(ended.stderr)
    assert "waiting for data" in line


def test_running_and_killed_job_in_another_terminal(run: Run, tmp_path: Path) -> None:
    """While the job runs, the command shows its heartbeat; after a kill it shows that there is none."""
    path = write_script(tmp_path, JOB + READY + "time.sleep(60)\n")

    def shown() -> str:
        return run("-m", "monitel_otlp", "ledger", "--spool-dir", "spool").stdout

    with started(tmp_path, path) as process:
        wait_until_ready(process)
        wait_until(lambda: any(tmp_path.glob("spool/ledgers/*/ledger.json")))
        assert "\nstate       running; its last heartbeat was " in shown()
        process.send_signal(signal.SIGKILL)
        finish(process)
    for file in tmp_path.glob("spool/ledgers/*/ledger.json"):
        text = file.read_text()
        (last_ns,) = map(int, re.findall(r'"last_ns":(\d+)', text))
        file.write_text(text.replace(str(last_ns), str(last_ns - 65 * 10**9)))  # instead of a minute's wait
    assert re.search(
        r"state killed or hung: its last heartbeat was at [-0-9: ]+, 1 min \d+ s ago", " ".join(shown().split())
    )
