"""The rank of a process whose launcher does not set it, or that torch.distributed knows better."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import warnings_with

import monitel
from monitel_otlp.config.launcher import distributed_rank, is_rank_zero, launch_attributes

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_NODEID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
WARNING = "torch.distributed reports rank"


def launch(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Set the variables of a launcher."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def initialize(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """Stand in for a torch.distributed that is initialized: this environment may have no torch."""
    fake = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the real torch, if there is one."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, 1, id="lightning, one node"),
        pytest.param({"LOCAL_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "2"}, 0, id="lightning, main process"),
        pytest.param({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "8"}, 1, id="lightning, first of four nodes"),
        pytest.param({"LOCAL_RANK": "1", "NODE_RANK": "2", "WORLD_SIZE": "8"}, None, id="lightning, third of four"),
        pytest.param(
            {"LOCAL_RANK": "1", "NODE_RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}, 5, id="known node size"
        ),
        pytest.param({"LOCAL_RANK": "1", "WORLD_SIZE": "8"}, None, id="unknown node"),
        pytest.param({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, 1, id="only node"),
        pytest.param({"LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, None, id="one of two nodes"),
        pytest.param({"LOCAL_RANK": "4", "NODE_RANK": "0", "WORLD_SIZE": "2"}, None, id="beyond the world size"),
        pytest.param({"LOCAL_RANK": "1", "NODE_RANK": "0"}, None, id="unknown world size"),
        pytest.param({"RANK": "7", "LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "8"}, 7, id="RANK wins"),
        pytest.param({**SLURM, "LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, 1, id="inside a task of SLURM"),
        pytest.param(
            {**SLURM, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "LOCAL_RANK": "1"}
            | {"WORLD_SIZE": "4"},
            3,
            id="a task of SLURM with copies of its variables",
        ),
        pytest.param(
            {**OPEN_MPI, "LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "16"}, None, id="inside a process of MPI"
        ),
        pytest.param({**OPEN_MPI, "LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "2"}, 1, id="a process of MPI"),
        pytest.param(
            {"JOB_COMPLETION_INDEX": "1", "LOCAL_RANK": "3", "NODE_RANK": "1", "WORLD_SIZE": "16"},
            None,
            id="inside a pod of an indexed job",
        ),
    ],
)
def test_rank_is_inferred_or_unknown(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: int | None
) -> None:
    """A process that Lightning starts has no RANK; where the rank cannot be known, there is none."""
    launch(monkeypatch, variables)
    assert expected == launch_attributes().get("training.rank")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "4", "LOCAL_RANK": "0"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "8"}, False),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0"}, True),
    ],
)
def test_unknown_rank_may_be_known_not_to_be_zero(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start, variables: dict[str, str], expected: bool
) -> None:
    """With ``ranks="zero"`` a process with another local rank, or on another node, exports nothing."""
    launch(monkeypatch, variables)
    assert expected == is_rank_zero(launch_attributes())
    pipeline = start(ranks="zero")
    monitel.emit("epoch")
    assert pipeline.force_flush(60)
    assert expected == bool(receiver.records("epoch"))


def test_rank_of_torch_takes_precedence(monkeypatch: pytest.MonkeyPatch, receiver: Receiver, start: Start) -> None:
    """A spawned process inherits the variables of its parent, but initializes torch.distributed with its rank."""
    launch(monkeypatch, {"RANK": "0", "WORLD_SIZE": "1"})
    initialize(monkeypatch, 3, 4)
    pipeline = start()
    monitel.emit("epoch")
    assert pipeline.force_flush(60)
    (record,) = receiver.records("epoch")
    assert (3, 4) == (record.resource["training.rank"], record.resource["training.world_size"])


@pytest.mark.parametrize("world_size", [0, 1, -1])
def test_group_of_one_process_is_ignored(monkeypatch: pytest.MonkeyPatch, world_size: int) -> None:
    """Each process of a job may have a group of one rank, which is rank zero."""
    initialize(monkeypatch, 0, world_size)
    assert distributed_rank() is None


def test_module_that_is_being_imported_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partially imported torch.distributed has no functions yet."""
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())
    assert distributed_rank() is None


@pytest.mark.parametrize(
    ("variables", "arguments", "expected"),
    [
        ({}, {}, "no training.rank"),
        ({"RANK": "0"}, {}, "training.rank=0"),
        ({"RANK": "2"}, {}, None),
        ({"OTEL_RESOURCE_ATTRIBUTES": "training.rank=2"}, {}, None),
        ({"OTEL_RESOURCE_ATTRIBUTES": "training.rank=0"}, {}, "training.rank=0"),
        ({}, {"resource_attributes": {"training.rank": 2}}, None),
    ],
)
def test_warning_if_torch_reports_another_rank(
    monkeypatch: pytest.MonkeyPatch,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    *,
    variables: dict[str, str],
    arguments: dict[str, Any],
    expected: str | None,
) -> None:
    """One warning names both ranks and what to do."""
    launch(monkeypatch, variables)
    pipeline = start(**arguments)
    assert pipeline.force_flush(60)
    assert [] == warnings_with(caplog, WARNING)
    initialize(monkeypatch, 2, 4)
    for _ in range(3):
        assert pipeline.force_flush(60)
    message = (
        "torch.distributed reports rank 2 of 4, but the telemetry of this process has {}: call configure() after "
        "init_process_group(), or start the ranks with torchrun"
    )
    assert [message.format(expected)] * (expected is not None) == warnings_with(caplog, WARNING)
