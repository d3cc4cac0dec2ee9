"""Log records with a structured body: the numbers of log(), and the configuration of config()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.inbox import DEADLINE

import monitel

if TYPE_CHECKING:
    import pytest
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

MANY = {f"layer.{number}": number for number in range(500)}  # more than the limit of attributes
CONFIG: dict[str, Any] = {
    "lr": 1e-4,
    "seed": -(2**63),
    "amp": True,
    "name": "caf\u00e9",
    "nothing": None,
    "model": {"layers": [1, 2.5, "x", None, [True, {"width": 8}]], "empty": {}, "none": []},
}


def test_numbers_of_a_call_are_one_record_with_their_step(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """Body: the numbers, ints as ints. Attributes: the step and the attributes of the call."""
    pipeline = start()
    monitel.log({"loss": 0.25, "tokens": 2**60}, step=7, split="val", fold=2)
    called = clock.time_ns()
    monitel.log({"loss": 0.5})
    assert pipeline.force_flush(DEADLINE)
    first, second = receiver.records("run.log")
    assert ({"loss": 0.25, "tokens": 2**60}, 9) == (first.body, first.severity)
    assert {"training.step": 7, "split": "val", "fold": 2} == first.attributes
    assert (called, "monitel") == (first.time_ns, first.scope)
    assert ({"loss": 0.5}, {}) == (second.body, second.attributes)
    assert 2 == pipeline.account()["logs"].delivered


def test_every_record_has_the_text_of_its_severity(receiver: Receiver, start: Start) -> None:
    """Events, numbers and configurations, like records of logging: backends filter by the text."""
    pipeline = start()
    for severity in monitel.Severity:
        monitel.emit("event", severity=severity)
    monitel.log({"loss": 0.25})
    monitel.config({"lr": 0.1})
    assert pipeline.force_flush(DEADLINE)
    texts = {1: "TRACE", 5: "DEBUG", 9: "INFO", 13: "WARN", 17: "ERROR", 21: "FATAL"}
    assert texts == {record.severity: record.severity_text for record in receiver.records("event")}
    assert {"INFO"} == {record.severity_text for record in receiver.records() if record.name != "event"}


def test_each_step_of_a_millisecond_has_its_record(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """The gauge has the last value only; the records have all."""
    pipeline = start()
    clock.advance(1)
    for step in range(5):
        monitel.log({"loss": step / 4}, step=step)
    assert pipeline.force_flush(DEADLINE)
    assert [1.0] == receiver.values("loss")
    found = [(record.attributes["training.step"], record.body["loss"]) for record in receiver.records("run.log")]
    assert [(step, step / 4) for step in range(5)] == found


def test_limits_of_attributes_do_not_cut_bodies(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body has any number of values and texts of any length."""
    monkeypatch.setenv("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2")
    pipeline = start()
    monitel.log(MANY)
    monitel.config({**MANY, "text": "a long text"})
    assert pipeline.force_flush(DEADLINE)
    assert [MANY] == [record.body for record in receiver.records("run.log")]
    assert [{**MANY, "text": "a long text"}] == [record.body for record in receiver.records("run.config")]


def test_configuration_is_one_record(receiver: Receiver, start: Start) -> None:
    """None, lists and nested mappings are kept, with the types of all values."""
    pipeline = start()
    monitel.set_step(3)
    monitel.config(CONFIG)
    assert pipeline.force_flush(DEADLINE)
    (record,) = receiver.records("run.config")
    assert repr(CONFIG) == repr(record.body)
    assert {"training.step": 3} == record.attributes


def test_configuration_survives_the_deepest_nesting(receiver: Receiver, start: Start) -> None:
    """A parser of protobuf refuses messages that are nested more than 100 times."""
    values: dict[str, Any] = {}
    values["self"] = values
    pipeline = start()
    monitel.config(values)
    assert pipeline.force_flush(DEADLINE)
    (record,) = receiver.records("run.config")
    depth, body = 0, record.body
    while isinstance(body, dict):
        depth, body = depth + 1, body["self"]
    assert (20, str) == (depth, type(body))
