"""The example of late ranks: its delays are where the command line puts them, and wrong ones are explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the example uses torch: torch is not installed")

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
sys.path.insert(0, str(EXAMPLES))  # the examples are scripts, not a package

import train_ddp  # noqa: E402  after the check that torch is there
from train_ddp import PAUSES, Late  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STEPS = 40
TIMEOUT = 120
FORM = "expected STAGE:RANK:DELAY, e.g. data:2:30ms or data:2:30ms/10, got"


def train(folder: Path, *arguments: str) -> str:
    """Run the example on two ranks without a backend; return its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))}
    done = subprocess.run(
        [sys.executable, *TORCHRUN, EXAMPLES / "train_ddp.py", "--steps", str(STEPS), *arguments],
        env=inherited,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def stages(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield rank, stage and seconds of each point of the stages in the spool."""
    command = [sys.executable, "-m", "monitel_otlp", "cat", str(folder / "monitel-runs")]
    lines = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True).stdout.splitlines()
    for resource in (each for line in lines for each in json.loads(line).get("resourceMetrics", ())):
        attributes = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
        rank = int(attributes["training.rank"]["intValue"])
        for metric in (metric for scope in resource["scopeMetrics"] for metric in scope["metrics"]):
            if metric["name"] == "training.stage.duration.mean":
                for point in metric["gauge"]["dataPoints"]:
                    (attribute,) = point["attributes"]
                    yield rank, attribute["value"]["stringValue"], point["asDouble"]


def test_late_rank_is_in_the_telemetry(tmp_path: Path) -> None:
    """Rank 1 is late in the stage of its delay, by the delay, and rank 0 waits for it."""
    printed = train(tmp_path, "--late", "other:1:0.04s")
    assert "injected: rank 1 is late in other by 40 ms in every step" in printed
    windows: dict[tuple[int, str], list[float]] = defaultdict(list)
    for rank, stage, seconds in stages(tmp_path):
        windows[rank, stage].append(seconds)
    assert {(rank, stage) for rank in (0, 1) for stage in (*PAUSES, "sync")} == windows.keys()
    mean = {key: fmean(found) for key, found in windows.items()}
    assert 0.030 < mean[1, "other"] - mean[0, "other"] < 0.055
    assert 0.020 < mean[0, "sync"] - mean[1, "sync"] < 0.060


@pytest.mark.parametrize(
    ("text", "late", "words"),
    [
        ("data:2:30ms", Late("data", 2, 0.03), "rank 2 is late in data by 30 ms in every step"),
        ("forward:0:1.5ms", Late("forward", 0, 0.0015), "rank 0 is late in forward by 1.5 ms in every step"),
        (
            "backward:11:0.2s/10",
            Late("backward", 11, 0.2, 10),
            "rank 11 is late in backward by 200 ms in one step of 10",
        ),
        ("other:3:60s/1", Late("other", 3, 60.0), "rank 3 is late in other by 60000 ms in every step"),
    ],
)
def test_delays_are_read(text: str, late: Late, words: str) -> None:
    """A delay has a stage, a rank, a time with its unit, and an interval."""
    assert late == train_ddp.delay(text)
    assert words == str(late)


def test_delays_add_up_in_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delay of this rank extends its stage in every step or in one of N; those of other ranks do nothing."""
    monkeypatch.setattr(train_ddp, "RANK", 1)
    texts = ("data:1:30ms", "data:1:10ms/5", "forward:1:7ms/3", "data:0:1s", "optimizer:2:1s")
    work = train_ddp.Work([train_ddp.delay(text) for text in texts])
    spent: list[float] = []
    monkeypatch.setattr(work, "_pause", spent.append)
    for work.step in range(1, 16):
        for stage in PAUSES:
            work.spend(stage)
    expected = [
        seconds
        for step in range(1, 16)
        for seconds in (
            PAUSES["data"] + 0.030 + (0.010 if step % 5 == 0 else 0),
            PAUSES["forward"] + (0.007 if step % 3 == 0 else 0),
            PAUSES["backward"],
            PAUSES["optimizer"],
            PAUSES["other"],
        )
    ]
    assert spent == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--late", "data"), f"argument --late: {FORM} 'data'"),
        (("--late", "data:2:30"), f"argument --late: {FORM} 'data:2:30'"),
        (("--late", "data:-1:30ms"), f"argument --late: {FORM} 'data:-1:30ms'"),
        (("--late", "data:1:-30ms"), f"argument --late: {FORM} 'data:1:-30ms'"),
        (("--late", "data:1:nanms"), f"argument --late: {FORM} 'data:1:nanms'"),
        (("--late", "data:1:30ms/0"), f"argument --late: {FORM} 'data:1:30ms/0'"),
        (("--late", "data:1:30ms\n"), f"argument --late: {FORM} 'data:1:30ms\\n'"),
        (("--late", "data:\u0661:30ms"), f"argument --late: {FORM} 'data:\u0661:30ms'"),
        (("--late", "loss:1:30ms"), f"argument --late: expected a stage of {', '.join(PAUSES)}, got 'loss'"),
        (("--late", "sync:1:30ms"), f"argument --late: expected a stage of {', '.join(PAUSES)}, got 'sync'"),
        (("--late", "data:1:0ms"), "argument --late: expected a delay above 0 and at most 60 s, got 0ms"),
        (("--late", "data:1:60001ms"), "argument --late: expected a delay above 0 and at most 60 s, got 60001ms"),
        (("--late", "data:4:1ms"), "argument --late: there is no rank 4: the ranks are 0 to 3"),
        (("--steps", "0"), "argument --steps: expected a number of steps, at least 1, got '0'"),
        (("--steps", "1e3"), "argument --steps: expected a number of steps, at least 1, got '1e3'"),
    ],
)
def test_wrong_arguments_are_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """The error names the argument, the value, and the allowed values."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(train_ddp, "WORLD_SIZE", 4)
    with pytest.raises(SystemExit):
        train_ddp.parse_arguments(arguments)
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_without_torchrun_the_command_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that is started alone prints the right command."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        train_ddp.parse_arguments([])
    assert "start it by torchrun: torchrun --nproc-per-node 4 docs/examples/train_ddp.py" in capsys.readouterr().err


@pytest.mark.parametrize(("ranks", "first"), [(1, "20 steps on 1 rank;"), (2, "20 steps on 2 ranks;")])
def test_one_rank_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ranks: int, first: str
) -> None:
    """With one rank, a line explains that there is nothing to compare. The output ends with the query."""
    process_group = ("torch.distributed.init_process_group", "torch.distributed.destroy_process_group")
    for name in ("monitel_otlp.configure", "monitel.torch.instrument", *process_group):
        monkeypatch.setattr(name, lambda *_, **__: None)
    monkeypatch.setattr(train_ddp, "train", lambda _: 0.1)
    monkeypatch.setattr(train_ddp, "WORLD_SIZE", ranks)
    monkeypatch.setenv("RANK", "0")
    train_ddp.main(["--steps", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(first)
    assert (ranks == 1) == ("one rank has nothing to be compared with: start at least two" in lines)
    assert '    sort_desc(training:suspect:seconds{service_name="train-ddp"})' == lines[-1]
