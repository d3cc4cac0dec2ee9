"""Start of telemetry without code in the program, by ``monitel run`` or by ``opentelemetry-instrument``."""

from __future__ import annotations

import os
import sys

from monitel.launcher import is_launcher
from monitel.run_folder import PROCESS, announce, identify

#: The variables by which launchers give each process a rank.
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")

_begun = False


def begin(module: str) -> bool:
    """Start telemetry after the import of a module: a pipeline, and with ``torch`` also its instrumentation.

    Nothing is started in launchers, and in processes that a recorded process has started, unless they have a rank.
    A program that has begun to make a pipeline itself does both itself.

    Args:
        module: ``"torch"`` or ``"monitel"``.

    Returns:
        True if further modules are awaited.
    """
    global _begun
    if not _begun:
        if not _is_recorded():
            return False
        _begun = True
        if "monitel_otlp.configuration" not in sys.modules:
            from monitel_otlp.configuration import configure_automatically  # late: it loads OpenTelemetry's SDK

            configure_automatically()
    if module == "torch":
        from monitel.torch import instrument  # late: it requires torch

        instrument()
    return module != "torch"


def _is_recorded() -> bool:
    """Return True if this process is one to record, and mark it for the processes that it starts."""
    if is_launcher(sys.orig_argv):
        return False
    process, rank = identify(), ",".join(os.environ.get(name, "") for name in _RANKS)
    recorded, _, rank_of_recorded = os.environ.get(PROCESS, "").partition(" ")
    if recorded not in {"", process} and rank == rank_of_recorded:
        return False
    os.environ[PROCESS] = f"{process} {rank}"
    announce(process, os.environ.get("RANK", ""))
    return True
