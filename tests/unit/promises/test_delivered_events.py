"""Events, numbers, configurations and records of Python's logging as log records at a receiver."""

import logging
import logging.config
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from opentelemetry.trace import INVALID_SPAN, use_span
from tests.support.checks import SetEnv, Warned, wait_until
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, delivered_by
from tests.support.producers import repeating
from tests.support.receiver import Receiver
from tests.unit.promises.reference_tables import code, table

import monitel
from monitel import Severity
from monitel.profiler import record_function
from monitel.testing import ManualClock

UTC = timezone.utc
MANY = {f"layer.{number}": number for number in range(500)}  # more than the limit of attributes
CONFIG: dict[str, Any] = {
    "lr": 1e-4,
    "seed": -(2**63),
    "amp": True,
    "name": "caf\u00e9",
    "nothing": None,
    "model": {"layers": [1, 2.5, "x", None, [True, {"width": 8}]], "empty": {}, "none": []},
}
training = logging.getLogger("train")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


#: Values in ``extra`` that are sent as they are, and others with what is sent.
SAME = {"rank": 3, "ok": True, "none": None, "list": [1, "a", None], "map": {"a": {"b": 0.5}}, "bytes": b"\xff"}
OTHER: dict[str, tuple[Any, Any]] = {
    "path": (Path("a/b"), "a/b"),
    "large": (2**63, str(2**63)),
    "text": ("\udc80", r"\udc80"),
    "set": ({1}, "{1}"),
    "numpy": (np.int64(7), 7),
    "array": (np.array([1, 2]), "[1 2]"),
    "broken": (UnprintableError(), "<UnprintableError without a text>"),
}


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    root.setLevel(logging.DEBUG)
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers


def wait_for_the_handler(root: logging.Logger) -> None:
    wait_until(lambda: "LogHandler" in {type(each).__name__ for each in root.handlers}, "the return of the handler")


# Events


def test_event_is_the_documented_record(receiver: Receiver, start: Start) -> None:
    """Name, body, times, severity, data with their types, and the step; an event of a Stat is not a record."""
    with delivered_by(start()):
        moment = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
        monitel.set_step(7)
        data: dict[str, Any] = {"path": "step-7.pt", "bytes": 2**40, "seconds": 0.5, "ok": True}
        monitel.emit("checkpoint", data, severity=Severity.WARN, timestamp=moment)
        monitel.stat("x").add(1)
        monitel.flush()
    (record,) = receiver.records()
    assert ("checkpoint", "checkpoint", "monitel") == (record.name, record.body, record.scope)
    assert (1767270615_123456000, 13, "WARN") == (record.time_ns, record.severity, record.severity_text)
    assert abs(record.observed_ns - time.time_ns()) < DEADLINE * 1e9
    assert repr({"training.step": 7, **data}) == repr(record.attributes)


def test_severities_are_the_documented_ones(receiver: Receiver, start: Start) -> None:
    """The number, and the name as text, by which backends filter."""
    with delivered_by(start()):
        for severity in Severity:
            monitel.emit("event", severity=severity)
    documented: dict[int, str] = {}
    for names, numbers, _ in table("events.md", "`Severity`", "number"):
        documented |= dict(zip(map(int, numbers.split(", ")), code(names.split(", also ")[0]), strict=True))
    assert 6 == len(documented)
    assert documented == {record.severity: record.severity_text for record in receiver.records()}


