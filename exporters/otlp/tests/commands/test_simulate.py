"""``python -m monitel_otlp simulate``: what a backend gets is what the ranks of a job would send."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import fmean, median
from subprocess import PIPE, Popen
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from monitel_otlp.__main__ import main

from .inbox import DEADLINE, Answer
from .spools import folders, spooled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .conftest import Run
    from .inbox import Point
    from .receiver import Receiver

COMMAND = ("-m", "monitel_otlp", "simulate")
SMALL = ("--ranks", 6, "--stats", 7, "--windows", 4, "--window", 0.2)
STATS = {"loss", "step.time", "throughput", "gradient.norm", "layer.gradient.norm"}
SUFFIXES = ("value", "mean", "count", "sum", "max", "min")
DEAD = "http://127.0.0.1:9"


def of_rank(points: list[Point]) -> dict[int, list[Point]]:
    """The points by the rank in their resource."""
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(point.resource["training.rank"], []).append(point)
    return found


def named(stdout: str, what: str) -> int:
    """The rank that the command names as slow, or as the one with the NaN."""
    found = re.search(rf"^{what} +rank (\d+)", stdout, re.MULTILINE)
    assert found, stdout
    return int(found[1])


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds, with a deadline."""
    deadline, pause = time.monotonic() + DEADLINE, Event()
    while not holds():
        assert time.monotonic() < deadline, what
        pause.wait(0.02)


def test_every_window_of_every_rank_arrives(receiver: Receiver, run: Run) -> None:
    """Each Stat of each rank has as many as asked for, at the times of this run, one after the other."""
    begin = time.time_ns()
    ended = run(*COMMAND, *SMALL, "--endpoint", receiver.url)
    for stat in STATS:
        for suffix in SUFFIXES:
            points = of_rank(receiver.points(f"{stat}.{suffix}"))
            layers = 3 if stat == "layer.gradient.norm" else 1
            assert dict.fromkeys(range(6), 4 * layers) == {rank: len(own) for rank, own in points.items()}
    for own in of_rank(receiver.points("loss.count")).values():
        times = [point.time_ns for point in own]
        assert sorted(times) == times
        assert times[-1] < time.time_ns()
        assert all(begin < point.start_ns < point.time_ns for point in own)
        assert 0.8 > (times[-1] - times[0]) / 1e9 > 0.4
    assert "recorded    168 windows and 25 events" in ended.stdout
    assert "of these    193 acknowledged, 0 on disk, 0 dropped" in ended.stdout
    assert "" == ended.stderr


