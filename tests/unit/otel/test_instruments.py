"""Conversion of windows to instruments of an application's MeterProvider."""

from __future__ import annotations

import logging
import math
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.otel.conftest import Backend

import monitel
import monitel_otel
from monitel import COUNT, HISTOGRAM, MAX, MEAN, MIN, STDDEV, SUM, VALUE, Aggregation, Stat
from monitel.aggregation import TORCHS

if TYPE_CHECKING:
    from monitel.testing import ManualClock
    from monitel_otel import Installation

DEADLINE = 60.0
CUMULATIVE = 2


def close_windows(stat: Stat, clock: ManualClock, *windows: list[float]) -> None:
    """Fill and close one window per list of samples."""
    for samples in windows:
        for sample in samples:
            stat.add(sample)
        clock.advance(60)
    stat.flush()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return all messages of warnings."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("aggregation", "declared", "shape", "unit", "value"),
    [
        (COUNT, False, ("Sum", True), "{sample}", 3),
        (COUNT, True, ("Sum", True), "{sample}", 3),
        (SUM, False, ("Sum", False), "s", 7.0),
        (SUM, True, ("Sum", True), "s", 7.0),
        (MEAN, False, ("Gauge", None), "s", 2.0),
        (MAX, True, ("Gauge", None), "s", 2.0),
        (MIN, False, ("Gauge", None), "s", 2.0),
        (VALUE, False, ("Gauge", None), "s", 2.0),
        (STDDEV, False, ("Gauge", None), "s", 0.0),
    ],
)
@pytest.mark.usefixtures("installed")
def test_each_aggregation_has_its_instrument(
    *,
    backend: Backend,
    clock: ManualClock,
    aggregation: Aggregation,
    declared: bool,
    shape: tuple[str, bool | None],
    unit: str,
    value: float,
) -> None:
    """COUNT and SUM add up over windows, the others have the last window; unit, description and attributes are set."""
    attributes: dict[str, Any] = {"split": "val", "fold": 3}
    stat = Stat(
        "step.time", [aggregation], 60.0, unit="s", description="a step", attributes=attributes, monotonic=declared
    )
    close_windows(stat, clock, [1.0, 4.0], [2.0])
    metrics = backend.collect()
    assert {f"step.time.{aggregation.name.lower()}", "monitel.windows"} == set(metrics)
    metric = metrics[f"step.time.{aggregation.name.lower()}"]
    (point,) = metric.data.data_points
    assert shape == (type(metric.data).__name__, getattr(metric.data, "is_monotonic", None))
    assert (unit, "a step", attributes) == (metric.unit, metric.description, dict(point.attributes))
    assert value == point.value
    if shape[0] == "Sum":
        assert CUMULATIVE == metric.data.aggregation_temporality


@pytest.mark.usefixtures("installed")
def test_distribution_becomes_percentiles(backend: Backend, clock: ManualClock) -> None:
    """Percentiles are gauges, because instruments of the API do not accept a histogram; NaN is left out."""
    stat = Stat("step.time", [HISTOGRAM], 60.0, unit="s")
    close_windows(stat, clock, [1.0], [1.0, 2.0, 3.0], [math.nan])
    metrics = backend.collect()
    names = [f"step.time.{name}" for name in ("p50", "p90", "p95", "p99")]
    assert {*names, "monitel.windows", "monitel.stat.nonfinite"} == set(metrics)
    assert {("Gauge", "s")} == {(type(metrics[name].data).__name__, metrics[name].unit) for name in names}
    values = backend.values()
    assert [pytest.approx(2.0, rel=0.01), 3.0, 3.0, 3.0] == [values[name] for name in names]