def test_records_have_the_ids_of_the_current_span_or_range(receiver: Receiver, start: Start, root: Any) -> None:
    """The innermost one that is a span; an event that is encoded after the range's end has them too."""
    with delivered_by(start(spans=True, logging_level="WARNING")) as pipeline:
        tracer = pipeline.tracer_provider.get_tracer("mine")
        with record_function("step"):
            monitel.emit("in step")
            training.warning("in step")
            with record_function("forward"):
                monitel.log({"loss": 0.5})
            with tracer.start_as_current_span("own"):
                monitel.emit("in own")
                training.warning("in own")
        with use_span(INVALID_SPAN):
            monitel.emit("outside")
    ids = {span.name: (span.trace_id, span.span_id) for span in receiver.spans()}
    assert {
        ("in step", "in step"): ids["step"],
        ("", "in step"): ids["step"],
        ("run.log", "{'loss': 0.5}"): ids["forward"],
        ("in own", "in own"): ids["own"],
        ("", "in own"): ids["own"],
        ("outside", "outside"): ("", ""),
    } == {(each.name, str(each.body)): (each.trace_id, each.span_id) for each in receiver.records()}


def test_value_of_a_wrong_type_is_left_out(receiver: Receiver, start: Start, warned: Warned) -> None:
    """A warning has the event's name; text that is not UTF-8 is escaped."""
    with delivered_by(start()):
        for name in ("a", "a", "b"):
            event = monitel.Event(name, datetime.now(UTC), {"good": 1})
            later: Any = {"large": 2**63, "list": [1], "k\udc80": "v\udcff"}  # it is not checked
            event.data.update(later)
            monitel.log_event(event)
    assert [{"good": 1, r"k\udc80": r"v\udcff"}] * 3 == [record.attributes for record in receiver.records()]
    assert {"event 'a': ", "event 'b': "} == {each[:11] for each in warned("cannot be an attribute")}


def test_attributes_are_limited_and_bodies_are_not(receiver: Receiver, start: Start, setenv: SetEnv) -> None:
    """As in the SDK: 128 attributes of any length if the variables are malformed or empty."""
    setenv(OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT="many", OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT="")
    with delivered_by(start()):
        monitel.emit("event", {f"key {number}": "a long text" for number in range(130)})
        monitel.log(MANY)
        monitel.config({**MANY, "text": "a long text"})
    assert {f"key {number}": "a long text" for number in range(2, 130)} == receiver.records("event")[0].attributes
    bodies = {record.name: record.body for record in receiver.records() if record.name != "event"}
    assert {"run.log": MANY, "run.config": {**MANY, "text": "a long text"}} == bodies


