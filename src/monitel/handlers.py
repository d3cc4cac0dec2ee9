"""Events on their way to handlers: ``emit()``, registry and calls of handlers, and torch's handler for TensorBoard."""

from __future__ import annotations

import atexit
import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from monitel import clock
from monitel.attributes import checked_text, escape_surrogates, items_of, plain_copy, recordable
from monitel.counter import leave_out
from monitel.event import STAT_EVENT, Event, Severity, checked_severity
from monitel.process.exit import is_child
from monitel.process.failures import raise_first
from monitel.process.fork import register_at_fork
from monitel.process.launcher import is_rank_zero, launch_attributes, sdk_is_disabled
from monitel.process.os_threads import RLock
from monitel.stats._window import get_step

Log = Callable[[Event], None]
DetailsHook = Callable[[dict[str, Any], Callable[[object, object], object]], tuple[dict[str, Any], Log]]


class EventHandlerHandle:
    """The handle of a registered handler; leaving ``with handle:`` unregisters the handler.

    The handler stays registered if the handle is garbage-collected.
    """

    __slots__ = ("__weakref__", "_callback")
    _callback: Callable[[Event], object]

    def __init__(self) -> None:
        raise TypeError("EventHandlerHandle has no constructor: register_event_handler(callback) returns one")

    def __enter__(self) -> EventHandlerHandle:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        unregister_event_handler(self)

    def __repr__(self) -> str:
        return f"<EventHandlerHandle of {self._callback!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle an EventHandlerHandle: register the handler in the process that needs it")


_log = logging.getLogger("monitel")
_lock = RLock()  # held briefly while the tuple is replaced, never while handlers run
_handlers: tuple[EventHandlerHandle, ...] = ()
_details_hook: DetailsHook | None = None
_warns_at: float | None = None  # monotonic; None before the first event without a handler
_PATIENCE = 5.0  # seconds for which an application may record before it registers its first handler


def register_event_handler(callback: Callable[[Event], object]) -> EventHandlerHandle:
    """Call ``callback(event)`` for every event logged from now on.

    Handlers run one after another in registration order, in the thread that logs. No lock is held, so they may
    log, register, unregister and use Stats; they must be thread-safe. A callable that is registered twice is called
    twice. A forked child keeps the handlers.

    Args:
        callback: Any callable with one parameter; its result is ignored.

    Raises:
        TypeError: Not callable.

    Example:
        >>> import monitel
        >>> with monitel.register_event_handler(lambda event: print(event.name, event.data)):
        ...     monitel.emit("epoch", epoch=1)
        epoch {'epoch': 1}
    """
    global _handlers
    stop_no_handler_warning()
    if not callable(callback):
        raise TypeError(f"register_event_handler() takes a callable, got {type(callback).__qualname__}")
    handle = object.__new__(EventHandlerHandle)
    handle._callback = callback
    with _lock:
        _handlers = (*_handlers, handle)
    return handle


def unregister_event_handler(handler: EventHandlerHandle) -> None:
    """Unregister a handler. Idempotent.

    Args:
        handler: The handle that :func:`monitel.register_event_handler` returned.

    Raises:
        TypeError: Not such a handle.
    """
    global _handlers
    if not isinstance(handler, EventHandlerHandle):
        raise TypeError(
            "unregister_event_handler() takes the handle that register_event_handler() returned, "
            f"got {type(handler).__qualname__}"
        )
    with _lock:
        _handlers = tuple(other for other in _handlers if other is not handler)


def log_event(event: Event) -> None:
    """Call every registered handler with ``event``, in this thread.

    Every handler is called, even if one raises. Then the first exception is raised (KeyboardInterrupt and SystemExit
    before others); the others go to :func:`sys.unraisablehook`.

    Raises:
        TypeError: Not an :class:`monitel.Event`.
    """
    if not isinstance(event, Event):
        raise TypeError(f"log_event() takes an Event, got {type(event).__qualname__}")
    failures = None
    if not _handlers:
        _warn_of_no_handler()
    for handler in _handlers:
        try:
            handler._callback(event)
        except BaseException as error:
            failures = [*(failures or ()), error]
    if failures:
        raise_first(failures)


def stop_no_handler_warning() -> None:
    """Do not warn that there is no handler: there was one, or the application reads windows itself."""
    global _warns_at
    _warns_at = math.inf


