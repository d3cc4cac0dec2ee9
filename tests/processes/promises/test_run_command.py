"""``monitel run -- COMMAND``: the command runs as without it, and the Python programs in it are recorded."""

import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.console.commands import (
    PYTHON,
    RUN,
    Outcome,
    both,
    check_same,
    is_running,
    outcome,
    pending,
    record,
    recording,
    rest,
    running,
)
from tests.processes.console.tmux import needs_tmux, shell
from tests.processes.patience import SHORT, patience
from tests.support.checks import wait_until
from tests.support.hostile import url_of
from tests.support.inbox import DEADLINE
from tests.support.receiver import Receiver
from tests.support.scripts import read_line, write_line

NOTHING = "monitel run: nothing was recorded\n"


@pytest.fixture
def nothing_is_left(own_boxes: Path, tmp_path: Path) -> Iterator[None]:
    yield
    assert [] == [*own_boxes.parent.glob(f"{own_boxes.name}-run-*")]
    assert {"ledgers"} >= {each.name for each in (tmp_path / "state/monitel").glob("*")}


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", -signal.SIGKILL), ("kill -15 $$", -signal.SIGTERM)],
)
def test_end_is_that_of_the_command(script: str, status: int) -> None:
    """Exit status, or death by the same signal; both streams; one line of summary; nothing is left."""
    ended = check_same(["sh", "-c", f"cat; echo warning >&2; {script}"], "input\n")
    assert Outcome(status, "input\n", "warning\n", NOTHING) == ended


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["no-such-command"], 127, "monitel: 'no-such-command': command not found\n"),
        (["./plain"], 126, "monitel: './plain' cannot be executed: Permission denied\n"),
    ],
)
def test_command_that_cannot_be_started(command: list[str], status: int, message: str) -> None:
    """The exit status is that of a shell, and the message names the command."""
    Path("plain").write_text("#!/bin/sh\n")
    ended = outcome([*RUN, *command])
    assert (status, "", message) == (ended.status, ended.stdout, ended.summary)


def test_wrong_option_starts_nothing() -> None:
    """The status is 2, and the value of an unknown option, which may be a token, is not shown."""
    ended = outcome([*RUN[:-1], "--token=sec ret", "touch", "started"])
    assert 2 == ended.status
    assert "unrecognized arguments: --token" in ended.stderr + ended.summary
    assert "sec ret" not in ended.stderr + ended.summary
    assert not Path("started").exists()


def variables(stdout: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in stdout.split("\0") if entry)


@pytest.mark.usefixtures("nothing_is_left")
def test_environment_has_two_more_variables() -> None:
    """``PYTHONPATH`` has one more folder in front, and the folder of the run is gone afterwards."""
    without, with_run = both(["env", "-0"], env={**os.environ, "PYTHONPATH": "/theirs"})
    before, after = variables(without.stdout), variables(with_run.stdout)
    assert {"MONITEL_RUN_FOLDER"} == {*after} - {*before}
    folder, theirs = after.pop("PYTHONPATH").split(":")
    assert ("/theirs", True) == (theirs, Path(folder, "sitecustomize.py").exists())
    assert not Path(after.pop("MONITEL_RUN_FOLDER")).exists()
    assert after == {name: value for name, value in before.items() if name != "PYTHONPATH"}


def test_options_become_variables() -> None:
    """The endpoint takes the place of the variables of single signals."""
    given = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://other:1/v1/metrics"}
    given["OTEL_RESOURCE_ATTRIBUTES"] = "team=a,training.run.id=other"
    options = ["--endpoint", "http://localhost:9", "--service-name", "mine", "--name", "run 7"]
    command = [*RUN[:-1], *options, "env", "-0"]
    after = variables(outcome(command, env={**os.environ, **given}).stdout)
    words = ("OTLP", "SERVICE", "RESOURCE", "RUN_N")
    assert {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:9",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a",
        "OTEL_SERVICE_NAME": "mine",
        "MONITEL_RUN_NAME": "run 7",
    } == {name: value for name, value in after.items() if any(word in name for word in words)}


@pytest.mark.parametrize(
    ("variable", "value", "signals"),
    [("OTEL_LOGS_EXPORTER", "none", {"metrics"}), ("OTEL_SDK_DISABLED", "true", set())],
)
def test_signal_that_is_off_is_sent_by_neither_process_nor_command(
    receiver: Receiver, variable: str, value: str, signals: set[str]
) -> None:
    """The command logs the begin and the end of the attempt otherwise."""
    script = "import monitel; monitel.stat('loss').add(1); monitel.emit('event')"
    options = ["--endpoint", receiver.url, "--", sys.executable, "-c", script]
    assert 0 == outcome([*RUN[:-1], *options], env={**os.environ, variable: value}).status
    assert signals == {request.signal for request in receiver.requests}
    assert signals or not any(Path("state").rglob("*"))


