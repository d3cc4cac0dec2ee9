"""The ledger as instruments of an application's MeterProvider: the time of each activity, and the goodput."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel
import monitel_otel

if TYPE_CHECKING:
    from tests.unit.otel.conftest import Backend

CUMULATIVE = 2
SECOND_NS = 10**9
TIME, GOODPUT = "training.time", "training.goodput"


def collected(backend: Backend) -> tuple[dict[str, float], list[float]]:
    """Collect, and return the seconds of each activity, and the values of the goodput."""
    metrics: Any = backend.collect()
    points = metrics[TIME].data.data_points if TIME in metrics else []
    shares = metrics[GOODPUT].data.data_points if GOODPUT in metrics else []
    return {point.attributes["training.activity"]: point.value for point in points}, [point.value for point in shares]


def ledger() -> monitel.Ledger:
    """Return the ledger of the process."""
    found = monitel.ledger()
    assert found is not None
    return found


@pytest.mark.usefixtures("installed")
def test_activities_add_up(backend: Backend) -> None:
    """Without any event, in each collection; nothing is known before the first activity or step."""
    assert ({}, []) == collected(backend)
    with monitel.activity("evaluation"):
        pass
    found, shares = collected(backend)
    assert ({"startup", "evaluation", "other"}, []) == (set(found), shares)
    monitel.set_step(1)
    before = ledger()
    found, (share,) = collected(backend)
    after = ledger()
    assert {"startup", "evaluation", "other", "step"} == set(found)
    assert before.elapsed_ns - 1000 <= sum(found.values()) * SECOND_NS <= after.elapsed_ns + 1000
    low, high = before.activities["step"] / after.elapsed_ns, after.activities["step"] / before.elapsed_ns
    assert low <= share <= high


@pytest.mark.usefixtures("installed")
def test_instruments_have_units(backend: Backend) -> None:
    """A monotonic sum in seconds, and a ratio."""
    monitel.set_step(1)
    metrics: Any = backend.collect()
    assert ("s", "Wall-clock time by activity") == (metrics[TIME].unit, metrics[TIME].description)
    assert (True, CUMULATIVE) == (metrics[TIME].data.is_monotonic, metrics[TIME].data.aggregation_temporality)
    assert "1" == metrics[GOODPUT].unit


def test_ledger_from_before_the_installation_is_observed(backend: Backend) -> None:
    """A second installation observes it with the same instrument."""
    monitel.set_step(1)
    for _ in range(2):
        with monitel_otel.install(backend.meter_provider, backend.logger_provider):
            monitel.emit("checkpoint")
            found, shares = collected(backend)
            assert ({"startup", "step"}, 1) == (set(found), len(shares))


@pytest.mark.usefixtures("installed")
def test_names_are_taken(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers of the application get other names, even if they come first."""
    monitel.log({TIME: 9.5, GOODPUT: 9.5})
    monitel.set_step(1)
    metrics = backend.collect()
    assert {f"{TIME}.number", f"{GOODPUT}.number", TIME, GOODPUT} <= set(metrics)
    assert 2 == caplog.text.count("have the same metric name")
