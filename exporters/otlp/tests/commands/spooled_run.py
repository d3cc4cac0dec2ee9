"""What a run without a backend leaves on disk, and commands that are given it."""

from __future__ import annotations

import math
import time
from array import array
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import monitel_otlp.spool.spool
from monitel_otlp.__main__ import main
from monitel_otlp.request import REQUESTS, FrozenRequest
from monitel_otlp.spool.raw import encode_block
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

COMMAND = ("-m", "monitel_otlp")
EVENTS = [f"event {number}" for number in range(20)]
POISON = b"event 7"


def resource_of(container: Any) -> Any:
    """Add the resource that every request of the run has, and return its scope."""
    inner = container.add()
    inner.resource.attributes.add(key="service.name").value.string_value = "my-training"
    scope = inner.DESCRIPTOR.fields_by_name.keys()[1]
    return getattr(inner, scope).add()


def window_request(number: int) -> FrozenRequest:
    """Return a request with one window: a running count and a mean that may not be finite."""
    message = REQUESTS["metrics"]()
    scope = resource_of(message.resource_metrics)
    count, mean = scope.metrics.add(name="loss.count"), scope.metrics.add(name="loss.mean")
    count.sum.aggregation_temporality, count.sum.is_monotonic = 2, True
    value = [float(number), math.nan, math.inf][number % 3]
    for points, field, point in ((count.sum, "as_int", number + 1), (mean.gauge, "as_double", value)):
        made = points.data_points.add(start_time_unix_nano=1, time_unix_nano=(number + 1) * 60 * 10**9)
        made.attributes.add(key="réseau").value.string_value = "é"
        setattr(made, field, point)
    return FrozenRequest("metrics", message.SerializeToString(), 1, time.time_ns(), array("I", [0, 1]).tobytes())


def events_request(numbers: Iterable[int]) -> FrozenRequest:
    """Return a request with a log record for each number."""
    message = REQUESTS["logs"]()
    scope = resource_of(message.resource_logs)
    for number in numbers:
        record = scope.log_records.add(event_name=f"event {number}", severity_number=9, time_unix_nano=number + 1)
        record.attributes.add(key="why").value.string_value = "tiefe Größe"
        record.trace_id, record.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    return FrozenRequest("logs", message.SerializeToString(), len(scope.log_records), time.time_ns())


def span_request(number: int) -> FrozenRequest:
    """Return a request with one span."""
    message = REQUESTS["traces"]()
    resource_of(message.resource_spans).spans.add(
        name="step", trace_id=number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"), kind=1
    )
    return FrozenRequest("traces", message.SerializeToString(), 1, time.time_ns())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """What a run without a backend has left: 20 windows, 20 events, 20 spans, each in a request."""
    with closing(Spool(tmp_path / "runs" / "20260101-000000-7-1")) as spool:
        for number in range(20):
            spool.append(window_request(number))
            spool.append(events_request([number]))
            spool.append(span_request(number))
    return tmp_path / "runs"


class Command(Protocol):
    """The fixture ``command``."""

    def __call__(self, *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0) -> Printed:
        """Run a command in this process."""


@dataclass(frozen=True)
class Printed:
    """What a command has printed; log lines count as printed to stderr."""

    stdout: str
    stderr: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Command:
    """Run commands as ``python -m monitel_otlp`` does, without a process for each."""

    def run(*arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0) -> Printed:
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert returncode == status, printed.err + caplog.text
        assert "Traceback" not in printed.err + caplog.text
        return Printed(printed.out, printed.err + caplog.text)

    return run


class Events:
    """A decoder: an item is the number of an event."""

    def __init__(self, header: Any) -> None:
        pass

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Return one request."""
        return [events_request(items)]


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spool with 20 events: a request, a raw segment in small blocks, a request."""
    monkeypatch.setattr(monitel_otlp.spool.spool, "_default_decoders", lambda: {"events": Events})
    with closing(Spool(tmp_path / "runs" / "spool")) as spool:
        spool.append(events_request([0]))
        spool.append_raw("logs", ("events",), [block for number in range(1, 19) for block in encode_block([number])])
        spool.append(events_request([19]))
    return tmp_path / "runs"
