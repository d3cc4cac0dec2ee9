"""The thread that collects the records of killed processes, and delivers what earlier processes have left."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

from monitel.blackbox.recovery import processes
from monitel.os_threads import Event, start_thread
from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.export.dead import collect, roots_of
from monitel_otlp.export.ended_records import oldest_first, take
from monitel_otlp.export.replay import deliver
from monitel_otlp.transport import make_transports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from monitel_otlp.config.settings import Settings
    from monitel_otlp.transport.answer import Transport

_log = logging.getLogger("monitel.otlp")


class Leftovers:
    """Collects the records of killed processes, and delivers records in a background thread.

    First the boxes of killed processes are collected. Then, after the backend has accepted a request of this pipeline,
    the records beside its own are delivered, oldest first.

    The name of a record ends with a mark of its endpoints. Only records with the mark of this pipeline are delivered. A
    record stays for the next process or for ``replay`` if it is in use, if it cannot be read, or if the backend does
    not accept a request at the first attempt. The items are not part of the account of this process.

    Args:
        settings: The mark of the endpoints, without which nothing is delivered; the folder of spools; and the settings
            of black boxes: none are collected if they are switched off.
        own_name: The name of the record of this process.
        accepted: Is set when the backend has accepted a request.
    """

    def __init__(self, settings: Settings, own_name: str, accepted: Event) -> None:
        self._own_name = own_name
        self._settings = settings
        self._mark = settings.mark
        self._spool = settings.spool_root.absolute()
        self._roots = roots_of(settings.box.folder) if settings.box.enabled else []
        self._accepted = accepted
        self._stopped = Event()

    def start(self) -> None:
        """Start the thread, if there is something to do for it."""
        if (self._roots or self._mark) and start_thread(self._run, "monitel-otlp-leftovers") is None:
            self.stop()

    def stop(self) -> None:
        """Stop after the box or the request that is being processed; the rest stays."""
        self._stopped.set()
        self._accepted.set()

    def _run(self) -> None:
        suppress_instrumentation()
        collected = collect(self._roots, self._spool, stopped=self._stopped, keep_unread=True)
        for problem in collected.problems:
            _log.warning("%s", problem)
        for death in collected.deaths:
            _log.info("%s", death)
        for path in collected.records:
            _log.info("what a killed process has left is now in %s", path)
        if self._mark:
            self._accepted.wait()
            self._deliver_all()

    def _deliver_all(self) -> None:
        """Deliver the records one after the other, until the backend does not accept one."""
        transports: Mapping[str, Transport] = {}
        try:
            for path in records_of(self._roots, self._spool, self._mark):
                if self._stopped.is_set():
                    break
                if path.name != self._own_name:
                    transports = transports or make_transports(self._settings)
                    if not self._deliver(path, transports):
                        break
        finally:
            for transport in transports.values():
                transport.close()

    def _deliver(self, path: Path, transports: Mapping[str, Transport]) -> bool:
        """Deliver a record; return False if the backend does not accept its requests now."""
        try:
            with closing(take(path, self._roots)) as dead:
                outcome = deliver(dead, transports, tries=1, stopped=self._stopped)
        except Exception as error:  # even if its values are senseless
            _log.debug("%s was not delivered: %s", path, error)
            return True
        _log.info("delivered %d items that an earlier process had left in %s", outcome.delivered, path)
        return not outcome.troubles


def records_of(roots: list[Path], spool: Path, mark: str) -> list[Path]:
    """Return the records with a mark, oldest first: for each one its spool folder, or its box if it has none."""
    found = {}
    for folder in (*roots, spool):
        names = (name for name in processes(folder, None) if name.endswith(f"-{mark}"))
        found.update({name: folder / name for name in names if not (folder / name).is_symlink()})
    return oldest_first(found.values())
