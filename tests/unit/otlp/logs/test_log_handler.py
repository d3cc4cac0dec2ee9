"""Records of Python's logging, exported on request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import Answer

import monitel
from monitel_otlp.log_handler import LogHandler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

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
    """Let all loggers pass every level, and restore levels and handlers afterwards."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    root.setLevel(logging.DEBUG)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def bodies(receiver: Receiver) -> list[object]:
    """Return the bodies of the log records."""
    return [record.body for record in receiver.records()]


def test_log_record_is_exported(receiver: Receiver, start: Start) -> None:
    """The record has time, logger, severity, text and source line, and the resource of the pipeline."""
    pipeline = start(service_name="train", logging_level="WARNING")
    train.warning("loss is %s", float("nan"))
    assert pipeline.force_flush(60)
    (record,) = receiver.records()
    assert ("loss is nan", 13, "train") == (record.body, record.severity, record.scope)
    assert record.attributes["code.file.path"] == __file__
    assert isinstance(record.attributes["code.line.number"], int)
    assert "train" == record.resource["service.name"]
    assert 0 <= record.observed_ns - record.time_ns < 1e9


@pytest.mark.parametrize(("level", "severity"), LEVELS)
def test_level_becomes_a_severity_of_opentelemetry(receiver: Receiver, start: Start, level: int, severity: int) -> None:
    """A level between two named ones has a severity between theirs."""
    pipeline = start(logging_level=logging.DEBUG)
    train.log(level, "message")
    assert pipeline.force_flush(60)
    assert [severity] == [record.severity for record in receiver.records() if record.scope == "train"]


@pytest.mark.parametrize("level", ["ERROR", logging.ERROR])
def test_records_below_the_level_are_not_exported(receiver: Receiver, start: Start, level: int | str) -> None:
    """The level may be given by name or number."""
    pipeline = start(logging_level=level)
    train.warning("below")
    train.error("at")
    train.critical("above")
    assert pipeline.force_flush(60)
    assert ["at", "above"] == bodies(receiver)


def test_no_record_is_exported_without_a_level(receiver: Receiver, start: Start) -> None:
    """By default no handler is added to Python's logging."""
    handlers = list(logging.getLogger().handlers)
    pipeline = start()
    train.critical("here")
    assert pipeline.force_flush(60)
    assert (handlers, []) == (logging.getLogger().handlers, bodies(receiver))


@pytest.mark.parametrize(("level", "error"), [("LOUD", ValueError), (1.5, TypeError)])
def test_unknown_level_is_refused(start: Start, level: object, error: type[Exception]) -> None:
    """Python's logging raises."""
    with pytest.raises(error):
        start(logging_level=level)


def test_exception_is_exported(receiver: Receiver, start: Start) -> None:
    """Type, message and traceback have the attribute names of OpenTelemetry."""
    pipeline = start(logging_level="WARNING")
    try:
        raise FloatingPointError("overflow in step 7")
    except FloatingPointError:
        train.exception("step failed")
    assert pipeline.force_flush(60)
    (record,) = receiver.records()
    assert ("step failed", 17) == (record.body, record.severity)
    assert "FloatingPointError" == record.attributes["exception.type"]
    assert "overflow in step 7" == record.attributes["exception.message"]
    assert "test_exception_is_exported" in record.attributes["exception.stacktrace"]


def test_exc_info_without_an_exception_adds_no_attributes(receiver: Receiver, start: Start) -> None:
    """``exc_info=True`` may be used outside of an except clause."""
    pipeline = start(logging_level="WARNING")
    train.warning("odd", exc_info=True)
    assert pipeline.force_flush(60)
    assert [("odd", False)] == [(record.body, "exception.type" in record.attributes) for record in receiver.records()]


def test_record_has_the_ids_of_the_current_span(receiver: Receiver, start: Start) -> None:
    """A record that is logged inside a span has its trace id and span id."""
    pipeline = start(logging_level="WARNING")
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("step"):
        train.warning("slow")
    assert pipeline.force_flush(60)
    (span,), (record,) = receiver.spans(), receiver.records()
    assert (span.trace_id, span.span_id) == (record.trace_id, record.span_id)


def test_records_caused_by_the_delivery_are_not_exported(receiver: Receiver, start: Start) -> None:
    """Otherwise each request would cause new records (urllib3 logs each at DEBUG), and requests would never end."""
    receiver.answer("metrics", Answer(401))  # the pipeline logs a warning
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


def test_record_that_cannot_be_formatted_does_not_raise(
    receiver: Receiver, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is reported on stderr as by any logging handler, the record is counted, and the next one is sent."""
    pipeline = start(logging_level="WARNING")
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, LogHandler))
    handler.handle(logging.LogRecord("train", logging.ERROR, __file__, 1, "%d", ("three",), None))
    train.warning("next")
    assert not pipeline.force_flush(10)
    assert {"encoding": 1} == pipeline.dropped
    assert ["next"] == bodies(receiver)
    assert 1 == capsys.readouterr().err.count("--- Logging error ---")


def test_record_logged_by_an_event_handler_is_exported(receiver: Receiver, start: Start) -> None:
    """An event handler of the application may log in any thread."""
    pipeline = start(logging_level="WARNING")
    with monitel.register_event_handler(lambda event: train.warning("%s", event.name)):
        monitel.emit("epoch")
    assert pipeline.force_flush(60)
    assert ["epoch"] == [record.body for record in receiver.records() if record.scope == "train"]


def test_no_record_is_exported_after_shutdown(receiver: Receiver, start: Start) -> None:
    """A pipeline that a second ``configure()`` has shut down exports no records either."""
    start(logging_level="WARNING")
    second = start(logging_level="WARNING")
    train.warning("once")
    assert second.shutdown()
    train.warning("late")
    assert ["once"] == bodies(receiver)


def test_shutdown_removes_the_handler(start: Start) -> None:
    """Otherwise each ``configure()`` in a notebook would add another handler."""
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


def test_forked_child_exports_its_log_records(receiver: Receiver, train: Run) -> None:
    """The first log record starts the child's pipeline, as an event does."""
    train(CHILD, receiver.url)
    found = [record.body for record in receiver.records() if record.name != "child"]
    assert ["after", "before", "parent"] == sorted(map(str, found))
