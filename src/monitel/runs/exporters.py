"""The exporters of ``monitel run``, and the start of telemetry without code in the program.

An exporter is a plug-in: a module that an entry point of the group ``monitel.exporters`` names. It has

* ``check_endpoint(endpoint)``, which raises a ValueError for an endpoint of ``monitel run`` that is wrong;
* ``begin()``, which starts to export what this process records;
* ``start(name, folder, run_id)``, which does so for :func:`monitel.start`, and returns the exporter, as
  :func:`monitel.run_events.enter` knows it, and a function that ends it within so many seconds; or None if it is
  switched off;
* ``attempt(command, began_ns, folder, deaths, problems)``, which returns an object like
  :class:`monitel_otlp.attempts.CommandTelemetry`: it delivers what processes have left at their end.

Without an exporter a process still has a record, which the commands of monitel show. A writer, of the group
``monitel.writers``, is such a function ``start()``: rank zero of a run calls it, to write files into its folder.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Any

from monitel.blackbox.settings import spool_root
from monitel.process.launcher import VARIABLES, is_launcher, launch_attributes
from monitel_run.folder import PROCESS, announce, identify

GROUP, WRITERS = "monitel.exporters", "monitel.writers"

#: The variables by which launchers give each process a rank.
_RANKS = ("LOCAL_RANK", *VARIABLES["training.rank"])

_begun = False


def load(group: str = GROUP) -> tuple[list[Any], list[str]]:
    """Return the exporters that are installed, and a message for each one that cannot be loaded."""
    found: list[Any] = []
    problems: list[str] = []
    for each in entry_points(group=group):
        try:
            found.append(each.load())
        except Exception as error:
            problems.append(f"the exporter {each.name!r} cannot be loaded: {error!r}")
    return found, problems


def begin(module: str) -> bool:
    """Start telemetry after the import of a module: the exporters, and with ``torch`` also its instrumentation.

    Nothing is started in launchers, and in processes that a recorded process has started, unless they have a rank.
    A program that has begun to make a pipeline itself does both itself. Return True if further modules are awaited.
    """
    global _begun
    if not _begun:
        if not is_recorded():
            return False
        _begun = True
        exporters, _ = load()
        for each in exporters:
            each.begin()
        if not exporters:
            from monitel.runs.recorded import Recorded  # late: no process with an exporter needs it

            Recorded(spool_root(), launch_attributes())
    if module == "torch":
        from monitel.torch.instrumentation import instrument  # late: it requires torch

        instrument()
    return module != "torch"


def is_recorded() -> bool:
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