@pytest.mark.usefixtures("nothing_is_left")
def test_nested_run_only_runs_its_command() -> None:
    """The inner one is replaced by the command, without its options, and the summary is printed once."""
    script = "import os, sys; print(os.getppid() == int(sys.argv[1]), os.environ['MONITEL_RUN_NAME']); sys.exit(9)"
    outer, inner = ([*RUN[:-1], "--name", name, "--"] for name in ("outer", "inner"))
    ended = outcome(["sh", "-c", 'exec "$@" $$', "sh", *outer, *inner, *PYTHON, script])
    assert (9, "True outer\n", NOTHING) == (ended.status, ended.stdout, ended.summary)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signal_arrives(name: str) -> None:
    """One to ``monitel run`` alone arrives once, twice; one that a process has sent to the group, once or twice."""
    with recording() as (process, command):
        assert command != process.pid
        for _ in range(2):
            process.send_signal(signal.Signals[name])
            assert name == read_line(process)
        os.killpg(process.pid, signal.Signals[name])
        first = read_line(process)
        process.send_signal(signal.SIGRTMIN)  # passed on after the other one, which has a lower number
        found = [first]
        while found[-1] != "SIGRTMIN":
            found.append(read_line(process))
        assert {name, "SIGRTMIN"} == {*found, *rest(process)}


def test_signals_are_not_passed_on_under_slurm() -> None:
    """SLURM signals all processes of a job."""
    with recording(SLURM_JOB_ID="7") as (process, command):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)  # handled first
        wait_until(lambda: not pending(process.pid), "the end of the signals")
        os.kill(command, signal.SIGUSR2)
        assert ["SIGUSR2"] == [read_line(process), *rest(process)]


def test_command_that_handles_sigterm_decides_the_status() -> None:
    """A program may write a checkpoint first."""
    script = "trap 'echo saved; exit 9' TERM; echo ready; while :; do sleep 0.01; done"
    with running("sh", "-c", script) as job:
        assert "ready" == read_line(job)
        job.send_signal(signal.SIGTERM)
        assert ("saved", 9) == (read_line(job), job.wait(60))


def test_job_goes_on_if_run_is_killed() -> None:
    """Input and output still work."""
    with running("sh", "-c", "echo $$; read line; echo $line > answer; mv answer done") as process:
        command = int(read_line(process))
        process.kill()
        process.wait()
        assert is_running(command)
        write_line(process, "still here")
        wait_until(Path("done").exists)
    assert "still here\n" == Path("done").read_text()


#: Prints the signals of a terminal, and the lines that it reads.
JOB = """\
import os, signal, sys
def note(number, frame):
    os.write(1, b"[%s]\\n" % signal.Signals(number).name.encode())
for number in (signal.SIGINT, signal.SIGCONT, signal.SIGWINCH):
    signal.signal(number, note)
print("foreground", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
for line in sys.stdin:
    print("got", line.strip(), flush=True)
sys.exit(3)
"""


@needs_tmux
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_job_control_of_a_terminal(tmp_path: Path) -> None:
    r"""Ctrl-C arrives once, Ctrl-Z and fg work, as does a stop from inside; Ctrl-\ ends the command."""
    (tmp_path / "job.py").write_text(JOB)
    command = shlex.join([*RUN, sys.executable, "-I", "-S", "job.py"])
    with shell(tmp_path) as screen:
        screen.press(command, "Enter")
        screen.until_shown("foreground True")
        screen.press("C-c")
        screen.until_shown("[SIGINT]")
        screen.resize(140, 50)
        screen.until_shown("[SIGWINCH]")
        screen.press("one", "Enter")
        assert 1 == screen.until_shown("got one").count("[SIGINT]")
        screen.press("C-z")
        screen.until_shown("Stopped")
        screen.press("echo status=$?", "Enter")
        screen.until_shown("status=148")
        screen.press("fg", "Enter")
        screen.until_shown("[SIGCONT]")
        screen.press("two", "Enter")
        assert 1 == screen.until_shown("got two").count("[SIGINT]")
        screen.press("C-d")
        screen.until_shown(NOTHING.strip())
        screen.press("echo end=$?", "Enter")
        screen.until_shown("end=3")
        screen.press(shlex.join([*RUN, "sleep", "1000"]), "Enter")
        wait_until(lambda: any(each.startswith("sleep\0") for each in commands(screen.pid)), "the command")
        screen.press("C-\\")
        screen.until(lambda: screen.text.count(NOTHING.strip()) == 2, "the second summary")
        screen.press("echo end=$?", "Enter")
        screen.until_shown("end=131")
        screen.press(shlex.join([*RUN, "sh", "-c", "kill -TSTP $$; echo contin''ued; exit 6"]), "Enter")
        screen.until(lambda: screen.text.count("Stopped") == 2, "a command that stops itself, as a pager does")
        screen.press("fg", "Enter")
        screen.until_shown("continued")
        screen.press("echo end=$?", "Enter")
        screen.until_shown("end=6")


