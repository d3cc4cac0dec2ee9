"""Counters and the step as instruments of an application's MeterProvider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel
import monitel_otel

if TYPE_CHECKING:
    from tests.unit.otel.conftest import Backend

CUMULATIVE = 2


def points(backend: Backend, metric: str) -> list[tuple[float, dict[str, Any]]]:
    """Collect, and return value and attributes of each point of a metric."""
    found = backend.collect().get(metric)
    return [] if found is None else [(point.value, dict(point.attributes)) for point in found.data.data_points]


def test_counter_is_observed_with_its_bare_name(backend: Backend) -> None:
    """A counter from before install(), with unit, description and attributes; each collection has the total."""
    samples = monitel.counter(
        "training.samples", unit="{sample}", description="Samples in training", attributes={"split": "train"}
    )
    samples.add(32)
    with monitel_otel.install(backend.meter_provider, backend.logger_provider):
        metric = backend.collect()["training.samples"]
        assert ("{sample}", "Samples in training") == (metric.unit, metric.description)
        assert (True, CUMULATIVE) == (metric.data.is_monotonic, metric.data.aggregation_temporality)
        assert [(32, {"split": "train"})] == points(backend, "training.samples")
        samples.add(28)
        monitel.counter("training.samples", attributes={"split": "val"}).add(0.5)
        assert [(60, {"split": "train"}), (0.5, {"split": "val"})] == points(backend, "training.samples")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["window", "number", "event"])
def test_new_counter_is_observed_after_the_next_event(backend: Backend, kind: str) -> None:
    """Instruments cannot be created while a reader collects."""
    monitel.counter("samples").add(3)
    assert [] == points(backend, "samples")
    if kind == "window":
        stat = monitel.Stat("x", [monitel.COUNT], 60.0)
        stat.add(1)
        stat.flush()
    elif kind == "number":
        monitel.log({"loss": 0.5})
    else:
        monitel.emit("checkpoint")
    assert [(3, {})] == points(backend, "samples")


@pytest.mark.usefixtures("installed")
def test_step_is_a_gauge(backend: Backend) -> None:
    """Without a point before the step is known; the step may go back."""
    assert [] == points(backend, "training.step")
    for step in (7, 3):
        monitel.set_step(step)
        assert [(step, {})] == points(backend, "training.step")
    assert "{step}" == backend.collect()["training.step"].unit


def test_names_that_the_api_refuses_are_changed(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """The description has the name. Of two names that become the same, the later one gets a number."""
    monitel.counter("top 5", description="hits").add(1)
    monitel.counter("top_5").add(2)
    monitel.counter("top_5", attributes={"split": "val"}).add(4)
    with monitel_otel.install(backend.meter_provider, backend.logger_provider):
        assert "hits (Counted as 'top 5')" == backend.collect()["top_5"].description
        assert [(1, {})] == points(backend, "top_5")
        assert [(2, {}), (4, {"split": "val"})] == points(backend, "top_5_2")
        assert "Counted as 'top_5'" == backend.collect()["top_5_2"].description
    assert 1 == caplog.text.count("counter 'top 5' and counter 'top_5' have the same metric name 'top_5'")


def test_second_installation_continues(backend: Backend) -> None:
    """A notebook's cell may run again; an amount counts once."""
    samples = monitel.counter("samples")
    for amount in (32, 28):
        samples.add(amount)
        monitel_otel.install(backend.meter_provider, backend.logger_provider)
    assert [(60, {})] == points(backend, "samples")
    monitel_otel.install(backend.meter_provider, backend.logger_provider).uninstall()
