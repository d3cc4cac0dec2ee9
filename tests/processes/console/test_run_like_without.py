"""A command with ``monitel run`` in front of it ends, prints and inherits as without."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import wait_until
from tests.processes.console.commands import PYTHON, RUN, both, check_same, children, is_running, line, outcome, running

from monitel_otlp.run.environment import INJECTED

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def nothing_is_left(own_boxes: Path, tmp_path: Path) -> Iterator[None]:
    """No file is left in memory or in the working directory by commands that record nothing."""
    yield
    assert [] == [*own_boxes.parent.glob(f"{own_boxes.name}-run-*")]
    assert not (tmp_path / "monitel-runs").exists()


@pytest.mark.parametrize("status", [0, 1, 2, 77, 126, 127, 130, 137, 255])
def test_exit_status_is_that_of_the_command(status: int) -> None:
    """The numbers that shells give to signals are ordinary exit statuses here."""
    assert status == outcome([*RUN, "sh", "-c", f"exit {status}"]).status


ALL_ENDS = """\
import os, signal, sys
sys.path[:0] = sys.argv[1:]
from monitel_otlp.run.exit_status import exit_like
deadly = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS,
    signal.SIGFPE, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM,
    signal.SIGTERM, signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGRTMIN + 3}
for status in [code << 8 for code in range(256)] + sorted(deadly):
    child = os.fork()
    if child == 0:
        exit_like(status)
    assert os.waitpid(child, 0)[1] == status, status
"""


def test_every_status_and_signal_is_passed_on(tmp_path: Path) -> None:
    """The process ends by the same exit code or signal, and no core file is written."""
    unlimited = resource.getrlimit(resource.RLIMIT_CORE)[1]
    ended = subprocess.run(
        [sys.executable, "-c", ALL_ENDS],
        timeout=60,
        check=False,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (unlimited, unlimited)),
    )
    assert (0, b"") == (ended.returncode, ended.stderr)
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["KILL", "TERM", "ABRT", "SEGV", "HUP", "USR1", "PIPE"])
def test_command_that_dies_by_a_signal(name: str) -> None:
    """A parent, for instance a scheduler, sees the same signal."""
    assert -signal.Signals[f"SIG{name}"] == check_same(["sh", "-c", f"ulimit -c 0; kill -{name} $$"]).status


def test_status_in_a_shell() -> None:
    """The shell reports a signal as 128 and its number."""
    script = '"$@" sh -c "kill -9 \\$\\$"; echo $?; "$@" sh -c "kill -15 \\$\\$"; echo $?'
    assert "137\n143\n" == outcome(["sh", "-c", script, "sh", *RUN]).stdout


def test_no_core_file_of_run(tmp_path: Path) -> None:
    """The limit of the command applies to the command, and the parent writes no core file in its place."""
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    command = [*RUN, "sh", "-c", "ulimit -c 0; kill -ABRT $$"]
    ended = outcome(command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (limit, limit)))
    assert (-signal.SIGABRT, []) == (ended.status, [*tmp_path.iterdir()])


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["no-such-command"], 127, "monitel: 'no-such-command': command not found\n"),
        (["./missing"], 127, "monitel: './missing': command not found\n"),
        (["./plain"], 126, "monitel: './plain' cannot be executed: Permission denied\n"),
        (["./"], 126, "monitel: './' cannot be executed: Permission denied\n"),
        (["plain/x"], 127, "monitel: 'plain/x': command not found\n"),
        ([""], 127, "monitel: '': command not found\n"),
        (["./bad"], 127, "monitel: './bad': command not found\n"),
    ],
)
def test_command_that_cannot_be_started(tmp_path: Path, command: list[str], status: int, message: str) -> None:
    """The exit status is that of a shell, and the message names the command."""
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "bad").write_text("#!/no/such/interpreter\n")
    (tmp_path / "bad").chmod(0o700)
    ended = outcome([*RUN, *command])
    assert (status, "", message) == (ended.status, ended.stdout, ended.summary)


def test_script_without_an_interpreter(tmp_path: Path) -> None:
    """A shell executes it, as a shell does."""
    script = tmp_path / "script"
    script.write_text('echo "$0 $1"; exit 4\n')
    script.chmod(0o700)
    assert (4, "./script a b\n") == ((ended := outcome([*RUN, "./script", "a b"])).status, ended.stdout)


def test_program_behind_one_that_may_not_be_executed(tmp_path: Path) -> None:
    """The search in PATH continues, as in a shell."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, mode in ((first, 0o600), (second, 0o700)):
        folder.mkdir()
        (folder / "tool").write_text("#!/bin/sh\necho found\n")
        (folder / "tool").chmod(mode)
    path = os.pathsep.join([str(first), str(second), os.environ["PATH"]])
    assert "found\n" == outcome([*RUN, "tool"], env={**os.environ, "PATH": path}).stdout
    shutil.rmtree(second)
    assert 126 == outcome([*RUN, "tool"], env={**os.environ, "PATH": path}).status


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