def test_each_rank_is_one_of_torchruns(receiver: Receiver, run: Run) -> None:
    """A process of its own that knows its place in one run of nodes of eight."""
    run(*COMMAND, "--ranks", 9, "--stats", 4, "--windows", 1, "--window", 0.2, "--endpoint", receiver.url)
    resources = [point.resource for point in receiver.points("loss.count")]
    assert [(rank, rank % 8, rank // 8, 9, 0, "monitel-simulate") for rank in range(9)] == sorted(
        tuple(
            resource[name]
            for name in (
                *("training.rank", "training.local_rank", "training.node_rank"),
                *("training.world_size", "training.attempt", "service.name"),
            )
        )
        for resource in resources
    )
    assert 1 == len({resource["training.run.id"] for resource in resources})
    assert 9 == len({resource["service.instance.id"] for resource in resources})


def test_the_slow_rank_and_the_nan_are_to_be_found(receiver: Receiver, run: Run) -> None:
    """One rank is 2.5 times slower than the median, another has one window with a NaN; the command says which."""
    ended = run(*COMMAND, *SMALL, "--endpoint", receiver.url)
    slow, sick = named(ended.stdout, "slow"), named(ended.stdout, "NaN")
    assert slow != sick
    times = {
        rank: fmean(point.value for point in own) for rank, own in of_rank(receiver.points("step.time.mean")).items()
    }
    assert slow == max(times, key=lambda rank: times[rank])
    assert pytest.approx(2.5, rel=0.1) == times[slow] / median(times.values())
    samples = {rank: own[-1].value for rank, own in of_rank(receiver.points("step.time.count")).items()}
    assert slow == min(samples, key=lambda rank: samples[rank])
    losses = receiver.points("loss.mean")
    assert [sick] == [point.resource["training.rank"] for point in losses if math.isnan(point.value)]
    events = receiver.records("loss.nan")
    assert [(sick, 17)] == [(event.resource["training.rank"], event.severity) for event in events]
    others = {point.metric for point in receiver.all_points() if math.isnan(point.value)}
    assert {"loss.mean", "loss.max", "loss.min"} >= others - {"loss.value"}


@pytest.mark.parametrize(
    ("distributions", "suffixes"),
    [
        (None, set()),
        ("percentiles", {"p50", "p90", "p95", "p99"}),
        ("histogram", {"histogram"}),
    ],
)
def test_step_times_have_a_distribution_where_it_is_asked_for(
    receiver: Receiver, run: Run, distributions: str | None, suffixes: set[str]
) -> None:
    """Of every window of every rank, in the shape that was asked for; the other Stats have none."""
    asked = () if distributions is None else ("--distributions", distributions)
    run(*COMMAND, *SMALL, *asked, "--endpoint", receiver.url)
    found = Counter(point.metric for point in windows_of(receiver))
    usual = {f"{stat}.{suffix}" for stat in STATS for suffix in SUFFIXES}
    assert {f"step.time.{suffix}": 24 for suffix in suffixes} == {
        name: points for name, points in found.items() if name not in usual
    }


def test_waits_and_steps_are_real(receiver: Receiver, run: Run) -> None:
    """Wait counters have counted a wait a step, and events bear their step."""
    run(*COMMAND, *SMALL, "--endpoint", receiver.url)
    steps = {rank: own[-1].value for rank, own in of_rank(receiver.points("step.time.count")).items()}
    waits = {rank: own[-1].value for rank, own in of_rank(receiver.points("data.loading.count")).items()}
    assert steps == waits
    for own in of_rank(receiver.points("data.loading.time")).values():
        assert pytest.approx(0.2 * 0.8, rel=0.25) == own[-1].value
    epochs = Counter(record.resource["training.rank"] for record in receiver.records("epoch"))
    assert dict.fromkeys(range(6), 4) == epochs
    assert all(record.attributes["training.step"] > 0 for record in receiver.records("epoch"))


def test_one_rank_alone_is_slow_and_sick(receiver: Receiver, run: Run) -> None:
    """There is nobody else."""
    ended = run(*COMMAND, "--ranks", 1, "--windows", 1, "--window", 0.2, "--endpoint", receiver.url)
    assert (0, 0) == (named(ended.stdout, "slow"), named(ended.stdout, "NaN"))
    assert 50 == sum(name.endswith(".count") for name in [point.metric for point in windows_of(receiver)])


def windows_of(receiver: Receiver) -> list[Point]:
    """The points of windows, without those of wait counters and of the pipeline."""
    return [
        point
        for point in receiver.all_points()
        if point.scope == "monitel" and not point.metric.startswith("data.loading")
    ]


def test_the_seed_decides(receiver: Receiver, run: Run) -> None:
    """The same one gives the same samples and the same ranks to find, another one others."""

    def found(seed: int) -> tuple[int, int, dict[int, list[float]]]:
        receiver.requests.clear()
        ended = run(
            *COMMAND, "--ranks", 4, "--stats", 4, "--windows", 2, "--window", 0.2, "--seed", seed,
            "--endpoint", receiver.url,
        )  # fmt: skip
        norms = of_rank(receiver.points("gradient.norm.sum"))
        values = {rank: [point.value for point in own] for rank, own in norms.items()}
        return named(ended.stdout, "slow"), named(ended.stdout, "NaN"), values

    first, other = found(1), found(2)
    assert first == found(1)
    assert first[2] != other[2]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_without_an_endpoint_it_goes_to_disk(run: Run, tmp_path: Path, protocol: str) -> None:
    """A spool for each rank, and that is what was wanted; the command that sends it is said."""
    ended = run(*COMMAND, *SMALL, "--protocol", protocol)
    assert "of these    0 acknowledged, 193 on disk, 0 dropped" in ended.stdout
    assert f"replay {tmp_path / 'monitel-runs'}\n" in ended.stdout
    assert 6 == len(folders(tmp_path / "monitel-runs"))
    counts, events = spooled(tmp_path)
    assert (24, 25) == (len(counts), len(events))
    assert "" == ended.stderr


def test_it_goes_over_grpc(grpc_receiver: Any, run: Run) -> None:
    """The ranks are forked, and yet gRPC works: it is started in each of them."""
    run(*COMMAND, *SMALL, "--endpoint", grpc_receiver.url, "--protocol", "grpc")
    assert 24 == len(grpc_receiver.points("loss.count"))


def test_a_dead_backend_is_told(run: Run, tmp_path: Path) -> None:
    """What was not delivered is on disk; the exit status says so, and stderr why."""
    ended = run(*COMMAND, *SMALL, "--endpoint", DEAD, returncode=1)
    assert "of these    0 acknowledged, 193 on disk, 0 dropped" in ended.stdout
    assert "6 ranks could not deliver everything" in ended.stderr
    assert "Connection refused" in ended.stderr
    counts, events = spooled(tmp_path / "state")
    assert (24, 25) == (len(counts), len(events))


def test_what_a_backend_rejects_is_told(receiver: Receiver, run: Run) -> None:
    """It counts as dropped, by its reason."""
    receiver.rule(lambda request: Answer(400) if request.signal == "logs" else None)
    ended = run(*COMMAND, *SMALL, "--endpoint", receiver.url, returncode=1)
    assert "of these    168 acknowledged, 0 on disk, 25 dropped (rejected 25)" in ended.stdout
    assert "6 ranks could not deliver everything" in ended.stderr


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[Popen[str]]:
    """A simulation of ten minutes, whose three ranks have begun to write."""
    with Popen(
        [sys.executable, *COMMAND, "--ranks", "3", "--stats", "4", "--windows", "6000", "--window", "0.1"],
        env={**os.environ, "OTEL_METRIC_EXPORT_INTERVAL": "100"},
        cwd=tmp_path,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        start_new_session=True,
    ) as simulation:
        try:
            eventually(lambda: len(folders(tmp_path)) == 3, "the ranks do not start")
            yield simulation
        finally:
            if simulation.poll() is None:
                os.killpg(simulation.pid, signal.SIGKILL)


def rank_pids(tmp_path: Path) -> list[int]:
    """The processes of the ranks: their spools are named by them."""
    return [int(folder.name.split("-")[2]) for folder in folders(tmp_path)]


def test_ctrl_c_ends_all_ranks_early(long_run: Popen[str], tmp_path: Path) -> None:
    """The terminal sends it to all of them; each keeps what it has, and all is told."""
    os.killpg(long_run.pid, signal.SIGINT)
    stdout, stderr = long_run.communicate(timeout=DEADLINE)
    assert (130, "") == (long_run.returncode, stderr)
    events = len(spooled(tmp_path)[1])
    assert events > 0
    assert re.search(rf"recorded +[\d,]+ windows and {events:,} events", stdout)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_at_the_start_is_for_the_command_alone(tmp_path: Path) -> None:
    """The processes that it starts first are deaf to it: none of them dies, or says anything."""
    command = [sys.executable, *COMMAND, "--ranks", "2", "--stats", "4", "--windows", "1", "--window", "0.2"]
    with Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as simulation:
        try:
            eventually(lambda: len(children(simulation.pid)) == 2, "it starts no server for its ranks")
            for child in children(simulation.pid):
                os.kill(child, signal.SIGINT)
            stdout, stderr = simulation.communicate(timeout=DEADLINE)
        finally:
            if simulation.poll() is None:
                os.killpg(simulation.pid, signal.SIGKILL)
    assert (0, "") == (simulation.returncode, stderr)
    assert "of these    0 acknowledged, 11 on disk, 0 dropped" in stdout


def test_a_rank_that_dies_is_told(long_run: Popen[str], tmp_path: Path) -> None:
    """The others go on to their end."""
    os.kill(rank_pids(tmp_path)[0], signal.SIGKILL)
    long_run.send_signal(signal.SIGINT)
    stdout, stderr = long_run.communicate(timeout=DEADLINE)
    assert "1 rank died without a word" in stderr
    assert "recorded" in stdout
    assert 130 == long_run.returncode


def test_ranks_do_not_outlive_their_command(long_run: Popen[str], tmp_path: Path) -> None:
    """Killed without a chance to tell them, it leaves nothing running."""
    pids = rank_pids(tmp_path)
    long_run.kill()
    eventually(lambda: not any(map(alive, pids)), "a rank goes on")


def alive(pid: int) -> bool:
    """Whether there is a process of this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "0"], "argument --ranks: must be at least 1, got 0"),
        (["--ranks", "many"], "argument --ranks: invalid int value: 'many'"),
        (["--stats", "3"], "argument --stats: must be at least 4, got 3"),
        (["--windows", "0"], "argument --windows: must be at least 1, got 0"),
        (["--window", "nan"], "argument --window: must be at least 0.1, got nan"),
        (["--window", "inf"], "argument --window: must be at least 0.1, got inf"),
        (["--seed", "-1"], "argument --seed: must be at least 0, got -1"),
    ],
)
def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """Before anything is started, and by what is allowed."""
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *arguments])
    assert 2 == caught.value.code
    assert message in capsys.readouterr().err


def test_a_wrong_endpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, and not by every rank."""
    assert 1 == main(["simulate", "--endpoint", "localhost:4318"])
    out, err = capsys.readouterr()
    assert "" == out
    assert 1 == err.count("it must begin with http:// or https://")
