"""Black boxes and spools of earlier processes: the boxes become spools, those for the same endpoints are delivered."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monitel.os_threads import Event, Lock, start_thread
from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.delivery.replay import replay
from monitel_otlp.spool.spool import SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from monitel_otlp.choices import BoxSettings
    from monitel_otlp.transport.answer import Transport

_log = logging.getLogger("monitel.otlp")


class Leftovers:
    """Delivers what ended processes of this user have left. All of it happens in a separate thread.

    First the black boxes of processes that were killed become spools, beside the spools of these processes. Then, after
    the backend has accepted a request of this pipeline, the spools beside its own are delivered.

    The name of a spool folder ends with a mark of its endpoints. Only folders with the mark of this pipeline are
    delivered. A folder stays for the next process or for ``replay`` if it is in use, if it cannot be read, or if the
    backend does not accept a request at the first attempt. The items are not part of the account of this process.

    Args:
        own: The spool folder of this process.
        mark: The end of the names of the folders to deliver; empty without endpoints: then nothing is delivered.
        make_transports: Makes the transports of the thread.
        box: The settings of black boxes. No boxes are collected if they are switched off.
    """

    def __init__(
        self, own: Path, mark: str, make_transports: Callable[[], Mapping[str, Transport]], box: BoxSettings
    ) -> None:
        self._own = own
        self._mark = mark
        self._make_transports = make_transports
        self._box = box
        self._starting = Lock()
        self._accepted = Event()
        self._stopped = Event()
        self._started = False

    @property
    def accepted(self) -> bool:
        """True after :meth:`deliver`, or after :meth:`stop`."""
        return self._accepted.is_set()

    def collect(self) -> None:
        """Start the thread, if black boxes are not switched off. Idempotent, and thread-safe."""
        if self._box.enabled:
            self._start()

    def deliver(self) -> None:
        """Allow the delivery, because the backend has accepted a request. Idempotent, and thread-safe."""
        if self._mark:
            self._accepted.set()
            self._start()

    def stop(self) -> None:
        """Stop after the box or the request that is being processed; the rest stays."""
        self._stopped.set()
        self._accepted.set()

    def _start(self) -> None:
        with self._starting:
            if self._stopped.is_set() or self._started:
                return
            self._started = start_thread(self._run, "monitel-otlp-leftovers") is not None
            if not self._started:
                self.stop()

    def _run(self) -> None:
        suppress_instrumentation()
        if self._box.enabled:
            self._collect()
        if self._mark:
            self._accepted.wait()
            self._deliver_all()

    def _collect(self) -> None:
        collected = collect_boxes(self._box.folder, fallback=self._own.parent, stopped=self._stopped)
        for problem in collected.problems:
            _log.warning("%s", problem)
        for death in collected.deaths:
            _log.info("%s", death)
        for folder in collected.spools:
            _log.info("the black box of a killed process is now in the spool %s", folder)

    def _deliver_all(self) -> None:
        try:
            folders = sorted(self._own.parent.glob(f"*-{self._mark}"))
        except OSError:
            return
        folders = [folder for folder in folders if folder != self._own and not folder.is_symlink()]
        if not folders or self._stopped.is_set():
            return
        transports = self._make_transports()
        try:
            for folder in folders:
                if self._stopped.is_set() or not self._deliver(folder, transports):
                    break
        finally:
            for transport in transports.values():
                transport.close()

    def _deliver(self, folder: Path, transports: Mapping[str, Transport]) -> bool:
        """Deliver one folder; return False if the backend does not accept its requests now."""
        try:
            outcome = replay(folder, transports, pauses=(), stopped=self._stopped)
        except (SpoolError, OSError) as error:
            _log.debug("%s was not delivered: %s", folder, error)
            return True
        _log.info("delivered %d items that an earlier process had left in %s", outcome.delivered, folder)
        return not outcome.troubles
