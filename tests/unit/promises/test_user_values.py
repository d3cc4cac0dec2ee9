"""Names, units, attributes and values of any kind: each exporter sends them, and nothing raises into the loop."""

import datetime as dt
import logging
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from unittest.mock import Mock
from weakref import proxy

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from tests.support.checks import Warned, warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start
from tests.support.producers import fill, record_ranges, record_window
from tests.support.receiver import Receiver
from tests.unit.promises.providers import Backend, in_memory

import monitel
import monitel_otel
from monitel import COUNT, MEAN


class Broken:
    def __repr__(self) -> str:
        raise LookupError

    __float__ = __index__ = __int__ = __str__ = __repr__


class BrokenInt(int):
    __index__ = __int__ = __repr__ = __str__ = Broken.__repr__  # type: ignore[assignment]  # wrong on purpose


VALUES: list[Any] = [
    *(None, Broken(), proxy(Broken()), BrokenInt(3), object(), print, 1j, np.datetime64("2020-01-01"), dt.timedelta(1)),
    *((1, "a"), frozenset({1}), range(3), b"\xff", b"bytes", np.float32(0.5), np.str_("text"), "\udcff", "a\0b", ""),
    *(2**63, 10**5000, -(10**5000), Fraction(10**400), float("nan"), float("-inf"), -1, True),
]
#: A unit, and its form in ASCII: letters by their names, annotations without spaces, of at most 63 characters.
UNITS = {
    "µs": "us",
    "μs": "us",
    "㎲": "us",
    "kΩ": "kOhm",
    "°C": "Cel",
    "m³/s": "m3/s",
    "{样本}": "{u6837u672c}",
    "{my token}/s": "{my_token}/s",
    " s\n": "s",
    "{" + "long" * 20 + "}": "{" + ("long" * 20)[:61] + "}",
}


#: Names of attributes, and the names that are sent. Prometheus' receiver crashes at others, and Loki refuses a record.
ATTRIBUTES: dict[str, Any] = {
    "split": "split",
    "損失": "u640du5931",
    "λ.é": "lambda.e",
    "réseau": "réseau",
    "--": "u2du2d",
    "…": "u2026",
    "1_": "1_",
}


@pytest.fixture
def backend() -> Iterator[Backend]:
    """Yield an application's providers in memory, with monitel installed; all that they have exported must be valid."""
    with in_memory() as backend, backend.install():
        yield backend


@pytest.mark.parametrize("unit", UNITS)
def test_unit_is_the_same_in_each_exporter(backend: Backend, receiver: Receiver, start: Start, unit: str) -> None:
    """The object has the unit that is sent, so that the SDK, which takes ASCII only, does not refuse it later."""
    pipeline = start()
    stat, counter = monitel.stat("step.time", [MEAN], unit=unit), monitel.counter("tokens", unit=unit)
    assert stat is monitel.stat("step.time", unit=unit)
    assert counter is monitel.counter("tokens", unit=unit)
    assert [UNITS[unit]] * 2 == [stat.definition.unit, counter.unit]
    fill(stat, 0.5)
    monitel.log({"loss": 0.5})  # from an event on, new counters are observed
    metrics = backend.collect()
    assert pipeline.force_flush(DEADLINE)
    for name in ("step.time.mean", "tokens"):
        assert [UNITS[unit]] * 2 == [metrics[name].unit, receiver.points(name)[-1].unit]


def test_names_of_attributes_have_a_letter_or_digit_in_ascii(
    backend: Backend, receiver: Receiver, start: Start
) -> None:
    """Each exporter has the same names, for windows, numbers, counters and events; bodies have those of the program."""
    pipeline = start(resource_attributes=ATTRIBUTES)
    record_window("loss", [MEAN], 0.5, attributes=ATTRIBUTES)
    monitel.counter("tokens", attributes=ATTRIBUTES).add(2)
    monitel.log({"損失": 0.5}, **ATTRIBUTES)
    monitel.emit("done", ATTRIBUTES)
    pipeline.meter_provider.get_meter("mine").create_counter("of_the_sdk").add(1)
    metrics = backend.collect()
    assert pipeline.force_flush(DEADLINE)
    expected = {name: name for name in ATTRIBUTES.values()}
    for name in ("loss.mean", "tokens", "u640du5931"):
        assert expected == receiver.points(name)[-1].attributes == metrics[name].data.data_points[0].attributes
    for records in (receiver.records(), backend.records()):
        (numbers,) = (each for each in records if isinstance(each.body, dict))
        (done,) = (each for each in records if each.body == "done")
        assert {"損失": 0.5} == numbers.body
        assert [expected] * 2 == [dict(numbers.attributes), dict(done.attributes)]
    for resource in (receiver.records()[0].resource, receiver.points("of_the_sdk")[0].resource):
        assert expected.items() <= resource.items()


