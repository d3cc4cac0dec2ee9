"""Events on their way through the application's own LoggerProvider."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import monitel
from monitel_otel import Records
from monitel_otlp.accounting import Stage
from monitel_otlp.sdk._compat import get_logger_provider, is_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel_otlp.accounting import Accounting
    from monitel_otlp.logs.mapping import LoggedEvent
    from monitel_otlp.sdk._compat import ReadableLogRecord

_log = logging.getLogger("monitel.otlp")

_SCOPE = "monitel"


class ApplicationEvents:
    """Emits events as log records of the global LoggerProvider, for a pipeline that is attached to an application's.

    With an exporter of ours behind that provider the records come back, and are counted once. Without one the provider
    is their destination, and they count as delivered. Where there is no provider, or a processor of the application
    raises, the event is dropped, counted as ``application``, unless an exporter of ours may still receive it; the first
    exception is logged.

    Args:
        accounting: Counts the items.
    """

    def __init__(self, accounting: Accounting) -> None:
        self.returned = False  # an exporter of ours takes log records
        self._accounting = accounting
        self._records: Records | None = None
        self._failed = False

    def add(self, events: Sequence[LoggedEvent]) -> None:
        """Emit some events; never raises."""
        for event in events:
            returned = self.returned  # read once: an exporter may be made meanwhile
            if returned:
                self._accounting.move("logs", Stage.ENCODING, Stage.APPLICATION, 1)
            emitted = self._emit(event)
            if not returned and emitted:
                self._accounting.deliver("logs", Stage.ENCODING, 1)
            elif not returned:
                self._accounting.drop("logs", Stage.ENCODING, "application", 1)

    def _emit(self, logged: LoggedEvent) -> bool:
        event, step, context, inside, observed_ns = logged
        try:
            if self._records is None:
                if not is_set(get_logger_provider()):
                    return False
                self._records = Records(get_logger_provider().get_logger(_SCOPE, monitel.__version__))
            where = context if inside is None else inside.context(context)
            self._records.write(event, step=step, context=where, observed_ns=observed_ns)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("the application's LoggerProvider failed on an event (further failures are not logged)")
            return False
        return True

    def take_back(self, batch: Sequence[ReadableLogRecord]) -> None:
        """Count the records that an exporter of ours is given: events that come back, and the application's own."""
        scopes = [record.instrumentation_scope for record in batch]
        with self._accounting.lock:
            ours = sum(scope is not None and scope.name == _SCOPE for scope in scopes)
            ours = min(ours, self._accounting.held("logs", Stage.APPLICATION))
            self._accounting.move("logs", Stage.APPLICATION, Stage.ENCODING, ours)
            self._accounting.record("logs", len(batch) - ours)
