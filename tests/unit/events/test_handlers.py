"""Handlers: order of calls and exceptions; emit() and capture_events()."""

from __future__ import annotations

import copy
import datetime as dt
import gc
import pickle
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import Event, EventHandlerHandle, Severity, log_event, register_event_handler, unregister_event_handler
from monitel.testing import capture_events

if TYPE_CHECKING:
    from collections.abc import Callable

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  torch's events are naive
DEADLINE = 60.0  # seconds, for actions that take a fraction of one


def event(name: str = "epoch") -> Event:
    """Return an Event."""
    return Event(name, MOMENT, {})


def raising(error: BaseException) -> Callable[[Event], None]:
    """Return a handler that raises ``error``."""

    def handler(_event: Event) -> None:
        raise error

    return handler


def test_event_without_handlers() -> None:
    """An event can be logged without handlers; log_event returns None."""
    assert log_event(event=event()) is None  # type: ignore[func-returns-value]  # that is the point


def test_handlers_are_called_in_order_in_the_logging_thread() -> None:
    """Handlers receive the same object, in registration order, in the thread that logs."""
    calls: list[tuple[str, Event, int]] = []

    def handler(name: str) -> Callable[[Event], str]:
        def called(event: Event) -> str:
            calls.append((name, event, threading.get_ident()))
            return "ignored"

        return called

    logged = type("Special", (Event,), {})("epoch", MOMENT, {})
    with register_event_handler(handler("a")), register_event_handler(handler("b")):
        with register_event_handler(handler("c")):
            log_event(logged)
        log_event(logged)
    log_event(logged)
    assert [(name, logged, threading.get_ident()) for name in "abcab"] == calls
    assert all(got is logged for _, got, _ in calls)


def test_one_callable_twice() -> None:
    """A callable registered twice has two handles, and is called once for each."""
    received: list[Event] = []
    callback = received.append
    with register_event_handler(callback=callback) as first, register_event_handler(callback) as second:
        log_event(event())
        assert 2 == len(received)
        unregister_event_handler(handler=first)
        log_event(event())
    assert first is not second
    assert 3 == len(received)


def test_changes_reach_later_handlers() -> None:
    """All handlers share the Event: the next handler and the caller see a change."""
    logged = event()
    received: list[dict[str, Any]] = []
    with (
        register_event_handler(lambda event: event.data.update(rank=3)),
        register_event_handler(lambda event: received.append(dict(event.data))),
    ):
        log_event(logged)
    assert [{"rank": 3}] == received
    assert {"rank": 3} == logged.data


@pytest.mark.parametrize("callback", [None, 1, "print", [], object()])
def test_register_takes_callables(callback: Any) -> None:
    """Row "register None": TypeError, as for any object that cannot be called."""
    with pytest.raises(TypeError, match="takes a callable, got"):
        register_event_handler(callback)


@pytest.mark.parametrize("handler", [None, 1, print, EventHandlerHandle, object()])
def test_unregister_takes_handles(handler: Any) -> None:
    """Row "unregister twice": None or another object is a TypeError, and no handler is unregistered."""
    with capture_events() as events:
        with pytest.raises(TypeError, match="takes the handle"):
            unregister_event_handler(handler)
        log_event(event())
    assert [event()] == events


def test_unregister_twice() -> None:
    """Row "unregister twice": unregistering is idempotent; torch removes another handler or crashes."""
    handle = register_event_handler(print)
    with capture_events() as events:
        for _ in range(3):
            unregister_event_handler(handle)
        log_event(event())
    unregister_event_handler(handle)
    assert [event()] == events


def test_handle_is_a_context_manager() -> None:
    """Row "handle": leaving the block unregisters, even with an exception, which is not suppressed."""
    received: list[Event] = []
    with register_event_handler(received.append) as handle:
        assert type(handle) is EventHandlerHandle
        log_event(event())
    log_event(event())
    with suppress(ValueError), register_event_handler(received.append):
        raise ValueError
    log_event(event())
    assert [event()] == received
    with pytest.raises(ValueError, match="from the block"), handle:
        raise ValueError("from the block")


def test_handle_dropped() -> None:
    """A handler stays registered if its handle is garbage-collected; handle and registry keep the callable alive."""
    received: list[Event] = []

    def handler(event: Event) -> None:
        received.append(event)
        unregister_event_handler(monitel.handlers._handlers[-1])

    alive = weakref.ref(handler)
    register_event_handler(handler)
    del handler
    gc.collect()
    log_event(event())
    assert [event()] == received
    assert alive() is None


