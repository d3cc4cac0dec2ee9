"""Delivery of the spools that earlier processes left for the same endpoints."""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.delivery.replay import replay
from monitel_otlp.spool.spool import SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from monitel_otlp.transport.answer import Transport

_log = logging.getLogger("monitel.otlp")


class Leftovers:
    """Delivers the spools that ended processes of this user have left beside the spool of this process.

    The name of a spool folder ends with a mark of its endpoints. Only folders with the mark of this pipeline are
    delivered, in a separate thread, after the backend has accepted a request. A folder stays for the next process or
    for ``replay`` if it is in use, if it cannot be read, or if the backend does not accept a request at the first
    attempt. The items are not part of the account of this process.

    Args:
        own: The spool folder of this process.
        mark: The end of the names of the folders to deliver.
        make_transports: Makes the transports of the thread.
    """

    def __init__(self, own: Path, mark: str, make_transports: Callable[[], Mapping[str, Transport]]) -> None:
        self._own = own
        self._mark = mark
        self._make_transports = make_transports
        self._starting = Lock()
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="monitel-otlp-leftovers", daemon=True)

    @property
    def started(self) -> bool:
        """True after :meth:`start`, or after :meth:`stop`."""
        return self._stopped.is_set() or self._thread.ident is not None

    def start(self) -> None:
        """Start the thread. Idempotent, and thread-safe."""
        with self._starting:
            if self.started:
                return
            try:
                self._thread.start()
            except RuntimeError:  # CPython starts no thread at the end of the process
                self._stopped.set()

    def stop(self) -> None:
        """Stop after the request that is being sent; the rest stays on disk."""
        self._stopped.set()

    def _run(self) -> None:
        suppress_instrumentation()
        try:
            folders = sorted(self._own.parent.glob(f"*-{self._mark}"))
        except OSError:
            return
        folders = [folder for folder in folders if folder != self._own and not folder.is_symlink()]
        if not folders:
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
