"""The adapter of OpenTelemetry: names in Prometheus, first windows, extreme times and texts, and two exporters."""

import datetime as dt
import re
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.otel.providers import Backend

import monitel
import monitel_otel
from monitel import COUNT, MEAN, SUM, Event, Stat
from monitel.counter import first_of_names
from monitel.profiler import record_function
from monitel.stats.definition import TORCHS
from monitel.testing import ManualClock
from monitel_otel.names import MetricNames

WAITS = {
    ".wait.time": ("s", True),
    ".wait.count": ("{wait}", True),
    ".wait.active": ("{wait}", False),
    ".wait.max": ("s", False),
}
UNITS = {"s": "seconds", "By": "bytes"}


def stored(metric: str, unit: str, *, monotonic: bool) -> str:
    """Return the name of a metric in Prometheus, written down again from the rules of its translation."""
    words = [word for word in re.split("[^a-z0-9]+", metric.lower()) if word]
    if unit in UNITS and UNITS[unit] not in words:
        words.append(UNITS[unit])
    if monotonic:
        words = [word for word in words if word != "total"] + ["total"]
    elif unit == "1":
        words = [word for word in words if word != "ratio"] + ["ratio"]
    return "_".join(words)


NAMES_OF_SOURCES = (
    *("x", "X.", "x_2", "x number", "x.count", "x.wait", "x.wait.count", "x.counter", "x.total", "x.sum.total"),
    *("é", "e", "É", "λ", "損失", "損", "u640d", "🔥", "\0", "*", "x" * 300, "x" * 301),
    *("x.bytes", "x_bytes_total", "x.total.bytes", "x.mean.seconds", "x.wait.max.seconds", "x.mean.ratio"),
)
sources = st.tuples(
    st.sampled_from(["Stat", "monotonic Stat", "number", "counter", "wait"]),
    st.sampled_from(NAMES_OF_SOURCES),
    st.sampled_from(["", "s", "By", "1"]),
)


@settings(max_examples=150)
@given(st.lists(sources, min_size=2, max_size=30))
def test_no_two_sources_have_one_name_in_prometheus(found: list[tuple[str, str, str]]) -> None:
    """In any order and with any units; a source that comes again has the same name."""
    names = MetricNames()
    owners: dict[str, tuple[str, str]] = {}
    given_names: dict[tuple[str, ...], str] = {}
    for kind, name, unit in found:
        source = kind.split()[-1], name
        if source[0] == "Stat":
            monotonic = kind != "Stat"
            base, _ = names.of_stat(monitel.StatDefinition(name, (MEAN, COUNT, SUM), unit, "", {}, monotonic))
            metrics = {".mean": (unit, False), ".count": ("{sample}", True), ".sum": (unit, monotonic)}
        elif kind == "number":
            base, metrics = names.of("logged number", name), {"": ("", False)}
        elif kind == "counter":
            chosen = monitel.counter(name, unit=unit).unit if name not in first_of_names() else None
            base, metrics = (
                names.of("counter", name),
                {"": (first_of_names()[name].unit if chosen is None else chosen, True)},
            )
        else:
            base, metrics = names.of("wait counter", name), WAITS
        assert base == given_names.setdefault((kind, name, unit if source[0] == "Stat" else ""), base)
        for suffix, (metric_unit, monotonic) in metrics.items():
            metric = base + suffix
            for key in {stored(metric, "", monotonic=False), stored(metric, metric_unit, monotonic=monotonic)}:
                assert source == owners.setdefault(key, source), key


DEADLINE = 60.0


def in_thread(function: Any) -> None:
    """Call a function in a thread, which must end in time."""
    thread = Thread(target=function, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "deadlock"


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


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (dt.datetime.min, 0),  # noqa: DTZ901  naive ones are taken too
        (EPOCH - dt.timedelta(seconds=1), 0),
        (EPOCH + dt.timedelta(microseconds=1), 1000),
        (dt.datetime.max, 2**64 - 1),  # noqa: DTZ901  naive
    ],
)
@pytest.mark.usefixtures("installed")
def test_years_outside_the_protocol_are_limited(backend: Backend, moment: dt.datetime, expected: int) -> None:
    """The event has the earliest or the latest possible time."""
    monitel.log_event(Event("odd", moment, {}))
    assert [expected] == [record.timestamp for record in backend.records()]


def test_a_name_that_utf_8_cannot_encode_is_escaped(backend: Backend) -> None:
    """In a span and in a fold: such a text would make an exporter lose all spans of its batch."""
    with monitel_otel.install(
        backend.meter_provider, backend.logger_provider, backend.tracer_provider, spans={"budget": 1}
    ):
        monitel.set_step(1)
        with record_function("kept \ud800"), record_function("folded \ud800"):
            pass
    fold, kept = sorted(backend.spans(), key=lambda span: span.name, reverse=True)
    assert "kept \\ud800" == kept.name
    assert ("folded \\ud800",) == (fold.attributes or {})["monitel.folded.names"]


def test_ranges_after_uninstall(backend: Backend) -> None:
    """A range that is running becomes a span; a range that begins later does not."""
    installation = monitel_otel.install(tracer_provider=backend.tracer_provider)
    with record_function("running"):
        installation.uninstall()
        with record_function("later"):
            pass
    assert ["running"] == [span.name for span in backend.spans()]


def test_only_the_last_exporter_ends_the_run(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second exporter joins the run of the first. Uninstalling twice ends nothing twice."""
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")
    other = type(backend)()
    first = monitel_otel.install(backend.meter_provider, backend.logger_provider)
    second = monitel_otel.install(other.meter_provider, other.logger_provider)
    first.uninstall()
    assert ["run.started"] == [record.event_name for record in backend.records()]
    for _ in range(2):
        second.uninstall()
    assert ["run.ended"] == [record.event_name for record in other.records()]
