"""Launchers of training jobs, and the place of this process in a job: by their variables, and torch.distributed."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping

from monitel.attributes import escape_surrogates, whole
from monitel.process.failures import warn_once

_log = logging.getLogger("monitel")

#: The variables of each attribute, in order of precedence: `monitel run --name`, torchrun (and Ray Train, which sets
#: the same variables), Open MPI, MPICH and Intel MPI, SLURM (whose variables all ranks of a `mpiexec` in its job
#: inherit), Kubernetes (an Indexed Job, and variables that the downward API sets), Grid Engine. A run id is what
#: restarts keep and no other run has: not the name of a job, nor Ray's number, which each cluster counts from 1.
VARIABLES = {
    "training.run.id": (
        *("MONITEL_RUN_NAME", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"),
        *("KUBEFLOW_TRAINING_JOB_ID", "JOB_ID"),
    ),
    "training.attempt": ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    "training.rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"),
    "training.local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "training.world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "training.node_rank": ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID"),
}

#: Rank, local rank and world size of launchers that set all three.
_COMPLETE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
_NO_ID = "none"  # torchrun's run id without --rdzv-id: the same for all jobs


def launch_attributes() -> dict[str, str | int]:
    """Return the ``training.*`` attributes of this process; empty without a launcher."""
    given = resource_attribute("training.run.id")
    found: dict[str, str | int] = {"training.run.id": given} if given else {}
    for attribute, variables in VARIABLES.items():
        for variable in () if attribute in found else variables:
            value = os.environ.get(variable, "").strip()
            if attribute == "training.run.id":
                found |= _run_id(variable, value)
            elif (number := _number(variable)) is not None:
                found[attribute] = number
            if attribute in found or value == _NO_ID:
                break
    local_rank, world_size = _number("LOCAL_RANK"), _number("WORLD_SIZE")
    if _number("RANK") is None and local_rank is not None and world_size is not None:
        found.pop("training.rank", None)
        if (rank := _infer_rank(local_rank, world_size)) is not None:
            found["training.rank"] = rank
    if (member := distributed_rank()) is not None:
        found["training.rank"], found["training.world_size"] = member
    return found


def resource_attribute(name: str) -> str:
    """Return the value of an attribute in OTEL_RESOURCE_ATTRIBUTES; empty without one."""
    pairs = (each.partition("=") for each in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    found = [value.strip() for key, _, value in pairs if key.strip() == name]
    if not found:
        return ""
    from urllib.parse import unquote  # late: few programs need it

    return escape_surrogates(unquote(found[-1]))


def service_name(default: str) -> str:
    """Return the name of the service that OpenTelemetry's variables give."""
    return os.environ.get("OTEL_SERVICE_NAME") or resource_attribute("service.name") or default


def sdk_is_disabled() -> bool:
    """Return True if OTEL_SDK_DISABLED switches telemetry off; ``monitel run`` writes nothing then."""
    text = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower()
    if text not in {"", "true", "false"}:  # false, as OpenTelemetry's specification demands
        warn_once(_log, "OTEL_SDK_DISABLED: expected true or false, got %r; telemetry is not disabled", text[:80])
    return text == "true"


def is_rank_zero(launch: Mapping[str, str | int]) -> bool:
    """Return True if the attributes of the launcher are those of rank zero, or of a process without a launcher."""
    if "training.rank" in launch:
        return launch["training.rank"] == 0
    return not launch.get("training.local_rank") and not launch.get("training.node_rank")


def distributed_rank() -> tuple[int, int] | None:
    """Return rank and world size of torch.distributed, if it is initialized with more than one rank.

    This does not communicate, so it does not wait for a process group that hangs.
    """
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    except Exception:  # torch is being imported, or the group is being destroyed
        return None
    return (rank, world_size) if world_size > 1 and rank >= 0 else None


def is_data_loader_worker() -> bool:
    """Return True in a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _run_id(variable: str, value: str) -> dict[str, str]:
    """Return the run id that the value of a variable gives, as an attribute; empty if it names no run."""
    if variable == "JOB_ID":  # other programs use this name, too; the tasks of an array are separate runs
        task = os.environ.get("SGE_TASK_ID", "")
        value = "" if not task else value if task == "undefined" else f"{value}.{task}"
    if value in {"", _NO_ID}:
        return {}
    return {"training.run.id": escape_surrogates(value)}


def _infer_rank(local_rank: int, world_size: int) -> int | None:
    """Return the rank where RANK is not set, as by Lightning; None if unknown.

    Open MPI and SLURM may have started only the parent: their rank counts if the other two numbers are equal.
    """
    for variables in _COMPLETE:
        rank, *others = map(_number, variables)
        if others == [local_rank, world_size]:
            return rank
    node_rank, per_node = _number("NODE_RANK"), _number("LOCAL_WORLD_SIZE")
    if per_node == world_size:
        node_rank = node_rank or 0
    if node_rank is None or (node_rank and per_node is None):
        return None
    inferred = node_rank * (per_node or 0) + local_rank
    return inferred if inferred < world_size else None


def _number(variable: str) -> int | None:
    """Return the value of a variable that holds a number; None if it is not set or malformed."""
    return whole(os.environ.get(variable, "").strip())


#: Programs and modules that start training processes, forward SIGTERM to them, and record no telemetry.
LAUNCHERS = {
    *("monitel", "torchrun", "torch.distributed.run", "torch.distributed.launch"),
    *("accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("fabric", "lightning", "lightning.fabric.cli", "lightning_fabric.cli"),
}

_MODULE_OPTION = re.compile(r"-[bBdEhiIOPqsSuvx]*m(.*)", re.DOTALL)


def is_launcher(arguments: list[str]) -> bool:
    """Return True if a command line starts a launcher of training processes, such as torchrun's agent."""
    remaining = iter(arguments[1:])
    for argument in remaining:
        if argument in {"-X", "-W"}:
            next(remaining, None)
        elif module := _MODULE_OPTION.fullmatch(argument):
            return (module[1] or next(remaining, "")) in LAUNCHERS
        elif not argument.startswith("-") or argument == "-":
            return os.path.basename(argument) in LAUNCHERS
        elif argument.startswith("-c"):
            return False
    return False
