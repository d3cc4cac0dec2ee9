"""Log records and spans: extreme times, texts and contexts, and the events of a run."""

import datetime as dt

import pytest
from tests.unit.otel.providers import Backend

import monitel
import monitel_otel
from monitel import Event
from monitel.profiler import record_function

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
