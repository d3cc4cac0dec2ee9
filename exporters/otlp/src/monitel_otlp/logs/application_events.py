"""Events of an attached pipeline, emitted through the application's LoggerProvider."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monitel_otel.records import Records
from monitel_otel.scope import SCOPE
from monitel_otlp._compat import get_logger_provider, is_set
from monitel_otlp.accounting import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel_otlp._compat import ReadableLogRecord
    from monitel_otlp.accounting import Accounting
    from monitel_otlp.logs.mapping import LoggedEvent

_log = logging.getLogger("monitel.otlp")


class ApplicationEvents:
    """Emits events as log records of the global LoggerProvider, for an attached pipeline.

    If the provider has a ``LogExporter`` of this package, the records come back and are counted once. Otherwise the
    provider is their destination, and they count as delivered. Without a provider, or if a processor of the application
    raises, the event is dropped and counted as ``application``, unless a ``LogExporter`` may still receive it. Only the
    first exception is logged.

    Args:
        accounting: Counts the items.

    Attributes:
        returned: A ``LogExporter`` receives the log records.
    """

    def __init__(self, accounting: Accounting) -> None:
        self.returned = False
        self._accounting = accounting
        self._records: Records | None = None
        self._failed = False

    def add(self, events: Sequence[LoggedEvent]) -> None:
        """Emit some events. Never raises."""
        for event in events:
            returned = self.returned  # read once: an exporter may be made in the meantime
            if returned:
                self._accounting.move("logs", Stage.ENCODING, Stage.APPLICATION, 1)
            emitted = self._emit(event)
            if not returned and emitted:
                self._accounting.deliver("logs", Stage.ENCODING, 1)
            elif not returned:
                self._accounting.drop("logs", Stage.ENCODING, "application", 1)

    def _emit(self, logged: LoggedEvent) -> bool:
        event, step, context, inside, observed_ns, _ = logged
        try:
            if self._records is None:
                if not is_set(get_logger_provider()):
                    return False
                self._records = Records(get_logger_provider().get_logger(*SCOPE))
            target = context if inside is None else inside.context(context)
            self._records.write(event, step=step, context=target, observed_ns=observed_ns)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("the application's LoggerProvider failed on an event (further failures are not logged)")
            return False
        return True

    def take_back(self, batch: Sequence[ReadableLogRecord]) -> None:
        """Count the records that a ``LogExporter`` receives: returned events, and records of the application."""
        scopes = [record.instrumentation_scope for record in batch]
        with self._accounting.lock:
            ours = sum(scope is not None and scope.name == SCOPE[0] for scope in scopes)
            ours = min(ours, self._accounting.held("logs", Stage.APPLICATION))
            self._accounting.move("logs", Stage.APPLICATION, Stage.ENCODING, ours)
            self._accounting.record("logs", len(batch) - ours)