def _warn_of_no_handler(*, ends: bool = False) -> None:
    """Warn once that what is recorded goes nowhere, in the first rank, and not in children of multiprocessing."""
    global _warns_at
    if _warns_at is None:
        _warns_at = math.inf if ends else time.monotonic() + _PATIENCE
    elif time.monotonic() >= _warns_at or (ends and _warns_at < math.inf):
        stop_no_handler_warning()
        if not is_child() and not sdk_is_disabled() and is_rank_zero(launch_attributes()):
            _log.warning(
                "log(), emit() and windows go nowhere: this process has no exporter. Call monitel.start() first, or "
                "monitel_otlp.configure(), monitel_tensorboard.install() or monitel.register_event_handler()"
            )


atexit.register(_warn_of_no_handler, ends=True)  # after the flush of Stats, which is registered later


def set_details_hook(hook: DetailsHook | None) -> None:
    """Set the ``hook(details, left_out) -> details, log`` of :func:`monitel.emit` and :func:`monitel.log`.

    It returns the details that are known now, and the function that logs their event when all of them are known. It
    never raises: ``left_out`` is called with each detail that it cannot read.
    """
    global _details_hook
    _details_hook = hook


def details_of(given: dict[str, Any], left_out: Callable[[object, object], object]) -> tuple[dict[str, Any], Log]:
    """Pass details through the hook."""
    return (given, log_event) if _details_hook is None else _details_hook(given, left_out)


def emit(
    name: str,
    data: Mapping[Any, Any] | None = None,
    /,
    *,
    severity: Severity | str = Severity.INFO,
    timestamp: datetime | None = None,
    **attributes: Any,
) -> None:
    """Create an :class:`monitel.Event` and log it.

    Details that are not str, bool, int (64 bits) or float, such as None and lists, are left out. They never raise: they
    are counted in ``monitel.log.left_out``, and the first one is logged.

    Args:
        name: The kind of event.
        data: Details whose names are not Python identifiers.
        severity: A :class:`Severity`, or its name such as ``"warning"``.
        timestamp: Time of the event; the current time by default.
        **attributes: Further details; they replace items of ``data`` with the same name.

    Raises:
        TypeError: ``name`` is not a str, ``data`` not a mapping, or ``timestamp`` not a datetime.
        ValueError: ``severity`` is neither a :class:`Severity` nor the name of one.
        Exception: A handler has raised it, as in :func:`monitel.log_event`.

    Example:
        >>> import monitel
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.emit("checkpoint.written", {"file.size": 1024}, step=7)
        >>> events[0].data
        {'file.size': 1024, 'step': 7}
    """
    time_ns = clock.time_ns()
    details = attributes
    if data is not None:
        if type(data) is not dict:
            if not isinstance(data, Mapping):
                raise TypeError(f"emit() takes a mapping of names to values, got {type(data).__qualname__}")
            data = dict(items_of(data, _left_out))
        details = {**data, **attributes} if attributes else data
    log: Log = log_event
    plain = plain_copy(details) if details else {}
    if plain is None:  # only then a detail may be on a device
        details, log = details_of(details, _left_out)
        plain = recordable(details, _left_out)
    if not (type(name) is str and name.isascii()):
        name = checked_text("Event name", escape_surrogates(name) if isinstance(name, str) else name)
    if type(severity) is not Severity:
        severity = checked_severity(severity)
    event = Event._of(name, time_ns, plain, get_step(), severity)
    if timestamp is not None:
        event.timestamp = timestamp
    log(event)


_left_out = partial(leave_out, "emit()")


class TensorboardEventHandler:
    """Writes the values of Stat events as scalars, exactly as torch's handler (torch/monitor/__init__.py).

    As in torch, no ``global_step`` is passed, so that each point is at step 0, where TensorBoard shows the last one
    by default; ``monitel_tensorboard.install(log_dir)`` writes real steps, and does not need torch.

    Args:
        writer: Any object with ``add_scalar(tag, value, walltime=...)``.

    Example:
        >>> import monitel
        >>> from torch.utils.tensorboard import SummaryWriter  # doctest: +SKIP
        >>> monitel.register_event_handler(monitel.TensorboardEventHandler(SummaryWriter("log_dir")))
        ... # doctest: +SKIP
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __call__(self, event: Event) -> None:
        """Write one scalar for each value, at the time of the event."""
        if event.name == STAT_EVENT:
            for key, value in event.data.items():
                self._writer.add_scalar(key, value, walltime=event.timestamp.timestamp())


def _begin_in_child() -> None:
    global _lock
    _lock = RLock()
    stop_no_handler_warning()


register_at_fork(after_in_child=_begin_in_child)
