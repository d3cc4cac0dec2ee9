"""Requests that a run without a backend leaves in its spool, and the output of commands that read it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tests.unit.validity.samples import envelope

from monitel_otlp.messages.request import REQUESTS, FrozenRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def events_request(numbers: Iterable[int]) -> FrozenRequest:
    """Return a request with a log record for each number."""
    message = REQUESTS["logs"]()
    scope = envelope("logs", message)
    for number in numbers:
        record = scope.log_records.add(event_name=f"event {number}", time_unix_nano=number + 1)
        record.severity_number, record.severity_text = 9, "INFO"
        record.attributes.add(key="why").value.string_value = "tiefe Größe"
        record.trace_id, record.span_id = _ids(number)
    return FrozenRequest("logs", message.SerializeToString(), len(scope.log_records), time.time_ns())


def _ids(number: int) -> tuple[bytes, bytes]:
    return (number + 1).to_bytes(16, "big"), (number + 1).to_bytes(8, "big")


class Command(Protocol):
    """Type of the fixture ``command``."""

    def __call__(self, *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0) -> Printed:
        """Run a command in this process."""


@dataclass(frozen=True)
class Printed:
    """Output of a command; log lines are part of stderr."""

    stdout: str
    stderr: str
