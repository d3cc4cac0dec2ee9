"""Resource attributes of the launcher (rank, world size, run), the host and the process."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource, ResourceDetector, ServiceInstanceIdResourceDetector

from monitel.os_threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.util.types import AttributeValue

#: The variables of each attribute, in order of precedence: torchrun (and Ray Train, which sets the same variables),
#: Open MPI, SLURM, Kubernetes (an Indexed Job, and variables that the downward API sets), Grid Engine. A run id is
#: what restarts keep and no other run has: not the name of a job, nor Ray's number, which each cluster counts from 1.
VARIABLES = {
    "training.run.id": ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "KUBEFLOW_TRAINING_JOB_ID", "JOB_ID"),
    "training.attempt": ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    "training.rank": ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"),
    "training.local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "training.world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
    "training.node_rank": ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID"),
}

#: Rank, local rank and world size of launchers that set all three.
_COMPLETE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
_NO_ID = "none"  # torchrun's run id without --rdzv-id: the same for all jobs
_TOO_LONG = 19  # digits of a number that may not fit in 64 bits


class RankResourceDetector(ResourceDetector):
    """Reads ``training.*`` resource attributes (experimental names) from the launcher's variables.

    It is the entry point ``monitel`` of ``opentelemetry_resource_detector``; :func:`monitel_otlp.configure` uses it by
    default. A variable that should hold a number and does not is ignored. If torch.distributed is initialized, its rank
    and world size take precedence.

    Example:
        >>> import os
        >>> from monitel_otlp import RankResourceDetector
        >>> os.environ.update(RANK="3", WORLD_SIZE="8", TORCHELASTIC_RUN_ID="run-7")
        >>> sorted(RankResourceDetector().detect().attributes.items())
        [('training.rank', 3), ('training.run.id', 'run-7'), ('training.world_size', 8)]
        >>> for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        ...     del os.environ[name]
    """

    def detect(self) -> Resource:
        """Return a resource with the attributes of :func:`launch_attributes`."""
        return Resource(launch_attributes())


def launch_attributes() -> dict[str, str | int]:
    """Return the ``training.*`` attributes of this process; empty without a launcher."""
    found: dict[str, str | int] = {}
    for attribute, variables in VARIABLES.items():
        for variable in variables:
            value = os.environ.get(variable, "").strip()
            if attribute == "training.run.id":
                found |= _run_id(variable, value)
            elif (number := _number(variable)) is not None:
                found[attribute] = number
            if attribute in found or value == _NO_ID:
                break
    if _number("RANK") is None and _number("LOCAL_RANK") is not None and _number("WORLD_SIZE") is not None:
        found.pop("training.rank", None)
        if (rank := _infer_rank()) is not None:
            found["training.rank"] = rank
    if (member := distributed_rank()) is not None:
        found["training.rank"], found["training.world_size"] = member
    return found


def rank_on_points(launch: Mapping[str, str | int], resource: Resource, *, always: bool) -> dict[str, str | int]:
    """Return the rank as an attribute of all points, if it is known, and if the resource is not this process's alone.

    Args:
        launch: The attributes of the launcher.
        resource: The resource of the points. Only the random id that the SDK makes is different in each process.
        always: Return it in any case.
    """
    own = ServiceInstanceIdResourceDetector().detect().attributes["service.instance.id"]
    if not always and resource.attributes.get("service.instance.id") == own:
        return {}
    return {name: launch[name] for name in ("training.rank",) if name in launch}


def is_rank_zero(launch: Mapping[str, str | int]) -> bool:
    """Return True if the attributes of the launcher are those of rank zero, or of a process without a launcher."""
    if "training.rank" in launch:
        return launch["training.rank"] == 0
    return not launch.get("training.local_rank") and not launch.get("training.node_rank")


def distributed_rank() -> tuple[int, int] | None:
    """Return rank and world size of torch.distributed, if it is initialized with more than one rank.

    This neither imports torch nor communicates, so it does not wait for a process group that hangs.
    """
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    except Exception:  # torch is being imported, or the group is being destroyed
        return None
    return (rank, world_size) if world_size > 1 and rank >= 0 else None


def _run_id(variable: str, value: str) -> dict[str, str]:
    """Return the run id that the value of a variable gives, as an attribute; empty if it names no run."""
    if variable == "JOB_ID":  # other programs use this name, too; the tasks of an array are separate runs
        task = os.environ.get("SGE_TASK_ID", "")
        value = "" if not task else value if task == "undefined" else f"{value}.{task}"
    if value in {"", _NO_ID}:
        return {}
    # As monitel.attributes.escape_surrogates does, which a launcher need not import.
    return {"training.run.id": value.encode(errors="backslashreplace").decode()}


def _infer_rank() -> int | None:
    """Return the rank where LOCAL_RANK and WORLD_SIZE are set and RANK is not, as by Lightning; None if unknown.

    Open MPI and SLURM may have started only the parent of this process. Their rank is used if their local rank and
    world size are those of this process.
    """
    local_rank, world_size = _number("LOCAL_RANK"), _number("WORLD_SIZE")
    assert local_rank is not None  # because the caller has checked both
    assert world_size is not None
    for variables in _COMPLETE:
        rank, *others = map(_number, variables)
        if others == [local_rank, world_size]:
            return rank
    node_rank, per_node = _number("NODE_RANK"), _number("LOCAL_WORLD_SIZE")
    if node_rank is None and per_node == world_size:
        node_rank = 0
    if node_rank == 0:
        inferred = local_rank
    elif node_rank is None or per_node is None:
        return None
    else:
        inferred = node_rank * per_node + local_rank
    return inferred if inferred < world_size else None


def _number(variable: str) -> int | None:
    """Return the value of a variable that holds a number; None if it is not set or malformed."""
    value = os.environ.get(variable, "").strip()
    return int(value) if value.isdecimal() and len(value) < _TOO_LONG else None


_log = logging.getLogger("monitel.otlp")


class RankCheck:
    """Logs a warning, once, if torch.distributed is initialized with another rank than the telemetry has.

    A process that calls ``configure()`` before its launcher sets the variables has no rank, or that of its parent.

    Args:
        rank: ``training.rank`` of the telemetry; None if it has none.

    Attributes:
        member: Rank and world size in torch.distributed, even after its end; None if it was not initialized.
    """

    def __init__(self, rank: object) -> None:
        self._rank = rank
        self.member: tuple[int, int] | None = None

    def check(self) -> None:
        """Compare the ranks if torch.distributed is initialized. Never raises, and never waits for other ranks."""
        if self.member is not None or (member := distributed_rank()) is None:
            return
        self.member = rank, world_size = member
        if str(self._rank) != str(rank):  # OTEL_RESOURCE_ATTRIBUTES holds text
            _log.warning(
                "torch.distributed reports rank %d of %d, but the telemetry of this process has %s: call configure() "
                "after init_process_group(), or start the ranks with torchrun",
                rank,
                world_size,
                "no training.rank" if self._rank is None else f"training.rank={self._rank!s:.40}",
            )


#: The exported attributes. The detectors find more: ``host.id`` is confidential, the command may hold secrets, and the
#: owner and the paths name users.
ATTRIBUTES = {
    *("host.name", "host.arch"),
    *("os.type", "os.version"),
    *("process.pid", "process.executable.name"),
    *("process.runtime.name", "process.runtime.version", "process.runtime.description"),
}
_DETECT_TIMEOUT = 1.0  # seconds; to find the owner of the process may need the network


def host_attributes() -> Mapping[str, AttributeValue]:
    """Return the attributes of ``ATTRIBUTES`` that OpenTelemetry's detectors find within a second. Never raises."""
    found: dict[str, AttributeValue] = {}
    if (thread := start_thread(lambda: _detect(found), "monitel-otlp-host")) is not None:
        thread.join(_DETECT_TIMEOUT)
    if thread is not None and thread.is_alive():
        _log.warning(
            "a detector of host and process takes more than %g s; its attributes are left out", _DETECT_TIMEOUT
        )
    return dict(found)


def _detect(found: dict[str, AttributeValue]) -> None:
    from monitel_otlp._compat import (  # here: it loads the SDK, which may be loading the detector above
        HostResourceDetector,
        OsResourceDetector,
        ProcessResourceDetector,
    )

    for detector in (HostResourceDetector, OsResourceDetector, ProcessResourceDetector):
        try:
            detected = detector().detect().attributes
        except Exception:
            _log.warning("%s failed; its attributes are left out", detector.__name__.lstrip("_"), exc_info=True)
            continue
        found.update({name: value for name, value in detected.items() if name in ATTRIBUTES})
