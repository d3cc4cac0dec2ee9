"""The work of ``monitel run`` besides waiting for its command: delivery of what processes leave, and the summary."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from queue import Empty
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from monitel.blackbox.death import Deaths
from monitel.console.commands.output import warn
from monitel.console.exporters import load, report_deaths
from monitel.console.summary import print_summary

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    report_deaths(worker.folder, deaths)
    watch = worker.watch
    running = [f"{each.pid}-{each.start}" for each in watch.running]
    children = watch.children
    print_summary(worker.folder, cause=deaths.cause, running=running, children=children, endpoint_given=endpoint_given)
    if end.status and ends and all(each.status == 0 for each in ends):
        code = os.waitstatus_to_exitcode(end.status)
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        warn(f"the command failed with {how}, although the processes that were recorded did not")