def test_command_inherits_everything(tmp_path: Path) -> None:
    """Signals, limits, umask, niceness, descriptors, session and arguments are those of the caller."""
    script = (
        "trap '' HUP USR2; umask 027; ulimit -n 99; ulimit -c 0; ulimit -s 4000; cd /; exec 7</dev/null;"
        ' exec nice -n 5 "$@"'
    )
    arguments = ["--", "-x", "", "a b", "\udc80", "--endpoint", "*"]
    results = []
    for prefix in ((), RUN):
        ended = outcome(["sh", "-c", script, "sh", *prefix, *PYTHON, INHERITED, *arguments])
        assert 0 == ended.status, ended.stderr
        results.append(ended.stdout)
    assert results[0] == results[1]
    assert "'\\udc80'" in results[0]


def test_blocked_and_ignored_signals_are_inherited() -> None:
    """A mask of the caller is restored in the command."""
    block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1});"
    block += "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGPIPE, signal.SIG_DFL);"
    block += "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    status = ["/bin/grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status"]
    without, with_run = (outcome([*PYTHON, block, *prefix, *status]) for prefix in ((), RUN))
    assert without.stdout == with_run.stdout
    assert "4200" in without.stdout


def test_environment_has_only_documented_additions() -> None:
    """Additions are the same for a command that the command starts."""
    without, with_run = both(["env", "-0"])
    before, after = (
        dict(entry.split("=", 1) for entry in each.stdout.split("\0") if entry) for each in (without, with_run)
    )
    assert {"PYTHONPATH", "MONITEL_RUN_FOLDER"} == {*after} - {*before}
    assert INJECTED == after["PYTHONPATH"]
    assert before == {name: after[name] for name in before}
    grandchild = outcome([*RUN, sys.executable, "-c", "import subprocess; subprocess.run(['env', '-0'])"])
    inner = dict(entry.split("=", 1) for entry in grandchild.stdout.split("\0") if entry)
    assert {**inner, "MONITEL_RUN_FOLDER": "", "LC_CTYPE": ""} == {**after, "MONITEL_RUN_FOLDER": "", "LC_CTYPE": ""}


def test_options_become_variables() -> None:
    """Options take the place of the variables of single signals; headers are added."""
    given = {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://other:1/v1/metrics",
        "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "b=2",
    }
    options = ["--endpoint", "http://localhost:9", "--header", "x=y z,=", "--protocol=http/protobuf"]
    command = [*RUN[:-1], *options, "--service-name", "mine", "env"]
    ended = outcome(command, env={**os.environ, **given})
    found = dict(entry.split("=", 1) for entry in ended.stdout.splitlines() if entry.startswith("OTEL_"))
    assert {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:9",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1,x=y%20z%2C%3D",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "b=2,x=y%20z%2C%3D",
        "OTEL_SERVICE_NAME": "mine",
    } == {name: value for name, value in found.items() if "OTLP" in name or "SERVICE" in name}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give a command"),
        (["--"], "give a command"),
        (["--nonsense", "true"], "unrecognized arguments: --nonsense"),
        (["--headers=authorization=sec ret", "true"], "unrecognized arguments: --headers"),
        (["--endpoint"], "expected one argument"),
        (["--endpoint", "localhost", "true"], "--endpoint: endpoint must be a base URL"),
        (["--header", "sec ret", "true"], "--header: expected NAME=VALUE (the argument is not shown"),
        (["--header", "a=b\r\nc: d", "true"], "--header: expected NAME=VALUE (the argument is not shown"),
        (["--protocol", "http", "true"], "invalid choice: 'http'"),
    ],
)
def test_wrong_options(options: list[str], message: str) -> None:
    """The message names the option, and the command is not started."""
    ended = outcome([*RUN[:-1], *options])
    assert 2 == ended.status
    assert message in ended.stderr + ended.summary
    assert "sec ret" not in ended.stderr + ended.summary