def test_naive_timestamps_are_local_times(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around each change of the clocks, in an hour that comes twice, and after a change of the zone by ``tzset()``."""
    pipeline, expected = start(), []
    try:
        for name, changed in (("UTC", 0), ("Europe/Berlin", 2), ("Australia/Lord_Howe", 2)):
            monkeypatch.setenv("TZ", name)
            time.tzset()
            zone = ZoneInfo(name)
            hours = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=each) for each in range(365 * 24)]
            offsets = [hour.astimezone(zone).utcoffset() for hour in hours]
            changes = [hours[each] for each in range(1, len(hours)) if offsets[each] != offsets[each - 1]]
            assert changed == len(changes)
            for change in [*changes, hours[0], datetime(2026, 7, 1, 12, tzinfo=zone)]:
                for minutes in range(-90, 91, 5):
                    moment = change + timedelta(minutes=minutes, seconds=1)
                    expected += [int(moment.timestamp()) * 10**9] * 2
                    monitel.emit("naive", timestamp=moment.astimezone(zone).replace(tzinfo=None))  # with its fold
                    monitel.emit("aware", timestamp=moment.astimezone(ZoneInfo("Asia/Tokyo")))
            assert pipeline.force_flush(DEADLINE)
        assert expected == [record.time_ns for record in receiver.records()]
    finally:
        monkeypatch.undo()
        time.tzset()


# Numbers and configurations


def test_numbers_of_a_call_are_one_record(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """The body has all numbers, ints as ints; the attributes are the step and those of the call."""
    with delivered_by(start()) as pipeline:
        for step in range(3):  # in one millisecond: the gauge has the last value only, the records have all
            monitel.log({"loss": step / 4, "val": {"tokens": 2**60}}, step=step, split="val", fold=2)
        called = clock.time_ns()
        monitel.log({"loss": 0.5})
    *first, last = receiver.records("run.log")
    for step, record in enumerate(first):
        assert repr({"loss": step / 4, "val.tokens": 2**60}) == repr(record.body)
        assert {"training.step": step, "split": "val", "fold": 2} == record.attributes
        assert (called, 9, "INFO", "monitel") == (record.time_ns, record.severity, record.severity_text, record.scope)
    assert (3, {"loss": 0.5}, {}) == (len(first), last.body, last.attributes)
    assert 4 == pipeline.account()["logs"].delivered


def test_configuration_is_one_record_with_all_types(receiver: Receiver, start: Start) -> None:
    """None, lists and mappings are kept, however deep, up to the limit of 20 levels."""
    deep: dict[str, Any] = {}
    for _ in range(30):
        deep = {"self": deep}
    with delivered_by(start()):
        monitel.set_step(3)
        monitel.config(CONFIG)
        monitel.config(deep)
    first, second = receiver.records("run.config")
    assert repr(CONFIG) == repr(first.body)
    assert ({"training.step": 3}, "INFO") == (first.attributes, first.severity_text)
    assert 20 == str(second.body).count("{'self': ")


def test_run_has_the_documented_events(receiver: Receiver, start: Start) -> None:
    """``run.started`` when the pipeline starts, ``run.ended`` with the status, duration and last step."""
    monitel.set_step(7)
    assert start(run_events=True).shutdown()
    started, ended = receiver.records()
    assert ("run.started", "run.ended") == (started.name, ended.name)
    documented: dict[str, set[str]] = {}
    name = ""
    for event, attribute, _ in table("events.md", "event", "attribute", "value"):
        name = code(event)[0] if event else name
        documented.setdefault(name, set()).add(code(attribute)[0])
    named = {"run.version.*" if key.startswith("run.version.") else key for key in started.attributes}
    assert {"run.command", "host.name", "run.version.*"} <= named <= documented["run.started"] | {"training.step"}
    assert documented["run.ended"] | {"training.step"} == {*ended.attributes}
    assert ("completed", 7) == (ended.attributes["run.status"], ended.attributes["run.step"])
    assert 0 < ended.attributes["run.duration"] < DEADLINE


# Python's logging


def test_record_of_logging_is_exported(receiver: Receiver, start: Start, root: Any) -> None:
    """Scope, severity, text, source line, times, the resource; and type, message and traceback of an exception."""
    with delivered_by(start(service_name="mine", logging_level="warning")):
        training.warning("loss is %s", float("nan"))
        try:
            raise FloatingPointError("overflow in step 7")
        except FloatingPointError:
            training.exception("step failed")
        training.info("below the level")
    first, second = receiver.records()
    assert ("loss is nan", 13, "train") == (first.body, first.severity, first.scope)
    assert (__file__, "mine") == (first.attributes["code.file.path"], first.resource["service.name"])
    assert 4 == second.attributes["code.line.number"] - first.attributes["code.line.number"]
    assert 0 <= first.observed_ns - first.time_ns < 60e9
    assert abs(first.time_ns - time.time_ns()) < 60e9
    assert ("step failed", 17, "ERROR") == (second.body, second.severity, second.severity_text)
    assert "FloatingPointError" == second.attributes["exception.type"]
    assert "overflow in step 7" == second.attributes["exception.message"]
    assert "test_record_of_logging_is_exported" in second.attributes["exception.stacktrace"]
    assert "exception.type" not in first.attributes


@pytest.mark.invalid_output("None is sent as the protocol's null", "attribute.value")
def test_extra_of_a_record_is_attributes(receiver: Receiver, start: Start, root: Any) -> None:
    """As OpenTelemetry's handler has them; a value that the protocol cannot hold is its text."""
    with delivered_by(start(logging_level="WARNING")):
        deep: list[Any] = []
        deep.append(deep)
        extra = {**SAME, **{name: given for name, (given, _) in OTHER.items()}, "deep": deep, "": "no name"}
        logging.LoggerAdapter(training, extra).warning("slow", stack_info=True)
        training.warning({"loss": [0.5, Path("x")]})
        training.critical("%s", "late", exc_info=(UnprintableError, UnprintableError(), None))
    first, second, third = receiver.records()
    found = dict(first.attributes)
    assert str(found.pop("deep")).startswith("[[[[")
    expected = {**SAME, **{name: sent for name, (_, sent) in OTHER.items()}}
    expected |= {"code.file.path": __file__, "code.function.name": "test_extra_of_a_record_is_attributes"}
    assert expected == {name: found[name] for name in expected}
    assert {"code.line.number", "code.stacktrace"} == found.keys() - expected.keys()
    assert found["code.stacktrace"].startswith("Stack (most recent call last):")
    assert ("WARN", {"loss": [0.5, "x"]}) == (second.severity_text, second.body)
    assert ("FATAL", 21, "late") == (third.severity_text, third.severity, third.body)
    assert ("UnprintableError", "") == (third.attributes["exception.type"][-16:], third.attributes["exception.message"])


def test_logging_that_is_configured_again_keeps_the_handler_and_the_warnings(
    receiver: Receiver, start: Start, root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is put back at once, with one warning; monitel's loggers are enabled again."""
    others, known = [*root.handlers], logging.Logger.manager.loggerDict.values()
    enabled = [each for each in known if isinstance(each, logging.Logger) and not each.disabled]
    logger, messages = logging.getLogger("monitel.otlp"), list[str]()

    def keep(record: logging.LogRecord) -> bool:
        messages.append(record.getMessage())
        return True

    monkeypatch.setattr(logger, "filters", [keep])
    pipeline = start(logging_level="WARNING")
    for _ in range(2):
        logging.config.dictConfig({"version": 1, "root": {"level": "DEBUG", "handlers": []}})
        for each in others:
            root.addHandler(each)
        for each in enabled:  # those of the application are its own matter
            each.disabled = each.disabled and each.name.startswith("monitel")
        wait_for_the_handler(root)
        training.warning("after")
        assert not logger.disabled
    root.handlers.clear()
    assert pipeline.force_flush(DEADLINE)  # each round puts it back, too
    assert "LogHandler" in {type(each).__name__ for each in root.handlers}
    assert ["after", "after"] == [record.body for record in receiver.records()]
    assert 1 == len([each for each in messages if "logging was configured after configure" in each])
    pipeline.shutdown()
    assert "LogHandler" not in {type(each).__name__ for each in root.handlers}


def test_threads_log_while_logging_is_configured(receiver: Receiver, start: Start, root: Any) -> None:
    """The handler comes back with the lock that they hold or wait for: none raises, none waits forever."""
    start(logging_level="WARNING")
    with repeating(*[partial(training.warning, "a step")] * 2):
        for _ in range(5):
            logging.basicConfig(force=True, handlers=[logging.NullHandler()])
            wait_for_the_handler(root)


def test_records_of_the_delivery_are_excluded(receiver: Receiver, start: Start, root: Any) -> None:
    """Each request would cause records, and the pipeline would never end; a similar name is not excluded."""
    start(logging_level=logging.DEBUG)  # the next one takes its handler's place
    pipeline = start(logging_level=logging.DEBUG)
    training.debug("once")
    for _ in range(3):
        assert pipeline.force_flush(DEADLINE)
    for name in ("monitel", "monitel.otlp", "opentelemetry.sdk", "urllib3.connectionpool", "requests", "grpc"):
        logging.getLogger(name).error("own")
    logging.getLogger("monitelling").debug("another's")
    pipeline.shutdown()
    training.critical("late")
    assert ["once", "another's"] == [record.body for record in receiver.records() if record.scope != "monitel"]