def test_handle_is_opaque() -> None:
    """A handle cannot be constructed, copied or pickled; it can be weakly referenced, and shows its callable."""
    with pytest.raises(TypeError, match=r"register_event_handler\(callback\) returns one"):
        EventHandlerHandle()
    with register_event_handler(print) as handle:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="register the handler in the process that needs it"):
                duplicate(handle)
        assert handle is weakref.ref(handle)()
        assert repr(print) in repr(handle)


@pytest.mark.parametrize("given", [None, 1, "epoch", {"name": "epoch"}, Event])
def test_log_event_takes_events(given: Any) -> None:
    """Another object is a TypeError, and no handler is called."""
    with capture_events() as events, pytest.raises(TypeError, match="takes an Event, got"):
        log_event(given)
    assert [] == events


ORDINARY = [ValueError("a"), OSError("b"), GeneratorExit(), StopIteration(1)]
GRAVE = [KeyboardInterrupt(), SystemExit(3)]


@pytest.mark.parametrize("error", [*ORDINARY, *GRAVE], ids=repr)
def test_handler_raises(error: BaseException, unraisable: list[BaseException | None]) -> None:
    """Row "a handler raises": later handlers are still called, then the same exception is raised."""
    with register_event_handler(raising(error)), capture_events() as events:
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                log_event(event())
            assert error is caught.value
    assert [event()] * 2 == events
    assert [] == unraisable


@pytest.mark.parametrize(
    ("errors", "first"),
    [
        (ORDINARY, ORDINARY[0]),
        ([*ORDINARY, *GRAVE], GRAVE[0]),
        ([ORDINARY[0], GRAVE[1], ORDINARY[1], GRAVE[0]], GRAVE[1]),
    ],
)
def test_several_handlers_raise(
    errors: list[BaseException], first: BaseException, unraisable: list[BaseException | None]
) -> None:
    """Row "a handler raises": one exception is raised, KeyboardInterrupt and SystemExit before others; none is lost."""
    handles = [register_event_handler(raising(error)) for error in errors]
    try:
        with pytest.raises(type(first)) as caught:
            log_event(event())
    finally:
        for handle in handles:
            unregister_event_handler(handle)
    assert first is caught.value
    assert [error for error in errors if error is not first] == unraisable


def test_one_exception_from_two_handlers(unraisable: list[BaseException | None]) -> None:
    """An exception that two handlers raise is raised once and reported once."""
    error = ValueError("shared")
    with (
        register_event_handler(raising(error)),
        register_event_handler(raising(error)),
        pytest.raises(ValueError, match="shared"),
    ):
        log_event(event())
    assert [error] == unraisable


@pytest.mark.parametrize("failing", [1, 2])
def test_failing_handler_leaves_no_garbage(failing: int, unraisable: list[BaseException | None]) -> None:
    """The objects of a failing handler are released with the exception, without a garbage collection."""

    class Batch:
        """A large object."""

    alive = []

    def handler(_event: Event) -> None:
        batch = Batch()
        alive.append(weakref.ref(batch))
        raise ValueError

    handles = [register_event_handler(handler) for _ in range(failing)]
    gc.disable()
    try:
        with suppress(ValueError):
            log_event(event())
        unraisable.clear()
        assert [None] * failing == [reference() for reference in alive]
    finally:
        gc.enable()
        for handle in handles:
            unregister_event_handler(handle)


def test_handler_logs() -> None:
    """Row "handler logs": an event logged by a handler is handled within it; torch deadlocks."""
    received: list[str] = []

    def echo(event: Event) -> None:
        if event.name == "epoch":
            log_event(Event("echo", MOMENT, {}))

    with register_event_handler(echo), register_event_handler(lambda event: received.append(event.name)):
        log_event(event())
    assert ["echo", "epoch"] == received


def test_handler_registers() -> None:
    """Row "handler registers": the new handler receives the next event; torch deadlocks."""
    received: list[str] = []
    handles: list[EventHandlerHandle] = []

    def register(_event: Event) -> None:
        handles.append(register_event_handler(lambda event: received.append(event.name)))

    with register_event_handler(register):
        log_event(event("first"))
    log_event(event("second"))
    for handle in handles:
        unregister_event_handler(handle)
    assert ["second"] == received


