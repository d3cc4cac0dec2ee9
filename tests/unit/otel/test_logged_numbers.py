"""log() and config() through OpenTelemetry's API: gauges, and log records with a structured body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import monitel

if TYPE_CHECKING:
    from tests.unit.otel.conftest import Backend

pytestmark = pytest.mark.usefixtures("installed")


def test_numbers_are_gauges_and_one_record(backend: Backend) -> None:
    """A gauge has the bare name; the record has the step, the attributes and all numbers."""
    monitel.log({"loss": 0.25, "tokens": 7}, step=3, split="val")
    metrics = backend.collect()
    for name, value in (("loss", 0.25), ("tokens", 7)):
        (point,) = metrics[name].data.data_points
        assert ("", value, {"split": "val"}) == (metrics[name].unit, point.value, dict(point.attributes))
    (record,) = backend.records()
    assert ("run.log", {"loss": 0.25, "tokens": 7}) == (record.event_name, record.body)
    assert {"training.step": 3, "split": "val"} == dict(record.attributes)


def test_ratio_of_monitel_has_its_unit(backend: Backend) -> None:
    """``training.mfu`` is a ratio; other numbers have no unit."""
    monitel.log({"training.mfu": 0.4, "accuracy": 0.9})
    metrics = backend.collect()
    assert ("1", "") == (metrics["training.mfu"].unit, metrics["accuracy"].unit)


def test_gauge_has_the_last_value_and_records_have_all(backend: Backend) -> None:
    """A reader collects less often than a program logs."""
    for value in (1.0, 3.0, 2.0):
        monitel.log({"loss": value})
    assert 2.0 == backend.values()["loss"]
    assert [{"loss": 1.0}, {"loss": 3.0}, {"loss": 2.0}] == [record.body for record in backend.records()]


def test_stat_of_the_same_name_is_another_instrument(backend: Backend) -> None:
    """The Stat's instruments have suffixes."""
    stat = monitel.Stat("loss", [monitel.VALUE], 60.0)
    stat.add(0.5)
    stat.flush()
    monitel.log({"loss": 0.25})
    assert (0.25, 0.5) == (backend.values()["loss"], backend.values()["loss.value"])


def test_name_that_the_api_refuses_is_changed(backend: Backend) -> None:
    """The description has the name."""
    monitel.log({"top 5": 0.5})
    assert "Logged as 'top 5'" == backend.collect()["top_5"].description


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_value_that_is_not_finite_is_counted(backend: Backend, value: float) -> None:
    """As for Stats. The record has it."""
    monitel.log({"loss": value})
    assert (1, None) == (backend.values()["monitel.stat.nonfinite"], backend.values().get("loss"))
    assert [repr({"loss": value})] == [repr(record.body) for record in backend.records()]


def test_configuration_is_one_record(backend: Backend) -> None:
    """The body has None, lists and nested mappings; limits of attributes do not matter."""
    values = {"lr": 0.5, "model": {"layers": [1, None], "empty": {}}, **{f"key{n}": n for n in range(200)}}
    monitel.config(values)
    (record,) = backend.records()
    assert ("run.config", values, {}) == (record.event_name, record.body, dict(record.attributes))