def test_options_of_the_command_are_left_alone() -> None:
    """Without ``--`` the first word that is not an option begins the command."""
    assert "--endpoint x -- --help\n" == outcome([*RUN[:-1], "echo", "--endpoint", "x", "--", "--help"]).stdout
    assert "-- a\n" == outcome([*RUN, "echo", "--", "a"]).stdout


def test_input_is_passed_on() -> None:
    """A pipe at stdin is read by the command, to its end."""
    assert "line\n" * 20_000 == check_same(["cat"], "line\n" * 20_000).stdout


def test_large_output_is_complete() -> None:
    """Both streams are those of the caller."""
    command = ["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; head -c 100000 /dev/zero | tr '\\0' y >&2"]
    ended = check_same(command)
    assert ("x" * 1_000_000, "y" * 100_000) == (ended.stdout, ended.stderr)


def test_reader_that_goes_away() -> None:
    """The command ends by SIGPIPE, as without."""
    script = '"$@" yes | head -n 1; echo "${PIPESTATUS[0]}"'
    without, with_run = (outcome(["bash", "-c", script, "bash", *prefix]) for prefix in ((), RUN))
    assert ("y\n141\n", "y\n141\n") == (without.stdout, with_run.stdout)


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    """The command finds the same closed streams, and the status is its own."""
    probe = "import os; os.write(9, b'%d' % sum(1 << n for n in range(3) if os.path.exists(f'/proc/self/fd/{n}')));"
    script = f'"$@" {closed}'
    results = []
    for number, prefix in enumerate(((), RUN)):
        with (tmp_path / f"{number}").open("wb") as file:
            ended = outcome(
                ["bash", "-c", f"exec 9>&{file.fileno()}; {script}", "bash", *prefix, *PYTHON, probe + "os._exit(5)"],
                pass_fds=[file.fileno()],
            )
        results.append((ended.status, ended.stdout, (tmp_path / f"{number}").read_text()))
    assert results[0] == results[1]
    assert 5 == results[0][0]


def test_other_processes_of_the_command_go_on(tmp_path: Path) -> None:
    """A daemon outlives the command, and the end does not wait for it."""
    ended = outcome([*RUN, "sh", "-c", "sleep 100 </dev/null >/dev/null 2>&1 & echo $!"])
    daemon = int(ended.stdout)
    assert (0, True) == (ended.status, is_running(daemon))
    os.kill(daemon, signal.SIGKILL)


def test_detached_command() -> None:
    """A command that leaves the session is waited for."""
    assert 6 == check_same(["setsid", "--wait", "sh", "-c", "exit 6"]).status


def test_parent_of_the_command_is_no_reaper() -> None:
    """Orphans go to the system's reaper, not to ``monitel run``."""
    script = "sh -c 'sleep 0.2; ps -o ppid= -p $$ > orphan' & kill -9 $$"
    results = []
    for prefix in ((), RUN):
        outcome([*prefix, "sh", "-c", script])
        wait_until(lambda: Path("orphan").exists() and Path("orphan").read_text().strip())
        results.append(Path("orphan").read_text())
        Path("orphan").unlink()
    assert results[0] == results[1]


def test_nested_run_replaces_itself() -> None:
    """The inner one becomes the command, and adds no variable."""
    script = "import os, sys; print(os.getppid() == int(sys.argv[1]), os.environ['PYTHONPATH'])"
    shell = 'exec "$@" $$'
    ended = outcome(["sh", "-c", shell, "sh", *RUN, *RUN, *RUN, *PYTHON, script])
    assert f"True {INJECTED}\n" == ended.stdout
    assert "monitel run: nothing was recorded\n" == ended.summary
    assert (9, 127) == (outcome([*RUN, *RUN, "sh", "-c", "exit 9"]).status, outcome([*RUN, *RUN, "missing"]).status)


