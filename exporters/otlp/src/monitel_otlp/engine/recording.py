"""The black box of an engine: events as they are emitted, and the requests of the encoder before they are sent."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

from monitel_otel.scope import SCOPE
from monitel_otlp.black_box.activity import describe
from monitel_otlp.black_box.box import BlackBox
from monitel_otlp.black_box.contents import Header
from monitel_otlp.black_box.recorder import Recorder
from monitel_otlp.black_box.window_state import WindowState
from monitel_otlp.config.run_folder import VARIABLE as RUN_FOLDER
from monitel_otlp.delivery.delivery import parts_of
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.spool.lock import this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel_otlp.black_box.recorder import Builder
    from monitel_otlp.choices import BoxSettings
    from monitel_otlp.delivery.delivery import Delivery
    from monitel_otlp.engine.encoder import Encoder, Source
    from monitel_otlp.logs.mapping import LoggedEvent
    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.metrics.readings import Readings
    from monitel_otlp.metrics.series import SeriesTable
    from monitel_otlp.metrics.window_queue import QueuedEntry
    from monitel_otlp.traces.span_queue import QueuedSpans


class Recording:
    """Passes requests from the encoder to the delivery: through the box if there is one, otherwise at once.

    Args:
        settings: Settings of the box.
        spool_dir: The spool folder of the pipeline.
        resource: The resource of the requests.
        mapping: The mapping of windows.
        table: The series of the pipeline.
        wake: Starts a round of the encoder.
        off: The signals that are not recorded.

    Attributes:
        box: The box.
    """

    def __init__(
        self,
        settings: BoxSettings,
        spool_dir: os.PathLike[str],
        resource: bytes,
        *,
        mapping: WindowMapping,
        table: SeriesTable,
        wake: Callable[[], object],
        off: frozenset[str],
    ) -> None:
        self._off = off
        self._spool_dir = spool_dir
        self._resource = resource
        self._mapping = mapping
        self.box = BlackBox(settings, self._header, wake)
        self._windows = WindowState(table)
        self._events = EventMapping()
        self._delivery: Delivery | None = None
        self._recorder: Recorder | None = None

    def begin(
        self,
        delivery: Delivery,
        encoder: Encoder,
        windows: Source,
        builders: Sequence[Builder],
        *,
        readings: Readings,
        ranges: QueuedSpans | None,
    ) -> None:
        """Set the parts of the engine; before the encoder starts."""
        self._delivery = delivery
        if self.box.enabled:
            self._recorder = Recorder(
                self.box,
                self._windows,
                builders,
                queued=lambda: len(windows.queue),
                drain=lambda paced: encoder.drain(windows, paced=paced),
                deliver=delivery.put,
                parts=parts_of,
                counters=readings.plain,
                describe=lambda: describe(ranges),
            )

    @property
    def due(self) -> float:
        """Monotonic time of the next cut; infinite without a box."""
        return math.inf if self._recorder is None else self._recorder.due

    def put(self, request: FrozenRequest) -> None:
        """Add a finished request of the encoder, unless its signal is off: metrics of the process may be in it."""
        if request.signal in self._off:
            return
        if self._recorder is not None:
            self._recorder.put(request)
            return
        assert self._delivery is not None  # because the encoder has started
        for part in parts_of(request):
            self._delivery.put(part)

    def commit(self, *, complete: bool, last: bool) -> None:
        """Pass the finished requests on, after a cut that includes them; see :meth:`Recorder.commit`."""
        if self._recorder is not None:
            self._recorder.commit(complete=complete, last=last)

    def emitted(self, logged: LoggedEvent) -> LoggedEvent:
        """Write an event that is being emitted, and return it with its number in the journal."""
        if not self.box.enabled:
            return logged
        return logged._replace(number=self.box.write_event(lambda: self._events.plain(logged)))

    def encoded_windows(self, entries: Sequence[QueuedEntry]) -> None:
        """Note windows that are encoded."""
        if self._recorder is not None:
            self._windows.encoded(entries)

    def event_done(self, logged: LoggedEvent) -> None:
        """Note an event that is encoded or dropped."""
        self.box.event_done(logged.number)

    def _header(self) -> Header:
        name, version, schema_url = SCOPE
        plain: Any = self._mapping.plain
        return Header(
            owner=this_process(),
            created_ns=time.time_ns(),
            resource=self._resource,
            scope=(name, version, schema_url),
            mapping=plain,
            spool_dir=str(self._spool_dir),
            run=os.environ.get(RUN_FOLDER, ""),
            off=tuple(self._off),
        )
