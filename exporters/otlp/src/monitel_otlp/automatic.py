"""The pipeline that is made without code: it gives way to a pipeline that the program makes itself.

This module is the entry point ``otlp`` of ``monitel.exporters``, by which ``monitel run`` finds :func:`check_options`,
:func:`begin` and :func:`attempt`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monitel_otlp.attempts import Attempt
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


def check_options(endpoint: str | None, headers: Mapping[str, str]) -> None:
    """Check options of ``monitel run``.

    Raises:
        ValueError: One of them is wrong.
    """
    from monitel_otlp.config.environment import is_header  # late, as below: a process loads what it needs
    from monitel_otlp.config.settings import resolve

    if not all(is_header(*each) for each in headers.items()):
        raise ValueError("--header: expected NAME=VALUE (the argument is not shown, because it may hold a token)")
    try:
        resolve(endpoint)
    except ValueError as error:
        raise ValueError(f"--endpoint: {error}") from None


def begin() -> None:
    """Make the pipeline without code, unless the program has begun to make one itself."""
    if "monitel_otlp.configuration" not in sys.modules:
        from monitel_otlp.configuration import configure_automatically

        configure_automatically()


def attempt(*given: Any) -> Attempt:
    """Return what delivers for ``monitel run``; the arguments are those of :class:`Attempt`."""
    from monitel_otlp.attempts import Attempt

    return Attempt(*given)


class Instrumentor:
    """Makes a pipeline without code for ``opentelemetry-instrument``, as ``monitel run`` does.

    It is the entry point ``monitel`` of ``opentelemetry_instrumentor``. The pipeline sends what the program records by
    monitel, beside the exporters that OpenTelemetry's distribution has made for what it records by OpenTelemetry's API.
    Nothing is made in launchers, and in processes that a recorded process has started, unless they have a rank.
    """

    def instrument(self, **_given: Any) -> None:
        """Make the pipeline, unless there is one."""
        from monitel.console.exporters import begin

        begin("monitel")

    def uninstrument(self, **_given: Any) -> None:
        """End the pipeline that was made without code."""
        if _current is not None:
            _current.pipeline.shutdown()
