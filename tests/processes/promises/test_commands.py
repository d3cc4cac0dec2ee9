"""``monitel cat``, ``replay``, ``doctor`` and ``simulate`` as processes: signals, closed outputs, and one another."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE, Answer
from tests.support.scripts import CONFIGURE, finish, started
from tests.support.spools import folders, spooled

if TYPE_CHECKING:
    from tests.support.grpc_receiver import GrpcReceiver
    from tests.support.inbox import Point
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

COMMAND = ("-m", "monitel")
OFFLINE = """\
with monitel_otlp.configure(spool_dir="runs", export_interval=3600.0) as pipeline:
    for number in range(5):
        monitel.emit("event", number=number)
        pipeline.force_flush(60)
"""


def numbers(receiver: Receiver) -> list[int]:
    """Return the numbers of the events, in order of arrival."""
    return [each.attributes["number"] for each in receiver.records("event")]


def test_interrupted_replay_continues_where_it_was(receiver: Receiver, train: Run, run: Run, tmp_path: Path) -> None:
    """Ctrl-C while the backend hangs: one line, the status 130, and nothing is lost or delivered twice."""
    train(OFFLINE)
    receiver.rule(lambda request: Answer(fault="hang") if request.signal == "logs" else None)
    with started(tmp_path, *COMMAND, "replay", "runs", "--endpoint", receiver.url) as replay:
        receiver.wait_until(lambda: any(each.answer.fault for each in receiver.requests))
        replay.send_signal(signal.SIGINT)
        ended = finish(replay)
    assert 130 == ended.status
    assert "monitel: interrupted; run this command again to continue\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [] == numbers(receiver)
    receiver.forget_rules()
    assert "delivered 5 items from 1 spool" in run(*COMMAND, "replay", "runs", "--endpoint", receiver.url).stdout
    assert [0, 1, 2, 3, 4] == numbers(receiver)


def test_concurrent_replays_deliver_each_request_once(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """A folder that one of them uses is left to it."""
    train("for _ in range(4):\n" + "".join(f"    {line}\n" for line in OFFLINE.splitlines()))
    command = (*COMMAND, "replay", "runs", "--endpoint", receiver.url)
    with started(tmp_path, *command) as one, started(tmp_path, *command) as other:
        printed = [finish(one), finish(other)]
    delivered = [re.search(r"delivered (\d+) items?", each.stdout) for each in printed]
    assert 20 == sum(int(found[1]) for found in delivered if found)
    assert dict.fromkeys(range(5), 4) == {number: numbers(receiver).count(number) for number in range(5)}
    assert [] == [*(tmp_path / "runs").iterdir()]
    assert {each.status for each in printed} <= {0, 1}


def test_pipelines_of_one_process_are_replayed_in_their_order(receiver: Receiver, train: Run, run: Run) -> None:
    """Each has a spool, all within a second: Prometheus refuses points that are older than the last one."""
    train(
        "for number in range(8):\n"
        "    with monitel_otlp.configure(export_interval=3600.0, spool_dir='runs'):\n"
        "        monitel.log({'run': number})\n"
    )
    run(*COMMAND, "replay", "runs", "--endpoint", receiver.url)
    assert [*range(8)] == receiver.values("run")


def test_killed_process_is_reported_and_delivered(receiver: Receiver, train: Run, run: Run, own_boxes: Path) -> None:
    """``doctor`` counts it, with the command; ``replay`` prints the death, and delivers everything once."""
    train(CONFIGURE + "monitel.emit('event', number=7)\nos.kill(os.getpid(), 9)\n", "http://127.0.0.1:9", returncode=-9)
    killed = f"  killed             1 process; deliver the telemetry with: monitel replay {own_boxes}\n"
    assert killed in run(*COMMAND, "doctor", returncode=1).stdout
    printed = run(*COMMAND, "replay", own_boxes, "--endpoint", receiver.url).stdout
    assert "collected 2 items from 1 black box\n" in printed
    assert re.search(r"^process \d+ on .*: ", printed, re.MULTILINE)
    assert ([7], 1) == (numbers(receiver), len(receiver.records("process.died")))
    assert "  killed  " not in run(*COMMAND, "doctor", returncode=1).stdout
    run(*COMMAND, "replay", "--endpoint", receiver.url, returncode=1)
    assert 2 == len(receiver.records())


def in_shell(command: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a command of monitel with a redirection of the shell."""
    line = f"{sys.executable} -m monitel {command} {redirection}"
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )


@pytest.mark.parametrize("command", ["cat runs", "autopsy --json"])
def test_output_that_cannot_be_written_is_an_error(train: Run, command: str) -> None:
    """A closed or full stdout is named in one line; the status is 1."""
    train(OFFLINE)
    closed = in_shell(command, ">&-")
    assert (1, "monitel: stdout is closed: the output of this command needs it\n") == (closed.returncode, closed.stderr)
    full = in_shell(command, ">/dev/full")
    assert (1, "monitel: stdout cannot be written: No space left on device\n") == (full.returncode, full.stderr)


def test_output_to_a_reader_that_leaves_is_no_error(train: Run, tmp_path: Path) -> None:
    """``monitel cat DIR | head -1``; a closed stderr hides messages, and nothing else."""
    train(OFFLINE)
    with started(tmp_path, *COMMAND, "cat", "runs") as process:
        assert process.stdout is not None
        process.stdout.close()  # before the command can print
        assert (0, "") == (process.wait(DEADLINE), process.stderr.read() if process.stderr else None)
    ended = in_shell("cat typo", "2>&-")
    assert (1, "", "") == (ended.returncode, ended.stdout, ended.stderr)


