"""Rank, run and attempt in the resource: from the variables of launchers, and from torch.distributed."""

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start
from tests.support.receiver import Receiver

import monitel
import monitel_otlp

WARNING = "torch.distributed reports rank"


def launch(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> dict[str, Any]:
    """Set the variables of a launcher, and return what the detector makes of them."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return dict(monitel_otlp.RankResourceDetector().detect().attributes)


def initialize(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """Stand in for a torch.distributed that is initialized: this environment may have no torch."""
    functions = {"is_available": True, "is_initialized": True, "get_rank": rank, "get_world_size": world_size}
    fake = SimpleNamespace(**{name: lambda value=value: value for name, value in functions.items()})
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


@pytest.mark.parametrize(
    ("variables", "run"),
    [
        ({"JOB_NAME": "train-nightly", "BUILD_NUMBER": "7", "JOB_ID": "of something else"}, None),
        ({"RAY_JOB_ID": "01000000"}, None),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "4711"}, None),
        ({"TORCHELASTIC_RUN_ID": "run-7", "SLURM_JOB_ID": "4711"}, "run-7"),  # the innermost launcher
        ({"SLURM_JOB_ID": " 4711\n"}, "4711"),
        ({"JOB_NAME": "train.sh", "JOB_ID": "31", "SGE_TASK_ID": "undefined"}, "31"),
        ({"JOB_NAME": "train.sh", "JOB_ID": "31", "SGE_TASK_ID": "4"}, "31.4"),
    ],
)
def test_only_what_names_one_run_is_its_id(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], run: str | None
) -> None:
    """The name of a job, a number of each cluster and torchrun's default are the same in independent runs."""
    assert run == launch(monkeypatch, variables).get("training.run.id")


def test_rank_of_torch_takes_precedence(monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start) -> None:
    """A spawned process inherits variables, but initializes torch.distributed. A group of one process counts not."""
    launch(monkeypatch, {"RANK": "0", "WORLD_SIZE": "1"})
    for rank, world_size in ((3, 4), (0, 1)):
        initialize(monkeypatch, rank, world_size)
        pipeline = start()
        monitel.emit("epoch")
        assert pipeline.force_flush(DEADLINE)
        resource = receiver.records("epoch")[-1].resource
        assert (rank, world_size) == (resource["training.rank"], resource["training.world_size"])


@pytest.mark.parametrize(
    ("variables", "expected"), [({}, "no training.rank"), ({"RANK": "0"}, "training.rank=0"), ({"RANK": "2"}, None)]
)
def test_warning_if_torch_reports_another_rank(
    monkeypatch: pytest.MonkeyPatch,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    expected: str | None,
) -> None:
    """One warning names both ranks and what to do."""
    launch(monkeypatch, variables)
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    assert [] == warnings_with(caplog, WARNING)
    initialize(monkeypatch, 2, 4)
    for _ in range(3):
        assert pipeline.force_flush(DEADLINE)
    message = (
        "torch.distributed reports rank 2 of 4, but the telemetry of this process has {}: call configure() after "
        "init_process_group(), or start the ranks with torchrun"
    )
    assert [message.format(expected)] * (expected is not None) == warnings_with(caplog, WARNING)