windows = st.lists(st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=5), min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(windows=windows, every=st.integers(1, 5))
def test_counts_and_sums_are_exact(clock: ManualClock, windows: list[list[float]], every: int) -> None:
    """Collections at any time do not change them."""
    backend = Backend()
    with monitel_otel.install(backend.meter_provider, backend.logger_provider):
        stat = Stat("loss", TORCHS, 60.0)
        for number, samples in enumerate(windows):
            for sample in samples:
                stat.add(sample)
            clock.advance(60)
            if number % every == 0:
                backend.collect()
        stat.flush()
    values = backend.values()
    assert sum(len(samples) for samples in windows) == values["loss.count"]
    assert sum(map(sum, windows)) == values["loss.sum"]
    last = windows[-1]
    expected = {"mean": sum(last) / len(last), "max": max(last), "min": min(last), "value": last[-1]}
    assert expected == {name: values[f"loss.{name}"] for name in expected}


@pytest.mark.usefixtures("installed")
def test_stats_of_one_name_share_instruments(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Different attributes give different points of one metric; equal attributes add up, even for a later Stat."""
    for attributes, value in [({"split": "val"}, 1.0), ({"split": "train"}, 2.0), ({"split": "val"}, 4.0)]:
        close_windows(Stat("loss", [SUM], 60.0, attributes=attributes), clock, [value])
    points = backend.collect()["loss.sum"].data.data_points
    assert {"val": 5.0, "train": 2.0} == {point.attributes["split"]: point.value for point in points}
    assert [] == warnings(caplog)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.usefixtures("installed")
def test_values_that_are_not_finite_are_counted(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture, bad: float
) -> None:
    """Such values are left out, because the SDK would log a warning for each; counts are exact."""
    stat = Stat("loss", TORCHS, 60.0)
    close_windows(stat, clock, [1.0])
    backend.collect()
    close_windows(stat, clock, [bad])
    values = backend.values()
    assert (2, 1.0, 1.0, 1.0) == tuple(values[f"loss.{name}"] for name in ("count", "sum", "mean", "value"))
    counted = {
        (point.attributes["stat"], point.attributes["aggregation"]): point.value
        for point in backend.collect()["monitel.stat.nonfinite"].data.data_points
    }
    assert {("loss", name): 1 for name in ("value", "mean", "sum", "max", "min")} == counted
    assert [] == warnings(caplog)


@pytest.mark.usefixtures("installed")
def test_negative_sum_of_a_monotonic_stat(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A negative sum with ``monotonic=True`` is left out and counted, without a warning of the SDK."""
    stat = Stat("tokens", [SUM], 60.0, monotonic=True)
    close_windows(stat, clock, [5.0], [-3.0], [2.0])
    values = backend.values()
    assert (7.0, 1) == (values["tokens.sum"], values["monitel.stat.nonfinite"])
    assert [] == warnings(caplog)


@pytest.mark.parametrize(
    ("name", "metric", "description"),
    [
        ("step time", "step_time", "of a step (Stat 'step time')"),
        ("1st", "stat_1st", "of a step (Stat '1st')"),
        ("Loss/Train", "loss/train", "of a step"),
        ("x" * 300, None, f"of a step (Stat {'x' * 300!r})"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_names_follow_the_syntax_of_the_api(
    backend: Backend, clock: ManualClock, name: str, metric: str | None, description: str
) -> None:
    """The API raises for other names; the Stat's name is kept in the description."""
    close_windows(Stat(name, [COUNT], 60.0, description="of a step"), clock, [1.0])
    (found,) = (each for each in backend.collect().values() if not each.name.startswith("monitel."))
    assert found.name == f"{metric}.count" if metric else len(found.name) <= 255
    assert description == found.description


@pytest.mark.usefixtures("installed")
def test_equal_metric_names_are_logged_once(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """This includes names that differ only in case, which OpenTelemetry ignores; the later one gets a number."""
    stats = [Stat(name, [COUNT, MEAN], 60.0) for name in ("Loss", "loss")]
    for _ in range(3):
        for stat in stats:
            close_windows(stat, clock, [1.0, 3.0] if stat.name == "Loss" else [5.0])
    warning = "Stat 'Loss' and Stat 'loss' have the same metric name 'loss.mean': Stat 'loss' is sent as 'loss_2'. "
    assert 1 == len([each for each in warnings(caplog) if each.startswith(warning)])
    values = backend.values()
    assert (6, 3, 2.0, 5.0) == tuple(values[f"loss{name}"] for name in (".count", "_2.count", ".mean", "_2.mean"))
    assert "Stat 'loss'" == backend.collect()["loss_2.mean"].description


@pytest.mark.usefixtures("installed")
def test_windows_faster_than_collections_are_logged_once(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the Stat and a remedy; Stats with only counts and sums give no warning."""
    exact, lossy = Stat("exact", [COUNT, SUM], 60.0), Stat("lossy", [MEAN], 60.0)
    backend.collect()
    close_windows(exact, clock, [1.0], [2.0], [3.0])
    close_windows(lossy, clock, [1.0])
    backend.collect()
    close_windows(lossy, clock, [2.0])
    assert [] == warnings(caplog)
    for _ in range(3):
        close_windows(lossy, clock, [3.0], [4.0])
        backend.collect()
    (warning,) = warnings(caplog)
    assert [] == [word for word in ("'lossy'", "OTEL_METRIC_EXPORT_INTERVAL", "monitel_otlp") if word not in warning]


@pytest.mark.usefixtures("installed")
def test_lost_window_of_a_new_stat_is_logged(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two Stats with the same name and attributes write one gauge, which keeps the later window."""
    backend.collect()
    backend.collect()
    stats = [Stat("val.loss", [MEAN], 60.0) for _ in range(2)]
    for stat in stats:
        close_windows(stat, clock, [1.0])
    assert 1 == len(warnings(caplog))


@pytest.mark.usefixtures("installed")
def test_stats_with_other_attributes_lose_no_windows(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One window per Stat between two collections, of many short-lived Stats, gives no warning."""
    backend.collect()
    backend.collect()
    for number in range(200):
        close_windows(Stat("loss", [MEAN], 60.0, attributes={"number": number}), clock, [1.0])
    assert [] == warnings(caplog)


def in_thread(function: Any) -> None:
    """Call a function in a thread, which must end in time."""
    thread = Thread(target=function, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "deadlock"


@pytest.mark.usefixtures("installed")
def test_collection_closes_expired_windows(backend: Backend, clock: ManualClock) -> None:
    """The window of an idle Stat is exported; an open window stays open."""
    stat = Stat("loss", [SUM], 60.0)
    backend.collect()
    stat.add(1)
    clock.advance(59)
    assert "loss.sum" not in backend.collect()
    clock.advance(1)
    in_thread(backend.collect)
    assert 1.0 == backend.values()["loss.sum"]


@pytest.mark.usefixtures("installed")
def test_first_window_of_a_stat_closes_in_a_collection(backend: Backend, clock: ManualClock) -> None:
    """Creating the instruments inside the callback does not deadlock, even for many Stats."""
    for number in range(50):
        Stat(f"loss.{number}", TORCHS, 60.0).add(1)  # destructed with an open window
        monitel.stat(f"registered.loss.{number}").add(1)
    clock.advance(60)
    in_thread(backend.collect)
    values = backend.values()
    assert {1} == {values[f"loss.{number}.count"] for number in range(50)}
    assert {1} == {values[f"registered.loss.{number}.count"] for number in range(50)}


@pytest.mark.usefixtures("installed")
def test_failing_handler_in_a_collection(backend: Backend, clock: ManualClock) -> None:
    """If another handler raises while a collection closes a window, the window is exported."""

    def broken(_event: monitel.Event) -> None:
        raise RuntimeError("broken handler")

    stat = Stat("loss", [SUM], 60.0)
    stat.add(1)
    clock.advance(60)
    with monitel.register_event_handler(broken):
        assert 1 == backend.values()["monitel.windows"]
    assert 1.0 == backend.values()["loss.sum"]


def test_threads_lose_no_windows(backend: Backend, installed: Installation) -> None:
    """Four threads close windows while a fifth collects."""

    def work(name: str) -> None:
        for _ in range(500):
            stat = Stat(name, [COUNT, SUM], 60.0)
            stat.add(1)
            stat.flush()

    threads = [Thread(target=work, args=["loss"], daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        backend.collect()
    values = backend.values()
    assert (2000, 2000.0, 2000) == (values["loss.count"], values["loss.sum"], values["monitel.windows"])
    installed.uninstall()