SIMULATE = (*COMMAND, "simulate")
SMALL = ("--ranks", 3, "--stats", 4, "--windows", 2, "--window", 0.2)


def of_rank(points: list[Point]) -> dict[int, list[Point]]:
    """Return the points by the rank in their resource."""
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(point.resource["training.rank"], []).append(point)
    return found


def test_simulated_job_arrives_and_names_what_to_find(receiver: Receiver, run: Run) -> None:
    """Each window of each rank, with torchrun's attributes; the late rank is late, and one loss is NaN."""
    ended = run(*SIMULATE, *SMALL, "--late", "data:2:30ms", "--endpoint", receiver.url)
    lines = dict(re.findall(r"^(\w+) {2,}(.*)$", ended.stdout, re.MULTILINE))
    assert ("rank 2: data, 30 ms a step", "") == (lines["late"], ended.stderr)
    assert re.fullmatch(r"\d+ acknowledged, 0 on disk, 0 dropped", lines["outcome"])
    assert {0: 2, 1: 2, 2: 2} == {rank: len(own) for rank, own in of_rank(receiver.points("loss.count")).items()}
    assert {(3, 0, "monitel-simulate")} == {
        tuple(each.resource[name] for name in ("training.world_size", "training.node_rank", "service.name"))
        for each in receiver.points("loss.count")
    }
    means = {
        rank: median(each.value for each in own if each.attributes["training.stage"] == "data")
        for rank, own in of_rank(receiver.points("training.stage.duration.mean")).items()
    }
    assert means[2] - means[0] == pytest.approx(0.03, rel=0.05)
    (nan,) = receiver.records("loss.nan")
    assert (f"rank {nan.resource['training.rank']}: loss", 17) == (lines["NaN"].split(",")[0], nan.severity)


@pytest.mark.parametrize("backend", ["none", "dead", "rejecting", "grpc"])
def test_simulation_reports_its_outcome(
    request: pytest.FixtureRequest, receiver: Receiver, run: Run, tmp_path: Path, backend: str
) -> None:
    """Without an endpoint everything is on disk; what is not delivered makes the status 1."""
    if backend == "none":
        ended = run(*SIMULATE, *SMALL)
        assert f"replay {tmp_path / 'monitel-runs'}\n" in ended.stdout
        assert 3 == len(folders(tmp_path / "monitel-runs"))
    elif backend == "dead":
        ended = run(*SIMULATE, *SMALL, "--endpoint", "http://127.0.0.1:9", returncode=1)
        assert "3 ranks could not deliver everything" in ended.stderr
        assert "Connection refused" in ended.stderr
    elif backend == "rejecting":
        receiver.rule(lambda request: Answer(400) if request.signal == "logs" else None)
        ended = run(*SIMULATE, *SMALL, "--endpoint", receiver.url, returncode=1)
        assert re.search(r"outcome +\d+ acknowledged, 0 on disk, 13 dropped \(rejected 13\)", ended.stdout)
        return
    else:
        grpc: GrpcReceiver = request.getfixturevalue("grpc_receiver")
        run(*SIMULATE, *SMALL, "--endpoint", grpc.url, "--protocol", "grpc")
        assert 6 == len(grpc.points("loss.count"))
        return
    assert re.search(r"outcome +0 acknowledged, \d+ on disk, 0 dropped", ended.stdout)
    counts, events = spooled(tmp_path)
    assert (6, 13) == (len(counts), len(events))


def test_simulation_ends_early_at_ctrl_c_and_never_outlives_its_command(tmp_path: Path) -> None:
    """Each rank writes what it has; if the command is killed, its ranks end too."""
    arguments = (*SIMULATE, "--ranks", 2, "--stats", 4, "--windows", 6000, "--window", 0.1)
    for number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        known = {*folders(tmp_path)}
        with started(tmp_path, *arguments, env={"OTEL_METRIC_EXPORT_INTERVAL": "100"}) as simulation:
            wait_until(lambda known=known: len({*folders(tmp_path)} - known) == 2, "start of all ranks")  # type: ignore[misc]
            pids = [int(folder.name.split("-")[2]) for folder in {*folders(tmp_path)} - known]
            if number == signal.SIGINT:
                os.killpg(simulation.pid, number)
            else:
                simulation.kill()
                wait_until(lambda pids=pids: not any(Path(f"/proc/{pid}").exists() for pid in pids), "end of all ranks")  # type: ignore[misc]
            ended = finish(simulation)
        assert (status, "") == (ended.status, ended.stderr)
    assert len(spooled(tmp_path)[1]) > 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--ranks", "0"], 2, "argument --ranks: must be at least 1, got 0"),
        (["--window", "nan"], 2, "argument --window: must be at least 0.1, got nan"),
        (
            ["--late", "sync:2:30ms"],
            2,
            "argument --late: expected STAGE:RANK:DELAY such as data:2:30ms, with a stage of ",
        ),
        (["--ranks", "4", "--late", "data:4:1ms"], 1, "monitel: there is no rank 4 to be late: the ranks are 0 to 3\n"),
        (["--endpoint", "localhost:4318"], 1, "it must begin with http:// or https://"),
    ],
)
def test_wrong_simulation_is_refused(run: Run, arguments: list[str], status: int, message: str) -> None:
    """Once, and nothing is started."""
    ended = run(*SIMULATE, *arguments, returncode=status)
    assert (1, "") == (ended.stderr.count(message), ended.stdout)
