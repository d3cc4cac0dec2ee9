"""The pipeline that is made without code: it gives way to a pipeline that the program makes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel_otlp.pipeline import Pipeline

_MOST = 1000  # events that are kept for the other pipeline

_current: Automatic | None = None


class Automatic:
    """A pipeline, and the events that it has received before its first request.

    Args:
        pipeline: The pipeline.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._events: list[monitel.Event] = []
        self._complete = True
        self._handle = monitel.register_event_handler(self._keep)

    def _keep(self, event: monitel.Event) -> None:
        engine = self.pipeline.engine
        sent = engine is None or engine.has_sent
        self._complete = self._complete and not sent and event.window is None and len(self._events) < _MOST
        if self._complete:
            self._events.append(event)
        else:
            self._events.clear()
            monitel.unregister_event_handler(self._handle)

    def give_way(self) -> list[monitel.Event]:
        """End the pipeline. Return the events that the other one is to take, because this one has not sent them."""
        monitel.unregister_event_handler(self._handle)
        discarded = self.pipeline.give_way(discard=self._complete)
        return [event for event in self._events if event.name != "run.started"] if discarded else []


def keep(pipeline: Pipeline) -> None:
    """Let a pipeline, which was just made, give way to one that the program makes itself."""
    global _current
    _current = Automatic(pipeline)


def replace_automatic() -> list[monitel.Event] | None:
    """End the pipeline that was made without code, because the program makes one itself.

    Returns:
        The events that the other one is to take; None if there was none.
    """
    global _current
    automatic, _current = _current, None
    if automatic is None or automatic.pipeline.ended is not None:
        return None
    return automatic.give_way()


def hand_over(events: Iterable[monitel.Event] | None, pipeline: Pipeline) -> None:
    """Let a new pipeline take the events that :func:`replace_automatic` has returned."""
    for event in events or ():
        pipeline.take(event)


class Instrumentor:
    """Makes a pipeline without code for ``opentelemetry-instrument``, as ``monitel run`` does.

    It is the entry point ``monitel`` of ``opentelemetry_instrumentor``. The pipeline sends what the program records by
    monitel, beside the exporters that OpenTelemetry's distribution has made for what it records by OpenTelemetry's API.
    Nothing is made in launchers, and in processes that a recorded process has started, unless they have a rank.
    """

    def instrument(self, **_given: Any) -> None:
        """Make the pipeline, unless there is one."""
        from monitel.console.run.autostart import begin  # late: it is rarely needed

        begin("monitel")

    def uninstrument(self, **_given: Any) -> None:
        """End the pipeline that was made without code."""
        if _current is not None:
            _current.pipeline.shutdown()