def test_handler_unregisters() -> None:
    """Row "handler unregisters": a handler may unregister itself or another; torch deadlocks."""
    received: list[str] = []

    def once(event: Event) -> None:
        received.append(f"once {event.name}")
        unregister_event_handler(own)
        unregister_event_handler(other)

    own = register_event_handler(once)
    other = register_event_handler(lambda event: received.append(f"other {event.name}"))
    log_event(event("first"))
    log_event(event("second"))
    assert ["once first", "other first"] == received


def test_slow_handler_does_not_block_other_threads(run_threads: Callable[..., None]) -> None:
    """Row "two threads with a slow handler": others log and register meanwhile; torch deadlocks."""
    entered, others_done = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def slow(event: Event) -> None:
        if event.name == "slow":
            entered.set()
            in_time.append(others_done.wait(DEADLINE))

    def others() -> None:
        in_time.append(entered.wait(DEADLINE))
        with register_event_handler(print) as handle:
            unregister_event_handler(handle)
        log_event(event("quick"))
        others_done.set()

    with register_event_handler(slow):
        run_threads(lambda: log_event(event("slow")), others)
    assert [True, True] == in_time


def test_threads_lose_no_event_and_no_handler(run_threads: Callable[..., None]) -> None:
    """Threads log, register and unregister at the same time: each event is handled, and no handler remains."""
    before = monitel.handlers._handlers

    def log() -> None:
        for _ in range(500):
            log_event(event())

    def come_and_go() -> None:
        for _ in range(500):
            with capture_events() as own:
                log_event(event("own"))
                assert event("own") in own

    with capture_events() as events:
        run_threads(log, log, come_and_go, come_and_go)
    assert (1000, 1000) == (events.count(event()), events.count(event("own")))
    assert before == monitel.handlers._handlers


def test_emit() -> None:
    """emit() logs an Event of data and keywords; keywords replace data, and may have any name."""
    with capture_events() as events:
        monitel.emit("saved", {"file.size": 1, "step": 1}, step=7, name="n", data="d")
        monitel.emit("failed", severity=Severity.ERROR, timestamp=MOMENT)
    assert {"file.size": 1, "step": 7, "name": "n", "data": "d"} == events[0].data
    assert ("saved", Severity.INFO) == (events[0].name, events[0].severity)
    assert Event("failed", MOMENT, {}, severity=Severity.ERROR) == events[1]


def test_emit_uses_the_current_time() -> None:
    """The default timestamp is the current naive local time, as in torch's Stats."""
    with capture_events() as events:
        before = dt.datetime.now()  # noqa: DTZ005  naive on purpose
        monitel.emit("a")
        after = dt.datetime.now()  # noqa: DTZ005
        with monitel.testing.ManualClock(epoch_ns=1_500_000_000):
            monitel.emit("b")
    assert before <= events[0].timestamp <= after
    assert dt.datetime.fromtimestamp(1.5) == events[1].timestamp  # noqa: DTZ006


@pytest.mark.parametrize(
    ("arguments", "keywords", "error"),
    [
        ((), {}, TypeError),
        ((), {"name": "a"}, TypeError),
        (("a", {}, 1), {}, TypeError),
        ((1,), {}, TypeError),
        *((("a", data), {}, TypeError) for data in ([], "", 0, [("a", 1)])),
        (("a", {"b": None}), {}, TypeError),
        (("a",), {"b": None}, TypeError),
        (("a",), {"b": 2**63}, ValueError),
        (("a",), {"severity": 10}, ValueError),
        *((("a",), {"timestamp": timestamp}, TypeError) for timestamp in (0, "", 1.5)),
    ],
)
def test_emit_checks_its_arguments(arguments: Any, keywords: Any, error: type[Exception]) -> None:
    """emit() raises the errors of Event, and nothing is logged."""
    with capture_events() as events, pytest.raises(error):
        monitel.emit(*arguments, **keywords)
    assert [] == events


def test_capture_events() -> None:
    """Events that are logged inside the block are collected, including those of Stats, even if the block raises."""
    log_event(event("before"))
    with suppress(ValueError), capture_events() as events:
        log_event(event("inside"))
        monitel.Stat("loss", [monitel.SUM], 60.0, 1).add(0.5)
        raise ValueError
    log_event(event("after"))
    assert ["inside", monitel.STAT_EVENT] == [event.name for event in events]
    assert {"loss.sum": 0.5} == events[1].data