def test_numbers_in_bodies_that_are_not_finite_are_text(backend: Backend, receiver: Receiver, start: Start) -> None:
    """Loki stores an empty line for a body that cannot be JSON."""
    nan, infinity = float("nan"), float("inf")
    pipeline = start(logging_level="WARNING")
    monitel.log({"loss": nan, "accuracy": 0.5})
    monitel.config({"model": {"clip": [infinity, -infinity, 1.0]}})
    logging.getLogger("train").warning({"event": "diverged", "loss": nan})
    assert pipeline.force_flush(DEADLINE)
    numbers, config = {"loss": "NaN", "accuracy": 0.5}, {"model": {"clip": ["Infinity", "-Infinity", 1.0]}}
    bodies = [
        [each.body for each in found if isinstance(each.body, dict)]
        for found in (receiver.records(), backend.records())
    ]
    assert [[numbers, config, {"event": "diverged", "loss": "NaN"}], [numbers, config]] == bodies


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_no_value_raises_into_the_loop(receiver: Receiver, start: Start, number: int) -> None:
    """In any call of the loop, as a value, a name or an attribute; what is recorded beside it arrives everywhere."""
    value = VALUES[number]
    keys: list[Any] = [value] if value is not None and getattr(type(value), "__hash__", None) else []
    with in_memory() as backend, backend.install():
        pipeline = start(spans=True)
        monitel.emit("emitted", {"beside": 1, **dict.fromkeys(keys, 1)}, value=value)
        monitel.log({"beside": 0.5, "value": value, "in": dict.fromkeys(keys, 1.0)}, split=value)
        monitel.counter("tokens").add(value)
        monitel.counter("tokens").add(2**40)
        record_ranges(value)
        for args in (value, {"a": value, "b": [value], **dict.fromkeys(keys, 1)}):
            record_ranges("range", args=args)
        changed = monitel.Event("changed", dt.datetime(2026, 1, 1), {})  # noqa: DTZ001  torch's events are naive
        changed.data.update({"beside": 1, "value": value})
        monitel.log_event(changed)
        assert pipeline.force_flush(DEADLINE), pipeline.account()
        assert {} == pipeline.dropped
        assert 0.5 == backend.values()["beside"] == receiver.values("beside")[-1]
        assert 2**40 <= backend.values()["tokens"]
        for records in (receiver.records(), backend.records()):
            found = {getattr(each, "event_name", None) or each.name: dict(each.attributes) for each in records}
            assert [1, 1] == [found[name]["beside"] for name in ("emitted", "changed")]
        assert 3 == len(backend.spans())


def test_provider_that_fails_does_not_stop_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """At a window's end, in log(), emit() and a range; the first failure is logged, and all are counted."""
    metrics, logs, traces = Mock(), Mock(), Mock()
    metrics.get_meter.return_value.create_gauge.side_effect = ValueError("refused")
    metrics.get_meter.return_value.create_counter.return_value.add.side_effect = ValueError("refused")
    logs.get_logger.return_value.emit.side_effect = LookupError
    traces.get_tracer.return_value.start_span.side_effect = LookupError
    with monitel_otel.install(metrics, logs, traces):
        for aggregations in ([MEAN], [COUNT], [MEAN, COUNT]):
            record_window("x", aggregations, 1)
            monitel.log({"loss": 0.5})
            monitel.emit("event")
            record_ranges("range")
    assert 1 == len(warnings_with(caplog, "refuses 'x.mean'"))
    assert 1 == len(warnings_with(caplog, "a provider of the application failed"))
    failed = {each.counter.name: each.total for each in monitel.counters()}["monitel.otel.failed"]
    assert 2 + 3 * 3 <= failed  # two windows with a count; numbers, events and ranges; the run's own events
    caplog.clear()  # the traceback has the Stats


def test_provider_that_refuses_a_fold_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither uninstall(), which writes the fold, nor the block around it raises; the failure is counted."""
    traces = Mock()
    span = TracerProvider(shutdown_on_exit=False).get_tracer("mine").start_span("first")
    traces.get_tracer.return_value.start_span.side_effect = [span, LookupError]
    with monitel_otel.install(tracer_provider=traces, spans={"budget": 1}):
        record_ranges("first", "folded")
    assert 2 == traces.get_tracer.return_value.start_span.call_count
    assert 1 == len(warnings_with(caplog, "a provider of the application failed"))


def test_window_after_the_shutdown_of_the_provider_is_lost_with_one_warning(warned: Warned) -> None:
    """The warning has the call that helps."""
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    with monitel_otel.install(provider):
        provider.shutdown()
        for _ in range(2):
            record_window("loss", [COUNT], 3)
    assert 1 == len(warned("'loss' is lost", "call monitel.flush()"))
