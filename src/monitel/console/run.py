"""The work of ``monitel run`` besides waiting for its command: delivery of what processes leave, and the summary."""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager, suppress
from queue import Empty
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from monitel.blackbox.death import Deaths, death_of
from monitel.blackbox.folder import automatic_roots
from monitel.blackbox.reading import read_record
from monitel.blackbox.recovery import claim, processes
from monitel.blackbox.settings import FOLDERS
from monitel.console.commands.output import warn
from monitel.console.summary import print_summary
from monitel.runs.ended import store_death
from monitel.runs.exporters import load
from monitel.variables import read_variables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from monitel_run.command import Worker
    from monitel_run.parent import Ended

_ENDING = 5.0  # seconds for collection and delivery
_SILENT = 1.0  # seconds of these before a message is printed


def deliver(worker: Worker) -> None:
    """Collect and deliver, in the thread of the worker, what processes leave, until the end of the command."""
    deaths, watch = Deaths(), worker.watch
    with _reported(worker):
        exporters, problems = load()
        worker.problems += problems
        worker.attempts += [each.attempt(*worker.facts, deaths, worker.problems) for each in exporters]
    long, ended = worker.long, None
    while ended is None or ended is not worker.end:
        try:
            ended = watch.news.get(timeout=max(0.0, long - time.monotonic()))
            deaths.observe(*ended[:4])
        except Empty:
            long, ended = TIMEOUT_MAX, None
        for attempt in worker.attempts:
            with _reported(worker):
                if ended is None:
                    attempt.log_start()
                elif ended is worker.end:
                    attempt.finish(ended, watch.ends, recorded=watch.announced > 0)
                else:
                    attempt.collect(observed_only=True)


@contextmanager
def _reported(worker: Worker) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        worker.problems.append(f"the telemetry of the command could not be finished: {error!r}")


def finish(worker: Worker, end: Ended, *, endpoint_given: bool) -> None:
    """Wait for the delivery of what is left, for some seconds at most, and print the summary."""
    worker.end = end
    worker.watch.news.put(end)
    try:
        worker.join(_SILENT)
        if worker.is_alive():
            warn("delivering the remaining telemetry; Ctrl-C stops the delivery, and the rest stays on disk")
            worker.join(_ENDING - _SILENT)
    finally:
        for attempt in worker.attempts:
            attempt.stop()
    for problem in worker.problems:
        warn(problem)
    deaths, ends = Deaths(), worker.watch.ends  # the worker may still be busy with its own
    for each in (*ends, end):
        deaths.observe(*each[:4])
    _report_deaths(worker.folder, deaths)
    watch = worker.watch
    running = [f"{each.pid}-{each.start}" for each in watch.running]
    children = watch.children
    print_summary(worker.folder, cause=deaths.cause, running=running, children=children, endpoint_given=endpoint_given)
    if end.status and ends and all(each.status == 0 for each in ends):
        code = os.waitstatus_to_exitcode(end.status)
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        warn(f"the command failed with {how}, although the processes that were recorded did not")


def _report_deaths(folder: Path, deaths: Deaths) -> None:
    """Write the reports of killed processes that no exporter has collected. Their records stay. Never raises."""
    given = read_variables(FOLDERS, {"black_box_dir": None}).get("black_box_dir")
    for root in automatic_roots() if given is None else [given]:
        for name in processes(root, None):
            with suppress(Exception):
                if (dead := claim(root, None, name)) is not None:
                    with closing(dead):
                        record = read_record(dead.box, dead.disk) if dead.box is not None else None
                        if record is not None and record.run == str(folder) and not dead.has_ended:
                            store_death(record, death_of(record, deaths), record.path)