def test_job_goes_on_if_run_is_killed(own_boxes: Path) -> None:
    """Input and output still work, and the helper process of ``run`` ends with it. The next run removes its folder."""
    with running([*RUN, "sh", "-c", "echo $$; read line; echo $line > answer"]) as process:
        command = int(line(process))
        (witness,) = {*children(process.pid)} - {command}
        process.kill()
        process.wait()
        wait_until(lambda: not is_running(witness), "the end of the helper")
        assert is_running(command)
        assert process.stdin is not None
        process.stdin.write("still here\n")
        process.stdin.flush()
        wait_until(lambda: Path("answer").exists() and "still here\n" == Path("answer").read_text())
        wait_until(lambda: not is_running(command), "the end of the command")
    assert [] != [*own_boxes.parent.glob(f"{own_boxes.name}-run-*")]
    outcome([*RUN, "true"])


def test_folder_of_a_run_is_private(own_boxes: Path) -> None:
    """Only its owner can use it."""
    with running([*RUN, "sh", "-c", 'echo "$MONITEL_RUN_FOLDER"; read line']) as process:
        folder = Path(line(process))
        assert folder.parent == own_boxes.parent
        assert (0o700, {0o600}) == (
            stat.S_IMODE(folder.stat().st_mode),
            {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()},
        )
        process.communicate("end\n", timeout=30)


def test_no_place_for_a_folder() -> None:
    """The command runs without telemetry, and ends as it does."""
    code = "import tempfile\ndef full(**_): raise OSError(28, 'No space left on device')\ntempfile.mkdtemp = full\n"
    code += "from monitel_otlp.__main__ import main\nmain(['run', 'sh', '-c', 'exit 3'])"
    ended = outcome([sys.executable, "-c", code])
    message = "monitel: without telemetry, because there is no place for a folder: [Errno 28] No space left on device\n"
    assert (3, message) == (ended.status, ended.summary)


def test_nothing_heavy_is_loaded_before_the_command() -> None:
    """The command starts within some hundredths of a second."""
    script = "import sys, monitel_otlp.__main__, monitel_otlp.run.command; print(*sys.modules)"
    loaded = [name.partition(".")[0] for name in outcome([sys.executable, "-c", script]).stdout.split()]
    assert set() == {*loaded} & {"monitel", "monitel_otel", "opentelemetry", "google", "grpc", "requests", "logging"}


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return 0 == outcome(["unshare", "--pid", "--fork", "--mount-proc", "true"]).status


@pytest.fixture
def as_process_1() -> tuple[str, ...]:
    """The beginning of a command that runs as process 1 of a namespace."""
    if not _can_unshare():
        pytest.skip("needs the right to make a process id namespace")
    return ("unshare", "--pid", "--fork", "--mount-proc", "--")


def test_process_1(as_process_1: tuple[str, ...]) -> None:
    """Exit statuses are passed on, and a signal becomes the status of a shell."""
    assert "1\n" == outcome([*as_process_1, *RUN, *PYTHON, "import os; print(os.getppid())"]).stdout
    for script, status in (("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)):
        assert status == outcome([*as_process_1, *RUN, "sh", "-c", script]).status


def test_process_1_takes_orphans(as_process_1: tuple[str, ...]) -> None:
    """No zombie is left."""
    script = "sh -c 'sleep 0.1 &'; while ps -e -o comm= | grep -q sleep; do :; done; ps -e -o stat= | grep -c Z"
    assert "0\n" == outcome([*as_process_1, *RUN, "sh", "-c", script]).stdout


def test_missing_resources() -> None:
    """A command that the system refuses to start is reported."""
    code = "import os\nos.fork = lambda: (_ for _ in ()).throw(OSError(11, 'no processes'))\n"
    code += "from monitel_otlp.__main__ import main\nraise SystemExit(main(['run', 'true']))"
    ended = outcome([sys.executable, "-c", code])
    assert (126, f"monitel: the command cannot be started: [Errno {errno.EAGAIN}] no processes\n") == (
        ended.status,
        ended.summary,
    )
