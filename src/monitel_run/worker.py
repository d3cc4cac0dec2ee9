"""The work of ``monitel run`` besides waiting for its command: delivery of what processes leave, and the summary."""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Empty
from threading import TIMEOUT_MAX, Thread
from typing import TYPE_CHECKING

from monitel_run.processes import ProcessWatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monitel.blackbox.death import Deaths
    from monitel_otlp.attempts import Attempt
    from monitel_run.parent import Ended

_LONG = 5.0  # seconds after which the start of the command is logged before its end
_ENDING = 5.0  # seconds for collection and delivery
_SILENT = 1.0  # seconds of these before a message is printed


class Worker(Thread):
    """Does the work that may take long or fail. The main thread prints the summary in any case.

    It imports monitel once a process has announced itself, the command takes long, or it has ended.
    """

    def __init__(self, command: Sequence[str], began_ns: int, folder: str, announcements: int) -> None:
        super().__init__(name="monitel-run", daemon=True)
        self._folder, self._facts = Path(folder), (command, began_ns, Path(folder))
        self._long = time.monotonic() + _LONG
        self._end: Ended | None = None
        self._attempts: list[Attempt] = []  # one of each exporter
        self._problems: list[str] = []
        self._watch = ProcessWatch(announcements)
        self._watch.start()
        self.start()

    def run(self) -> None:
        """Collect and deliver what processes leave, until the end of the command."""
        self._watch.begun.wait(_LONG)
        with suppress(Exception):  # that of an import: the main thread prints it
            from monitel.blackbox.death import Deaths
            from monitel.runs.exporters import load

            deaths = Deaths()
            with self._reported():
                exporters, problems = load()
                self._problems += problems
                self._attempts += [each.attempt(*self._facts, deaths, self._problems) for each in exporters]
            self._deliver(deaths)

    def _deliver(self, deaths: Deaths) -> None:
        long, ended = self._long, None
        while ended is None or ended is not self._end:
            try:
                ended = self._watch.news.get(timeout=max(0.0, long - time.monotonic()))
                deaths.observe(*ended[:4])
            except Empty:
                long, ended = TIMEOUT_MAX, None
            for attempt in self._attempts:
                with self._reported():
                    if ended is None:
                        attempt.log_start()
                    elif ended is self._end:
                        attempt.finish(ended, self._watch.ends, recorded=self._watch.announced > 0)
                    else:
                        attempt.collect(observed_only=True)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._problems.append(f"the telemetry of the command could not be finished: {error!r}")

    def finish(self, end: Ended, *, endpoint_given: bool) -> bool:
        """Deliver what is left, for some seconds at most, and print the summary; return False without anything."""
        watch = self._watch
        watch.stop()
        sends = any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in os.environ)
        reports = len(os.listdir(self._folder)) > 1  # beside the FIFO
        if not (watch.announced or watch.children or self._attempts or sends or reports):
            return False
        from monitel.blackbox.death import Deaths
        from monitel.console.commands.output import warn
        from monitel.console.summary import print_summary

        self._end = end
        watch.news.put(end)
        watch.begun.set()
        try:
            self.join(_SILENT)
            if self.is_alive():
                warn("delivering the remaining telemetry; Ctrl-C stops the delivery, and the rest stays on disk")
                self.join(_ENDING - _SILENT)
        finally:
            for attempt in self._attempts:
                attempt.stop()
        for problem in self._problems:
            warn(problem)
        deaths = Deaths()  # the thread may still be busy with its own
        for each in (*watch.ends, end):
            deaths.observe(*each[:4])
        _report_deaths(self._folder, deaths)
        running = [f"{each.pid}-{each.start}" for each in watch.running]
        children = watch.children
        print_summary(
            self._folder, cause=deaths.cause, running=running, children=children, endpoint_given=endpoint_given
        )
        if end.status and watch.ends and all(each.status == 0 for each in watch.ends):
            code = os.waitstatus_to_exitcode(end.status)
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            warn(f"the command failed with {how}, although the processes that were recorded did not")
        return True


def _report_deaths(folder: Path, deaths: Deaths) -> None:
    """Write the reports of killed processes that no exporter has collected. Their records stay. Never raises."""
    from monitel.blackbox.death import death_of
    from monitel.blackbox.folder import box_roots
    from monitel.blackbox.reading import read_record
    from monitel.blackbox.recovery import claim, processes
    from monitel.blackbox.settings import FOLDERS
    from monitel.runs.ended import store_death
    from monitel.variables import read_variables

    for root in box_roots(read_variables(FOLDERS, {"black_box_dir": None}).get("black_box_dir")):
        for name in processes(root, None):
            with suppress(Exception):
                if (dead := claim(root, None, name)) is not None:
                    with closing(dead):
                        record = read_record(dead.box, dead.disk) if dead.box is not None else None
                        if record is not None and record.run == str(folder) and not dead.has_ended:
                            store_death(record, death_of(record, deaths), record.path)
