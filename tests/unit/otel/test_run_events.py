"""run.started and run.ended of applications that export through OpenTelemetry's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import monitel
import monitel_otel

if TYPE_CHECKING:
    from tests.unit.otel.conftest import Backend


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run events are off in other tests."""
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")


def test_block_is_a_run(backend: Backend) -> None:
    """The exception that leaves the block decides about the status."""
    for error, status in ((None, "completed"), (ValueError(), "failed"), (KeyboardInterrupt(), "interrupted")):
        try:
            with monitel_otel.install(backend.meter_provider, backend.logger_provider):
                monitel.emit("event")
                if error is not None:
                    raise error
        except (ValueError, KeyboardInterrupt):
            pass
        began, event, ended = backend.records()[-3:]
        assert ["run.started", "event", "run.ended"] == [each.event_name for each in (began, event, ended)]
        assert status == ended.attributes["run.status"]


def test_only_the_last_exporter_ends_the_run(backend: Backend) -> None:
    """A second exporter joins the run of the first. Uninstalling twice ends nothing twice."""
    other = type(backend)()
    first = monitel_otel.install(backend.meter_provider, backend.logger_provider)
    second = monitel_otel.install(other.meter_provider, other.logger_provider)
    first.uninstall()
    assert ["run.started"] == [record.event_name for record in backend.records()]
    for _ in range(2):
        second.uninstall()
    assert ["run.ended"] == [record.event_name for record in other.records()]


def test_handler_that_raises_does_not_stop_the_program(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Exceptions of handlers on run events are logged."""

    def fail(event: monitel.Event) -> None:
        raise ValueError(event.name)

    with (
        monitel.register_event_handler(fail),
        monitel_otel.install(backend.meter_provider, backend.logger_provider),
    ):
        pass
    assert ["run.started", "run.ended"] == [record.event_name for record in backend.records()]
    assert 2 == caplog.text.count("an event handler raised on run.")


def test_variable_switches_them_off(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are as usual for variables."""
    for value in ("0", "false", "No", " off "):
        monkeypatch.setenv("MONITEL_RUN_EVENTS", value)
        with monitel_otel.install(backend.meter_provider, backend.logger_provider):
            pass
    assert [] == backend.records()
