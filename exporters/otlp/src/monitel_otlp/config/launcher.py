"""Who of many is speaking: rank, world size and run, from the variables of the launcher."""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource, ResourceDetector

#: For each attribute the variables that say it, the most particular launcher first: torchrun (and Ray Train, which sets
#: the same ones), Open MPI, SLURM, Kubernetes (an Indexed Job, and names by the downward API).
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

_TOO_LONG = 19  # digits: it might not go into 64 bits


class RankResourceDetector(ResourceDetector):
    """Reads ``training.*`` resource attributes (experimental names) from the launcher's variables.

    It is the entry point ``monitel`` of ``opentelemetry_resource_detector``; :func:`monitel_otlp.configure` uses it by
    default. A variable that is no number where one is due is passed over.

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
        """What the variables say."""
        return Resource(launch_attributes())


def launch_attributes() -> dict[str, str | int]:
    """The ``training.*`` attributes of this process; empty where no launcher has set anything."""
    found: dict[str, str | int] = {}
    for attribute, variables in VARIABLES.items():
        for variable in variables:
            value = os.environ.get(variable, "").strip()
            if attribute == "training.run.id" and value:
                found[attribute] = readable(value)
            elif value.isdecimal() and len(value) < _TOO_LONG:
                found[attribute] = int(value)
            if attribute in found:
                break
    return found


def readable(value: str) -> str:
    """A variable's text as UTF-8 can hold it: variables are bytes, and what is none of its characters is spelt out."""
    return value.encode(errors="backslashreplace").decode()
