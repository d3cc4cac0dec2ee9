"""Observable callbacks of the application that hang or fail do not stop the delivery of anything else."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Observation
from tests.support.checks import wait_until, warnings_with
from tests.support.inbox import DEADLINE
from tests.support.producers import has_arrived, record_one_of_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel_otlp import Pipeline


def raises(_options: Any) -> list[Observation]:
    """Raise OSError."""
    raise OSError("the device is gone")


def exits(_options: Any) -> list[Observation]:
    """Raise SystemExit."""
    raise SystemExit(3)


def raises_in_a_generator(_options: Any) -> Iterator[Observation]:
    """Raise OSError after the first value."""
    yield Observation(1)
    raise OSError("the device is gone")


def returns_none(_options: Any) -> Any:
    """Return None."""


def returns_numbers(_options: Any) -> Any:
    """Return values without attributes."""
    return [5]


def observe(pipeline: Pipeline, name: str, *callbacks: Any) -> None:
    """Create an observable gauge with these callbacks."""
    pipeline.meter_provider.get_meter("mine").create_observable_gauge(name, list(callbacks))


class Healthy:
    """A callback whose values count its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _options: Any) -> list[Observation]:
        """Observe the number of calls."""
        self.calls += 1
        return [Observation(self.calls)]


def test_faulty_callbacks_stop_nothing_else(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Instruments before and after them, windows, events and spans arrive in each round; each fault is logged once."""
    pipeline = start()
    observe(pipeline, "before", Healthy())
    for faulty in (raises, exits, raises_in_a_generator, returns_none, returns_numbers):
        observe(pipeline, f"faulty.{faulty.__name__}", faulty)
    observe(pipeline, "after", Healthy())
    for number in range(3):
        record_one_of_each(pipeline, number)
        assert pipeline.force_flush(DEADLINE)
        assert has_arrived(receiver, number)
        assert number < len(receiver.values("before"))
    assert receiver.values("before") == receiver.values("after") == [*range(1, len(receiver.values("after")) + 1)]
    for faulty in (raises, exits, raises_in_a_generator, returns_none, returns_numbers):
        assert 1 == len(warnings_with(caplog, f"'faulty.{faulty.__name__}'")), faulty


def test_callback_that_hangs_is_skipped_until_it_returns(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything else arrives, a warning names it once, and its late result is exported once."""
    called, release = Event(), Event()

    def hangs(_options: Any) -> list[Observation]:
        called.set()
        release.wait()
        return [Observation(7)]

    pipeline = start()
    observe(pipeline, "before", Healthy())
    observe(pipeline, "faulty", hangs)
    observe(pipeline, "after", Healthy())
    try:
        for number in range(3):
            record_one_of_each(pipeline, number)
            assert pipeline.force_flush(DEADLINE)
            assert has_arrived(receiver, number)
        assert called.is_set()
        assert receiver.values("before") == [*range(1, len(receiver.values("before")) + 1)]
        assert len(receiver.values("before")) >= 3
        assert [] == receiver.values("faulty")
        assert 1 == len(warnings_with(caplog, "'faulty'"))
    finally:
        release.set()
    wait_until(lambda: pipeline.force_flush(DEADLINE) and receiver.values("faulty"), "the late result")
    assert {7} == {*receiver.values("faulty")}
    assert receiver.values("after") == [*range(1, len(receiver.values("after")) + 1)]
    assert pipeline.shutdown(DEADLINE)
