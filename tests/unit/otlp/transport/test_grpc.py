"""Delivery over gRPC: configuration, headers, compression and secrets."""

from typing import Any

import pytest
from tests.support.checks import warnings_with
from tests.support.pipelines import Start, deliver, emit_and_flush

TOKEN = "sesame-4711"


@pytest.fixture(autouse=True)
def fork_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")


def test_headers_are_metadata(grpc_receiver: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are in lower case, as gRPC requires; the argument overrides the variable."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=a,other=b%20c")
    pipeline = start(endpoint=grpc_receiver.url, protocol="grpc", headers={"Tenant": "b", "X-Run.id": "7"})
    assert deliver(pipeline, "event")
    headers = grpc_receiver.of("logs")[0].headers
    assert ("b", "b c", "7") == (headers["tenant"], headers["other"], headers["x-run.id"])


def test_headers_that_grpc_does_not_allow_are_logged(
    grpc_receiver: Any, start: Start, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """One warning has the variable to change, without the header's value, and everything is in the spool."""
    for headers in ({"x!": TOKEN}, {"x": f"{TOKEN}\u00e9"}, {"x": f"{TOKEN}\t"}, {"x-bin": TOKEN}):
        caplog.clear()
        pipeline = start(endpoint=grpc_receiver.url, protocol="grpc", headers=headers)
        assert not emit_and_flush(pipeline, "first", "second", seconds=0.05)
        assert not pipeline.shutdown()
        assert 1 == len(warnings_with(caplog, "(logs)", "OTEL_EXPORTER_OTLP_HEADERS"))
        assert 2 == pipeline.account()["logs"].on_disk
        assert TOKEN not in caplog.text + capfd.readouterr().err
