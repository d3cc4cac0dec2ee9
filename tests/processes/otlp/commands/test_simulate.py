"""``python -m monitel_otlp simulate``: a backend receives the telemetry of all ranks of a job."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import PROTOCOLS, wait_until
from tests.support.inbox import DEADLINE, Answer
from tests.support.scripts import finish, started
from tests.support.spools import folders, spooled

from monitel_otlp.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.grpc_receiver import GrpcReceiver
    from tests.support.inbox import Point
    from tests.support.receiver import Receiver
    from tests.support.scripts import Process, Run

COMMAND = ("-m", "monitel_otlp", "simulate")
SMALL = ("--ranks", 6, "--stats", 7, "--windows", 4, "--window", 0.2)
STATS = {"loss", "step.time", "gradient.norm", "layer.gradient.norm"}
SUFFIXES = ("value", "mean", "count", "sum", "max", "min")
OWN = "optimizer, other, data, forward, backward"
DEAD = "http://127.0.0.1:9"


def of_rank(points: list[Point]) -> dict[int, list[Point]]:
    """Return the points by the rank in their resource."""
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(point.resource["training.rank"], []).append(point)
    return found


def named(stdout: str, label: str) -> int:
    """Return the rank that the output names after ``late`` or ``NaN``."""
    found = re.search(rf"^{label} +rank (\d+)", stdout, re.MULTILINE)
    assert found, stdout
    return int(found[1])


def test_every_window_of_every_rank_arrives(receiver: Receiver, run: Run) -> None:
    """Each Stat of each rank has the requested number of windows, in ascending order, within the time of the run."""
    begin = time.time_ns()
    ended = run(*COMMAND, *SMALL, "--endpoint", receiver.url)
    for stat in STATS:
        for suffix in SUFFIXES:
            points = of_rank(receiver.points(f"{stat}.{suffix}"))
            layers = 4 if stat == "layer.gradient.norm" else 1
            assert dict.fromkeys(range(6), 4 * layers) == {rank: len(own) for rank, own in points.items()}
    for own in of_rank(receiver.points("loss.count")).values():
        times = [point.time_ns for point in own]
        assert sorted(times) == times
        assert times[-1] < time.time_ns()
        assert all(begin < point.start_ns < point.time_ns for point in own)
        assert 0.8 > (times[-1] - times[0]) / 1e9 > 0.4
    assert "recorded    312 windows, 96 numbers and 49 events" in ended.stdout
    assert "outcome     457 acknowledged, 0 on disk, 0 dropped" in ended.stdout
    assert "" == ended.stderr


def test_ranks_have_the_attributes_of_torchrun(receiver: Receiver, run: Run) -> None:
    """Each rank is a process with rank, local rank, node rank and world size; a node has eight ranks."""
    size = ("--ranks", 9, "--stats", 4, "--windows", 1, "--window", 0.2)
    ended = run(*COMMAND, *size, "--late", "data:0:0s", "--endpoint", receiver.url)
    assert "late" not in ended.stdout
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


def stage_means(receiver: Receiver) -> dict[int, dict[str, float]]:
    """Return the mean of each stage of each rank over all windows."""
    found: dict[int, dict[str, list[float]]] = {}
    for point in receiver.points("training.stage.duration.mean"):
        stages = found.setdefault(point.resource["training.rank"], {})
        stages.setdefault(str(point.attributes["training.stage"]), []).append(point.value)
    return {rank: {stage: fmean(means) for stage, means in stages.items()} for rank, stages in found.items()}


def test_output_names_the_late_rank_and_the_rank_with_nan(receiver: Receiver, run: Run) -> None:
    """One rank is late in one stage, by 30 % of a step, and another has one window with a NaN."""
    ended = run(*COMMAND, *SMALL, "--endpoint", receiver.url)
    late, diverged = named(ended.stdout, "late"), named(ended.stdout, "NaN")
    assert late != diverged
    truth = re.search(r"^late +rank \d+: (\w+), 6 ms a step$", ended.stdout, re.MULTILINE)
    assert truth, ended.stdout
    means = stage_means(receiver)
    lateness = {
        (rank, stage): own - median(stages[stage] for stages in means.values())
        for rank, times in means.items()
        for stage, own in times.items()
        if stage != "sync"
    }
    assert (late, truth[1]) == max(lateness, key=lambda each: lateness[each])
    assert pytest.approx(0.006, rel=0.1) == lateness[late, truth[1]]
    waits = {rank: times["sync"] for rank, times in means.items()}
    assert late == min(waits, key=lambda rank: waits[rank])
    assert pytest.approx(0.006, rel=0.15) == median(waits.values()) - waits[late]
    losses = receiver.points("loss.mean")
    assert [diverged] == [point.resource["training.rank"] for point in losses if math.isnan(point.value)]
    events = receiver.records("loss.nan")
    assert [(diverged, 17)] == [(event.resource["training.rank"], event.severity) for event in events]
    others = {point.metric for point in receiver.all_points() if math.isnan(point.value)}
    assert {"loss.mean", "loss.max", "loss.min"} >= others - {"loss.value"}


def test_ranks_wait_for_each_other(receiver: Receiver, run: Run) -> None:
    """All ranks make the same steps in the same time, to which the stages of each rank add up."""
    run(*COMMAND, *SMALL, "--endpoint", receiver.url)
    by_rank = of_rank(receiver.points("step.time.mean"))
    steps = {rank: [(point.time_ns, point.value) for point in own] for rank, own in by_rank.items()}
    assert 6 == len(steps)
    assert all(steps[0] == own for own in steps.values())
    stages = ["optimizer", "other", "data", "forward", "backward", "sync"]
    for rank, own in of_rank(receiver.points("training.stage.duration.mean")).items():
        assert stages == list(dict.fromkeys(point.attributes["training.stage"] for point in own))
        for at_ns, step in steps[rank]:
            assert pytest.approx(step, rel=1e-9) == sum(point.value for point in own if point.time_ns == at_ns)


def test_named_stages_of_named_ranks_are_late(receiver: Receiver, run: Run) -> None:
    """Each delay is in the stage and rank that its argument names, and the output repeats it."""
    delays = ("--late", "data:2:30ms", "--late", "forward:0:0.1s/10")
    command = (*COMMAND, "--ranks", 4, "--stats", 3, "--windows", 2, "--window", 1)
    ended = run(*command, *delays, "--endpoint", receiver.url)
    assert "late        rank 2: data, 30 ms a step\n" in ended.stdout
    assert "late        rank 0: forward, 100 ms in one step of 10\n" in ended.stdout
    means = stage_means(receiver)
    steps = max(point.value for point in receiver.points("step.time.count"))
    usual = {stage: median(times[stage] for times in means.values()) for stage in means[0]}
    assert pytest.approx(0.03, rel=0.05) == means[2]["data"] - usual["data"]
    rare = 0.1 * (steps // 10) / steps
    assert pytest.approx(rare, rel=0.5) == means[0]["forward"] - usual["forward"]
    late = {(2, "data"), (0, "forward")}
    for rank, times in means.items():
        for stage in set(times) - {"sync"}:
            if (rank, stage) not in late:
                assert pytest.approx(usual[stage], rel=0.05) == times[stage]


@pytest.mark.parametrize(
    ("distributions", "suffixes"),
    [
        (None, set()),
        ("percentiles", {"p50", "p90", "p95", "p99"}),
        ("histogram", {"histogram"}),
    ],
)
def test_step_times_have_the_requested_distribution(
    receiver: Receiver, run: Run, distributions: str | None, suffixes: set[str]
) -> None:
    """Each window of each rank has a distribution in the requested form; other Stats have none."""
    asked = () if distributions is None else ("--distributions", distributions)
    run(*COMMAND, *SMALL, *asked, "--endpoint", receiver.url)
    found = Counter(point.metric for point in windows_of(receiver))
    usual = {f"{stat}.{suffix}" for stat in STATS for suffix in SUFFIXES}
    assert {f"step.time.{suffix}": 24 for suffix in suffixes} == {
        name: points for name, points in found.items() if name not in usual
    }


def test_waits_and_steps_are_real(receiver: Receiver, run: Run) -> None:
    """Wait counters count one wait for each step, and events have their step."""
    run(*COMMAND, *SMALL, "--late", "data:4:10ms", "--endpoint", receiver.url)
    steps = {rank: own[-1].value for rank, own in of_rank(receiver.points("step.time.count")).items()}
    waits = {rank: own[-1].value for rank, own in of_rank(receiver.points("data.loading.wait.count")).items()}
    assert steps == waits
    for rank, own in of_rank(receiver.points("data.loading.wait.time")).items():
        usual = 0.002 + (0.01 if rank == 4 else 0)
        assert pytest.approx(usual * steps[rank], rel=0.02) == own[-1].value
    epochs = Counter(record.resource["training.rank"] for record in receiver.records("epoch"))
    assert dict.fromkeys(range(6), 4) == epochs
    assert all(record.attributes["training.step"] > 0 for record in receiver.records("epoch"))


def test_counters_count_the_steps_of_each_rank(receiver: Receiver, run: Run) -> None:
    """A step has 8 samples of 512 tokens. The gradient scaler skips each twentieth step, which is not in the steps."""
    run(*COMMAND, *SMALL, "--endpoint", receiver.url)
    attempts = {rank: own[-1].value for rank, own in of_rank(receiver.points("step.time.count")).items()}
    expected = {
        "training.steps": {rank: steps - steps // 20 for rank, steps in attempts.items()},
        "training.steps.skipped": {rank: steps // 20 for rank, steps in attempts.items()},
        "training.samples": {rank: 8 * steps for rank, steps in attempts.items()},
        "training.tokens": {rank: 8 * 512 * steps for rank, steps in attempts.items()},
        "training.step": attempts,
    }
    assert max(attempts.values()) > 20
    assert expected == {
        name: {rank: own[-1].value for rank, own in of_rank(receiver.points(name)).items()} for name in expected
    }


def test_rates_by_their_time_are_the_samples(receiver: Receiver, run: Run) -> None:
    """The sum of rate times time is the number of samples; one late rank lowers the rates of all."""
    run(*COMMAND, *SMALL, "--late", "backward:1:20ms", "--endpoint", receiver.url)
    counted = of_rank(receiver.points("training.samples"))
    utilization = {
        rank: [point.value for point in own] for rank, own in of_rank(receiver.points("training.mfu")).items()
    }
    for rank, rates in of_rank(receiver.points("training.samples.rate")).items():
        ends = [counted[rank][0].start_ns, *(point.time_ns for point in rates)]
        seconds = [(end - begin) / 1e9 for begin, end in pairwise(ends)]
        samples = sum(point.value * length for point, length in zip(rates, seconds, strict=True))
        assert pytest.approx(counted[rank][-1].value, rel=1e-3) == samples
        assert pytest.approx([0.4 / 2] * 4, rel=0.2) == utilization[rank]


def test_single_rank_is_late_and_has_the_nan(receiver: Receiver, run: Run) -> None:
    """With one rank there is no other choice, and nobody to wait for."""
    ended = run(*COMMAND, "--ranks", 1, "--windows", 1, "--window", 0.2, "--endpoint", receiver.url)
    assert (0, 0) == (named(ended.stdout, "late"), named(ended.stdout, "NaN"))
    assert {"optimizer", "other", "data", "forward", "backward"} == set(stage_means(receiver)[0])
    assert 50 == sum(point.metric.endswith(".count") for point in windows_of(receiver))


def windows_of(receiver: Receiver) -> list[Point]:
    """Return the points of windows, without those of numbers, counters and the pipeline."""
    others = ("data.loading", "training.", "eval.", "monitel.")
    metrics = {point.metric for point in receiver.all_points() if point.scope == "monitel"}
    return [point for name in sorted(metrics) if not name.startswith(others) for point in receiver.points(name)]


def test_seed_determines_samples_and_ranks(receiver: Receiver, run: Run) -> None:
    """Runs with the same seed have the same samples, times and special ranks; another seed changes the samples."""

    def found(seed: int) -> tuple[str, int, dict[int, list[float]], dict[int, dict[str, float]]]:
        receiver.requests.clear()
        ended = run(
            *COMMAND, "--ranks", 4, "--stats", 4, "--windows", 2, "--window", 0.2, "--seed", seed,
            "--endpoint", receiver.url,
        )  # fmt: skip
        norms = of_rank(receiver.points("gradient.norm.sum"))
        values = {rank: [point.value for point in own] for rank, own in norms.items()}
        (late,) = re.findall(r"^late +(.+)$", ended.stdout, re.MULTILINE)
        return late, named(ended.stdout, "NaN"), values, stage_means(receiver)

    first, other = found(1), found(2)
    assert first == found(1)
    assert first[2] != other[2]
    assert first[3] != other[3]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_simulation_without_an_endpoint_is_spooled(run: Run, tmp_path: Path, protocol: str) -> None:
    """Each rank has a spool, the exit status is 0, and the output has the command that delivers them."""
    ended = run(*COMMAND, *SMALL, "--protocol", protocol)
    assert "outcome     0 acknowledged, 457 on disk, 0 dropped" in ended.stdout
    assert f"replay {tmp_path / 'monitel-runs'}\n" in ended.stdout
    assert 6 == len(folders(tmp_path / "monitel-runs"))
    counts, events = spooled(tmp_path)
    assert (24, 49) == (len(counts), len(events))
    assert "" == ended.stderr


def test_simulation_over_grpc(grpc_receiver: GrpcReceiver, run: Run) -> None:
    """GRPC works in the forked ranks, because each of them starts it."""
    run(*COMMAND, *SMALL, "--endpoint", grpc_receiver.url, "--protocol", "grpc")
    assert 24 == len(grpc_receiver.points("loss.count"))


def test_dead_backend_is_reported(run: Run, tmp_path: Path) -> None:
    """Everything is on disk, the exit status is 1, and stderr has the reason."""
    ended = run(*COMMAND, *SMALL, "--endpoint", DEAD, returncode=1)
    assert "outcome     0 acknowledged, 457 on disk, 0 dropped" in ended.stdout
    assert "6 ranks could not deliver everything" in ended.stderr
    assert "Connection refused" in ended.stderr
    counts, events = spooled(tmp_path / "state")
    assert (24, 49) == (len(counts), len(events))


def test_rejected_items_are_reported(receiver: Receiver, run: Run) -> None:
    """Rejected items count as dropped, with the reason."""
    receiver.rule(lambda request: Answer(400) if request.signal == "logs" else None)
    ended = run(*COMMAND, *SMALL, "--endpoint", receiver.url, returncode=1)
    assert "outcome     408 acknowledged, 0 on disk, 49 dropped (rejected 49)" in ended.stdout
    assert "6 ranks could not deliver everything" in ended.stderr


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[Process]:
    """A simulation of ten minutes, whose three ranks have begun to write."""
    arguments = (*COMMAND, "--ranks", 3, "--stats", 4, "--windows", 6000, "--window", 0.1)
    with started(tmp_path, *arguments, env={"OTEL_METRIC_EXPORT_INTERVAL": "100"}) as simulation:
        wait_until(lambda: len(folders(tmp_path)) == 3, "start of all ranks")
        yield simulation


def rank_pids(tmp_path: Path) -> list[int]:
    """Return the process ids of the ranks, which are part of the names of their spools."""
    return [int(folder.name.split("-")[2]) for folder in folders(tmp_path)]


def test_ctrl_c_ends_all_ranks_early(long_run: Process, tmp_path: Path) -> None:
    """The terminal sends SIGINT to all processes; each rank writes its items to disk, and the output counts them."""
    os.killpg(long_run.pid, signal.SIGINT)
    stdout, stderr = long_run.communicate(timeout=DEADLINE)
    assert (130, "") == (long_run.returncode, stderr)
    events = len(spooled(tmp_path)[1])
    assert events > 0
    assert re.search(rf"recorded +[\d,]+ windows, [\d,]+ numbers and {events:,} events", stdout)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_helper_processes_ignore_ctrl_c_at_the_start(tmp_path: Path) -> None:
    """The processes that the command starts first neither end nor print anything."""
    arguments = (*COMMAND, "--ranks", 2, "--stats", 4, "--windows", 1, "--window", 0.2)
    with started(tmp_path, *arguments) as simulation:
        wait_until(lambda: len(children(simulation.pid)) == 2, "start of the server for the ranks")
        for child in children(simulation.pid):
            os.kill(child, signal.SIGINT)
        ended = finish(simulation)
    assert (0, "") == (ended.status, ended.stderr)
    assert "outcome     0 acknowledged, 33 on disk, 0 dropped" in ended.stdout


def test_rank_that_dies_is_reported(long_run: Process, tmp_path: Path) -> None:
    """The other ranks continue to their end."""
    os.kill(rank_pids(tmp_path)[0], signal.SIGKILL)
    long_run.send_signal(signal.SIGINT)
    stdout, stderr = long_run.communicate(timeout=DEADLINE)
    assert "1 rank ended without a report" in stderr
    assert "recorded" in stdout
    assert 130 == long_run.returncode


def test_ranks_do_not_outlive_their_command(long_run: Process, tmp_path: Path) -> None:
    """If the command is killed, its ranks end too."""
    pids = rank_pids(tmp_path)
    long_run.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "end of all ranks")


def is_alive(pid: int) -> bool:
    """Return True if there is a process with this id."""
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
        (["--stats", "2"], "argument --stats: must be at least 3, got 2"),
        (["--windows", "0"], "argument --windows: must be at least 1, got 0"),
        (["--window", "nan"], "argument --window: must be at least 0.1, got nan"),
        (["--window", "inf"], "argument --window: must be at least 0.1, got inf"),
        (["--seed", "-1"], "argument --seed: must be at least 0, got -1"),
        *(
            (
                ["--late", wrong],
                f"argument --late: expected STAGE:RANK:DELAY such as data:2:30ms, with a stage of {OWN}",
            )
            for wrong in ("sync:2:30ms", "data:2:30", "data:-1:30ms", "data:2:30ms/0", "data:2", "data:2:nans", "")
        ),
    ],
)
def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """The message has the allowed values, and nothing is started."""
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *arguments])
    assert 2 == caught.value.code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("delays", "message"),
    [
        (["data:4:30ms"], "there is no rank 4 to be late: the ranks are 0 to 3"),
        (["data:2:501ms"], "the delays must be at most half a window together (0.5 s), got 0.501 s"),
        (["data:2:300ms", "forward:2:300ms"], "the delays must be at most half a window together (0.5 s), got 0.6 s"),
    ],
)
def test_impossible_delays_are_refused(capsys: pytest.CaptureFixture[str], delays: list[str], message: str) -> None:
    """Nothing is started if a delay is for a rank that does not exist, or would leave windows without a step."""
    assert 1 == main(["simulate", "--ranks", "4", *(part for each in delays for part in ("--late", each))])
    out, err = capsys.readouterr()
    assert ("", f"monitel: {message}\n") == (out, err)


def test_wrong_endpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message is printed once, not by every rank."""
    assert 1 == main(["simulate", "--endpoint", "localhost:4318"])
    out, err = capsys.readouterr()
    assert "" == out
    assert 1 == err.count("it must begin with http:// or https://")
