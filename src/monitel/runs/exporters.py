"""The exporters of ``monitel run``, and the start of telemetry without code in the program.

An exporter is a plug-in: a module that an entry point of the group ``monitel.exporters`` names. It has

* ``check_endpoint(endpoint)``, which raises a ValueError for an endpoint of ``monitel run`` that is wrong;
* ``begin()``, which starts to export what this process records;
* ``attempt(command, began_ns, folder, deaths, problems)``, which returns an object like
  :class:`monitel_otlp.attempts.CommandTelemetry`: it delivers what processes have left at their end.

Without an exporter a process still has a record, which the commands of monitel show.
"""

from __future__ import annotations

import atexit
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel.process.launcher import is_launcher, launch_attributes
from monitel.process.os_threads import in_main_thread
from monitel_run.folder import PROCESS, announce, identify

if TYPE_CHECKING:
    from monitel.blackbox.account import Account

GROUP = "monitel.exporters"

#: The variables by which launchers give each process a rank.
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")

_begun = False


def load() -> tuple[list[Any], list[str]]:
    """Return the exporters that are installed, and a message for each one that cannot be loaded."""
    found: list[Any] = []
    problems: list[str] = []
    for each in entry_points(group=GROUP):
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
            _record()
    if module == "torch":
        from monitel.torch import instrument  # late: it requires torch

        instrument()
    return module != "torch"


def _record() -> None:
    """Keep a record of this process, and report its end to ``monitel run``, as an exporter does."""
    import monitel.runs.ended  # noqa: F401  a class that is made at the end would hide Ctrl-C from the exit status
    from monitel.blackbox.silent import hold  # late: here and below, no process with an exporter needs it
    from monitel.process.sigterm import SigtermHandler, is_default
    from monitel.run_events import enter

    hold(begin)
    atexit.register(_report_end)  # after run.ended
    enter(begin)
    if in_main_thread() and is_default():
        SigtermHandler(_terminate, _preempt, replaceable=True).install()


def _preempt(_timeout: float) -> None:
    from monitel.run_events import preempt

    if os.getpid() != 1:  # process 1 of a container lives on
        preempt()


def _terminate(timeout: float) -> None:
    from monitel.run_events import end_on_sigterm

    _preempt(timeout)
    _report_end()
    end_on_sigterm(timeout)  # for TensorBoard


def _report_end() -> None:
    from monitel.blackbox.silent import give_way, release
    from monitel.runs.ended import store_end

    if (series := release(begin)) is not None:  # else the program has an exporter
        accounts: dict[str, Account] = {}
        names = launch_attributes()
        store_end(names, series, accounts, None, spool=Path(), stored=False)
        give_way()  # of another owner, which SIGTERM does not end


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
