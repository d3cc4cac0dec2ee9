"""Resource attributes from the launcher's variables: rank, world size, run."""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource, ResourceDetector

#: The variables of each attribute, in order of precedence: torchrun (and Ray Train, which sets the same variables),
#: Open MPI, SLURM, Kubernetes (an Indexed Job, and variables that the downward API sets).
VARIABLES = {
    "training.run.id": (
        "TORCHELASTIC_RUN_ID",
        "SLURM_JOB_ID",
        "RAY_JOB_ID",
        "KUBEFLOW_TRAINING_JOB_ID",
        "JOB_NAME",
    ),
    "training.attempt": ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    "training.rank": ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"),
    "training.local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "training.world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
    "training.node_rank": ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID"),
}

_TOO_LONG = 19  # digits of a number that may not fit in 64 bits


class RankResourceDetector(ResourceDetector):
    """Reads ``training.*`` resource attributes (experimental names) from the launcher's variables.

    It is the entry point ``monitel`` of ``opentelemetry_resource_detector``; :func:`monitel_otlp.configure` uses it by
    default. A variable that should hold a number and does not is ignored.

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
            if attribute == "training.run.id" and value:
                # As monitel.attributes.escape_surrogates does, which a launcher need not import.
                found[attribute] = value.encode(errors="backslashreplace").decode()
            elif value.isdecimal() and len(value) < _TOO_LONG:
                found[attribute] = int(value)
            if attribute in found:
                break
    return found