def commands(pid: int) -> list[str]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        found += [Path(f"/proc/{child}/cmdline").read_text(), *commands(int(child))]
    return found


LOSS = """\
import os, signal, sys, time
import monitel
for step in range(5):
    monitel.set_step(step)
    monitel.stat("loss", [monitel.COUNT], 1e9).add(step)
monitel.emit("epoch")
print("trained", flush=True)
"""


@pytest.mark.usefixtures("nothing_is_left", "run_events")
def test_program_is_exported_without_code(receiver: Receiver) -> None:
    """All items arrive once, with the name of the option; no argument is sent, and nothing is on disk."""
    options = ("--endpoint", receiver.url, "--service-name", "job", "--name", "run-7")
    ended = record(LOSS + patience(), *options, arguments=["--token", "hf_secret"])
    assert (0, "trained\n", "") == (ended.status, ended.stdout, ended.stderr)
    assert ["run.started", "epoch", "run.ended", "attempt.started", "attempt.ended"] == receiver.record_names()
    assert [5] == receiver.values("loss.count")[-1:]
    resources = [each.resource for each in receiver.all_points()] + [each.resource for each in receiver.records()]
    assert {("job", "run-7")} == {(each["service.name"], each["training.run.id"]) for each in resources}
    assert not any(b"hf_secret" in request.body for request in receiver.requests)
    assert "monitel run: job, run run-7, 5 steps" in ended.summary


#: It is written within a second.
LEDGER = "while not os.path.exists('spools/ledgers'): time.sleep(0.01)\n"
TENSORBOARD = "import monitel_tensorboard\nmonitel_tensorboard.install('runs')\n"
#: Hides the exporters from a process.
NO_EXPORTERS = """\
import importlib.metadata
found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **given: () if given == {"group": "monitel.exporters"} else found(**given)
"""


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("end", "status", "expected"),
    [
        ("raise SystemExit(3)", 3, "monitel run: run x, 5 steps"),
        (LEDGER + "os.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL at step 4"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15, " preempted"),
        (TENSORBOARD + "os.kill(os.getpid(), signal.SIGTERM)", -15, " preempted"),
        ("sys.excepthook = lambda *_: None; raise KeyboardInterrupt", -2, " interrupted"),
    ],
)
def test_core_alone_records_for_the_summary(tmp_path: Path, end: str, status: int, expected: str) -> None:
    """Without an exporter nothing is delivered or on disk, and OpenTelemetry is not loaded."""
    (tmp_path / "sitecustomize.py").write_text(NO_EXPORTERS)
    shown = "print([name for name in sys.modules if 'opentelemetry' in name], flush=True)"
    Path("train.py").write_text(f"{LOSS}{shown}\n{end}\n")
    main = f"{NO_EXPORTERS}import sys\nfrom monitel_run.__main__ import run\nrun(sys.argv[1:])"
    command = [sys.executable, "-c", main, "--name", "x", "--", sys.executable, "train.py"]
    spools = tmp_path / "spools"  # of which only the ledgers of runs are used
    ended = outcome(command, env={**os.environ, "PYTHONPATH": str(tmp_path), "MONITEL_SPOOL_DIR": str(spools)})
    assert ["ledgers"] == [each.name for each in spools.iterdir()]
    assert (status, "trained\n[]\n", "") == (ended.status, ended.stdout, ended.stderr)
    assert expected in ended.words
    assert ("died" in ended.words) == (status == -9)
    assert not re.search("on disk|exported|lost", ended.words)
    refused = outcome([*command[:3], "--endpoint", "http://localhost:9", "touch", "started"])
    assert (2, False) == (refused.status, Path("started").exists())
    assert "--endpoint requires an exporter: pip install monitel-otlp" in refused.stderr + refused.summary


def test_backend_that_hangs_delays_the_end_by_some_seconds(blackhole: socket.socket) -> None:
    """The status is that of the command, and the summary says what is kept, and how it is delivered."""
    script = f"{LOSS}{patience(SHORT)}sys.exit(7)\n"
    began = time.monotonic()
    ended = record(script, "--endpoint", url_of(blackhole), OTEL_EXPORTER_OTLP_TIMEOUT="250", MONITEL_SPOOL_DIR="spool")
    assert DEADLINE > time.monotonic() - began
    assert (7, "trained\n") == (ended.status, ended.stdout)
    assert all(each.endswith(": timed out; everything is kept and retried") for each in ended.stderr.splitlines())
    assert "monitel: delivering the remaining telemetry; Ctrl-C stops the delivery" in ended.summary
    assert f" on disk 2 items, deliver with: monitel replay {Path('spool').resolve()}" in ended.words


def test_other_programs_are_not_touched() -> None:
    """A Python that imports neither torch nor monitel loads nothing of monitel."""
    script = "import sys; print(sorted(name for name in sys.modules if name.startswith(('monitel', 'opentelemetry'))))"
    assert "[]\n" == check_same([sys.executable, "-c", script]).stdout
