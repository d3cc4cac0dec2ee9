"""What earlier processes have left for the same endpoints."""

from __future__ import annotations

import logging
from threading import Thread
from typing import TYPE_CHECKING

from monitel_otlp.delivery.replay import replay
from monitel_otlp.sdk._compat import suppress_instrumentation
from monitel_otlp.spool.spool import SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from monitel_otlp.transport.answer import Transport

_log = logging.getLogger("monitel.otlp")


class _Stopped(Exception):  # noqa: N818  not an error
    """The pipeline ends."""


class Leftovers:
    """Delivers the spools that ended processes of this user have left beside the one of this process.

    A folder's name ends with a mark of the endpoints that its telemetry was meant for; only folders with the mark of
    this pipeline's are delivered, in a thread of its own, once the backend has accepted something. A folder that is in
    use, that cannot be read, or whose requests are not accepted at once, stays for the next process or for ``replay``.
    Their items are not in the account of this process.

    Args:
        own: The folder of this process's spool.
        mark: The end of the folders' names.
        make_transports: Makes the transports of the thread.
    """

    def __init__(self, own: Path, mark: str, make_transports: Callable[[], Mapping[str, Transport]]) -> None:
        self._own = own
        self._mark = mark
        self._make_transports = make_transports
        self._stopped = False
        self._thread = Thread(target=self._run, name="monitel-otlp-leftovers", daemon=True)

    @property
    def started(self) -> bool:
        """True once it has begun, or was stopped before that."""
        return self._stopped or self._thread.ident is not None

    def start(self) -> None:
        """Begin. Idempotent."""
        if not self.started:
            try:
                self._thread.start()
            except RuntimeError:  # the process ends
                self._stopped = True

    def stop(self) -> None:
        """Stop after the request under way; the rest stays on disk."""
        self._stopped = True

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
                if not self._deliver(folder, transports):
                    break
        except _Stopped:
            pass
        finally:
            for transport in transports.values():
                transport.close()

    def _deliver(self, folder: Path, transports: Mapping[str, Transport]) -> bool:
        """Deliver one folder; False where the backend does not accept it now."""
        try:
            outcome = replay(folder, transports, pauses=(), on_progress=self._check)
        except (SpoolError, OSError) as error:
            _log.debug("%s is not delivered: %s", folder, error)
            return True
        _log.info("delivered %d items that an earlier process had left in %s", outcome.delivered, folder)
        return not outcome.trouble

    def _check(self, _delivered: int, _total: int) -> None:
        if self._stopped:
            raise _Stopped
