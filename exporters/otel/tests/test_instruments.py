"""Windows in the instruments of an application's own MeterProvider."""

from __future__ import annotations

import logging
import math
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import monitel
import monitel_otel
from monitel import COUNT, HISTOGRAM, MAX, MEAN, MIN, STDDEV, SUM, VALUE, Aggregation, Stat
from monitel.aggregation import TORCHS

from .conftest import Backend

if TYPE_CHECKING:
    from monitel.testing import ManualClock
    from monitel_otel import Installation

DEADLINE = 20.0
CUMULATIVE = 2


def close_windows(stat: Stat, clock: ManualClock, *windows: list[float]) -> None:
    """Fill one window after the other; the last one is closed too."""
    for samples in windows:
        for sample in samples:
            stat.add(sample)
        clock.advance(60)
    stat.flush()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that was told, by anybody."""
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
    """COUNT and SUM add up over windows, the others show the last one; unit, description and attributes are there."""
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
def test_a_distribution_is_percentiles(backend: Backend, clock: ManualClock) -> None:
    """Gauges, because an instrument of the API takes samples, not a histogram that is made; NaN is left out."""
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
def test_counts_and_sums_are_exact_over_any_windows(
    clock: ManualClock, windows: list[list[float]], every: int
) -> None:
    """However often somebody collects in between."""
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
    """Other attributes are other points of one metric; the same ones add up, also in a Stat made later."""
    for attributes, value in [({"split": "val"}, 1.0), ({"split": "train"}, 2.0), ({"split": "val"}, 4.0)]:
        close_windows(Stat("loss", [SUM], 60.0, attributes=attributes), clock, [value])
    points = backend.collect()["loss.sum"].data.data_points
    assert {"val": 5.0, "train": 2.0} == {point.attributes["split"]: point.value for point in points}
    assert [] == warnings(caplog)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.usefixtures("installed")
def test_what_is_not_finite_is_left_out_and_counted(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture, bad: float
) -> None:
    """The SDK would drop it too, with a warning for each call; counts stay exact."""
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
def test_a_counter_that_would_fall_is_counted_too(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """``monotonic=True`` was promised; a negative sum is left out, without a warning of the SDK."""
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
def test_names_are_what_the_api_takes(
    backend: Backend, clock: ManualClock, name: str, metric: str | None, description: str
) -> None:
    """The API raises for others; the Stat's own name is kept in the description."""
    close_windows(Stat(name, [COUNT], 60.0, description="of a step"), clock, [1.0])
    (found,) = (each for each in backend.collect().values() if not each.name.startswith("monitel."))
    assert found.name == f"{metric}.count" if metric else len(found.name) <= 255
    assert description == found.description


@pytest.mark.usefixtures("installed")
def test_names_that_become_one_are_told_once(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by upper and lower case, which OpenTelemetry does not tell apart; no sample is lost."""
    stats = [Stat(name, [COUNT], 60.0, description="same") for name in ("Loss", "loss")]
    for _ in range(3):
        for stat in stats:
            close_windows(stat, clock, [1.0])
    assert 1 == len([each for each in warnings(caplog) if "'Loss' and 'loss'" in each])
    assert 6 == sum(point.value for point in backend.collect()["loss.count"].data.data_points)


@pytest.mark.usefixtures("installed")
def test_windows_that_come_faster_than_collects_are_told_once(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The Stat is named, and what to do; counts and sums alone lose nothing and give no warning."""
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
def test_the_loss_is_told_for_stats_that_are_made_anew_too(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two Stats of one name and attributes write one gauge: it holds the later one's window."""
    backend.collect()
    backend.collect()
    stats = [Stat("val.loss", [MEAN], 60.0) for _ in range(2)]
    for stat in stats:
        close_windows(stat, clock, [1.0])
    assert 1 == len(warnings(caplog))


@pytest.mark.usefixtures("installed")
def test_stats_of_other_attributes_do_not_lose_each_others_windows(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One window each between two collects, of many Stats that come and go, is no loss and gives no warning."""
    backend.collect()
    backend.collect()
    for number in range(200):
        close_windows(Stat("loss", [MEAN], 60.0, attributes={"number": number}), clock, [1.0])
    assert [] == warnings(caplog)


def in_thread(function: Any) -> None:
    """Call it in a thread that must come back."""
    thread = Thread(target=function, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "deadlock"


@pytest.mark.usefixtures("installed")
def test_a_collect_closes_windows_whose_time_is_over(backend: Backend, clock: ManualClock) -> None:
    """A Stat that nobody adds to is heard of all the same; an open window stays open."""
    stat = Stat("loss", [SUM], 60.0)
    backend.collect()
    stat.add(1)
    clock.advance(59)
    assert "loss.sum" not in backend.collect()
    clock.advance(1)
    in_thread(backend.collect)
    assert 1.0 == backend.values()["loss.sum"]


@pytest.mark.usefixtures("installed")
def test_the_first_window_of_a_stat_may_close_in_a_collect(backend: Backend, clock: ManualClock) -> None:
    """Its instruments are then made inside the callback: no deadlock, in many Stats at once."""
    for number in range(50):
        Stat(f"loss.{number}", TORCHS, 60.0).add(1)  # destructed with an open window
        monitel.stat(f"registered.loss.{number}").add(1)
    clock.advance(60)
    in_thread(backend.collect)
    values = backend.values()
    assert {1} == {values[f"loss.{number}.count"] for number in range(50)}
    assert {1} == {values[f"registered.loss.{number}.count"] for number in range(50)}


@pytest.mark.usefixtures("installed")
def test_a_broken_handler_does_not_spoil_a_collect(backend: Backend, clock: ManualClock) -> None:
    """Somebody's handler raises when it hears of a window that a collect has closed: the window is exported."""

    def broken(_event: monitel.Event) -> None:
        raise RuntimeError("broken handler")

    stat = Stat("loss", [SUM], 60.0)
    stat.add(1)
    clock.advance(60)
    with monitel.register_event_handler(broken):
        assert 1 == backend.values()["monitel.windows"]
    assert 1.0 == backend.values()["loss.sum"]


def test_threads_lose_nothing(backend: Backend, installed: Installation) -> None:
    """Windows closed in four threads, while a fifth collects."""

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
