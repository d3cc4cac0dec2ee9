"""Python's logging as log records, when that is asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import monitel
from monitel_otlp.log_handler import LogHandler

from .inbox import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Run, Start
    from .receiver import Receiver

LEVELS = [
    (logging.DEBUG, 5),
    (logging.INFO, 9),
    (logging.WARNING, 13),
    (logging.ERROR, 17),
    (logging.CRITICAL, 21),
    (logging.WARNING + 1, 14),
]

train = logging.getLogger("train")


@pytest.fixture(autouse=True)
def everything_is_logged() -> Iterator[None]:
    """Let the loggers themselves keep nothing back; leave the handlers as they were."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    root.setLevel(logging.DEBUG)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def bodies(receiver: Receiver) -> list[object]:
    """The bodies of the log records."""
    return [record.body for record in receiver.records()]


def test_a_record_travels(receiver: Receiver, start: Start) -> None:
    """With its time, logger, severity, text and place, in the resource of the windows."""
    pipeline = start(service_name="train", logging_level="WARNING")
    train.warning("loss is %s", float("nan"))
    assert pipeline.force_flush(10)
    (record,) = receiver.records()
    assert ("loss is nan", 13, "train") == (record.body, record.severity, record.scope)
    assert record.attributes["code.file.path"] == __file__
    assert isinstance(record.attributes["code.line.number"], int)
    assert "train" == record.resource["service.name"]
    assert 0 <= record.observed_ns - record.time_ns < 1e9


@pytest.mark.parametrize(("level", "severity"), LEVELS)
def test_the_severity_is_opentelemetrys(receiver: Receiver, start: Start, level: int, severity: int) -> None:
    """Also of a level between the named ones."""
    pipeline = start(logging_level=logging.DEBUG)
    train.log(level, "message")
    assert pipeline.force_flush(10)
    assert [severity] == [record.severity for record in receiver.records() if record.scope == "train"]


@pytest.mark.parametrize("level", ["ERROR", logging.ERROR])
def test_the_level_is_a_limit(receiver: Receiver, start: Start, level: int | str) -> None:
    """By name or number; what is below stays here."""
    pipeline = start(logging_level=level)
    train.warning("below")
    train.error("at")
    train.critical("above")
    assert pipeline.force_flush(10)
    assert ["at", "above"] == bodies(receiver)


def test_without_a_level_nothing_travels(receiver: Receiver, start: Start) -> None:
    """Python's logging is left alone unless it is asked for."""
    handlers = list(logging.getLogger().handlers)
    pipeline = start()
    train.critical("here")
    assert pipeline.force_flush(10)
    assert (handlers, []) == (logging.getLogger().handlers, bodies(receiver))


@pytest.mark.parametrize(("level", "error"), [("LOUD", ValueError), (1.5, TypeError)])
def test_a_level_that_is_none_is_refused(start: Start, level: object, error: type[Exception]) -> None:
    """By logging itself."""
    with pytest.raises(error):
        start(logging_level=level)


def test_an_exception_travels(receiver: Receiver, start: Start) -> None:
    """Its type, message and traceback, by OpenTelemetry's names."""
    pipeline = start(logging_level="WARNING")
    try:
        raise FloatingPointError("overflow in step 7")
    except FloatingPointError:
        train.exception("step failed")
    assert pipeline.force_flush(10)
    (record,) = receiver.records()
    assert ("step failed", 17) == (record.body, record.severity)
    assert "FloatingPointError" == record.attributes["exception.type"]
    assert "overflow in step 7" == record.attributes["exception.message"]
    assert "test_an_exception_travels" in record.attributes["exception.stacktrace"]


def test_exc_info_without_an_exception_is_no_exception(receiver: Receiver, start: Start) -> None:
    """``exc_info=True`` outside of an except clause."""
    pipeline = start(logging_level="WARNING")
    train.warning("odd", exc_info=True)
    assert pipeline.force_flush(10)
    assert [("odd", False)] == [(record.body, "exception.type" in record.attributes) for record in receiver.records()]


def test_a_span_is_known(receiver: Receiver, start: Start) -> None:
    """What is logged inside a span belongs to it."""
    pipeline = start(logging_level="WARNING")
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("step"):
        train.warning("slow")
    assert pipeline.force_flush(10)
    (span,), (record,) = receiver.spans(), receiver.records()
    assert (span.trace_id, span.span_id) == (record.trace_id, record.span_id)


def test_what_the_delivery_makes_others_log_stays_here(receiver: Receiver, start: Start) -> None:
    """At DEBUG urllib3 says something of each request: by itself the pipeline is quiet for ever."""
    receiver.answer("metrics", Answer(401))  # of which the pipeline complains
    pipeline = start(logging_level=logging.DEBUG)
    train.debug("once")
    for _ in range(3):
        pipeline.force_flush(1)
    logging.getLogger("monitel.otlp").warning("own")
    logging.getLogger("monitel").warning("own")
    logging.getLogger("urllib3.connectionpool").debug("own")
    logging.getLogger("opentelemetry.sdk").error("own")
    logging.getLogger("monitelling").debug("another's")
    assert pipeline.shutdown() in {True, False}
    assert ["once", "another's"] == bodies(receiver)


def test_a_record_that_cannot_be_formatted_raises_nowhere(
    receiver: Receiver, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in any handler of logging: it is reported on stderr, and the next one is sent. The loss is counted."""
    pipeline = start(logging_level="WARNING")
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, LogHandler))
    handler.handle(logging.LogRecord("train", logging.ERROR, __file__, 1, "%d", ("three",), None))
    train.warning("next")
    assert not pipeline.force_flush(10)
    assert {"encoding": 1} == pipeline.dropped
    assert ["next"] == bodies(receiver)
    assert 1 == capsys.readouterr().err.count("--- Logging error ---")


def test_logging_inside_a_handler_of_events_comes_back(receiver: Receiver, start: Start) -> None:
    """A user's handler logs what it is given, in whatever thread that is."""
    pipeline = start(logging_level="WARNING")
    with monitel.register_event_handler(lambda event: train.warning("%s", event.name)):
        monitel.emit("epoch")
    assert pipeline.force_flush(10)
    assert ["epoch"] == [record.body for record in receiver.records() if record.scope == "train"]


def test_after_shutdown_nothing_travels(receiver: Receiver, start: Start) -> None:
    """Neither late nor twice, by the one that a second configure() has shut down."""
    start(logging_level="WARNING")
    second = start(logging_level="WARNING")
    train.warning("once")
    assert second.shutdown()
    train.warning("late")
    assert ["once"] == bodies(receiver)


def test_after_shutdown_the_handler_is_gone(start: Start) -> None:
    """In a notebook there would be one more for each configure()."""
    handlers = list(logging.getLogger().handlers)
    assert start(logging_level="WARNING").shutdown()
    assert handlers == logging.getLogger().handlers


CHILD = """\
import logging
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, logging_level="INFO")
logging.getLogger().setLevel(logging.INFO)
logging.warning("parent")
if os.fork() == 0:
    logging.warning("before")
    monitel.emit("child")
    logging.warning("after")
    sys.exit()
os.wait()
"""


def test_a_forked_child_logs_once_it_records(receiver: Receiver, train: Run) -> None:
    """Its first log record begins a pipeline of its own, as an event does."""
    train(CHILD, receiver.url)
    found = [record.body for record in receiver.records() if record.name != "child"]
    assert ["after", "before", "parent"] == sorted(map(str, found))
