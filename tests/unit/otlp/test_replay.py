"""monitel replay: the age of the data, and requests that a backend cannot take."""

import re
import time
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.support.inbox import Answer, Request, records_of
from tests.support.receiver import Receiver
from tests.support.spools import leave
from tests.unit.promises.program import Program

import monitel_otlp.export.sender
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.record import EVENT, NUMBERS, RANGES

HOUR_NS = 3600 * 10**9
PROMETHEUS = "Prometheus refuses metrics of that age, .*out_of_order_time_window is {} or more"
LOKI = "Loki refuses log records .* more than a week old.*reject_old_samples is false"


def old(signal: str, time_ns: int) -> tuple[int, Any]:
    if signal == "metrics":
        return NUMBERS, [(1, time_ns, 0.5)]
    if signal == "logs":
        return EVENT, tuple(LogRecord(time_ns, time_ns, 9, "old", None, {}))
    span = Span(trace_id=b"\1" * 16, span_id=b"\1" * 8, name="old", kind=Span.SPAN_KIND_INTERNAL)
    span.flags, span.start_time_unix_nano, span.end_time_unix_nano = 0x101, time_ns - 1, time_ns
    return RANGES, [span.SerializeToString()]


@pytest.mark.invalid_output("several records of one process", "series.order", "span.duplicate")
@pytest.mark.parametrize(
    ("hours", "words", "advice"),
    [
        ({"metrics": 0.5, "logs": 0.01}, "30 minutes", []),
        ({"metrics": 1.5, "logs": 3}, "3 hours", [PROMETHEUS.format("3h")]),
        ({"metrics": 240, "logs": 240, "traces": 1}, "10 days", [PROMETHEUS.format("242h"), LOKI]),
    ],
    ids=str,
)
def test_replay_reports_the_age_of_the_data(
    *, receiver: Receiver, program: Program, tmp_path: Path, hours: dict[str, float], words: str, advice: list[str]
) -> None:
    """The age of the oldest item in all records, with advice for backends that refuse old data."""
    for signal, age in hours.items():
        for younger in (0, 1):
            time_ns = time.time_ns() - int(age * HOUR_NS / (1 + younger)) - 10**9
            leave(tmp_path / "runs", [(signal, *old(signal, time_ns))])
    first, *more, result = program("replay", tmp_path / "runs", "--endpoint", receiver.url).stdout.splitlines()
    assert first.endswith(f", {words} ago")
    assert [True] * len(advice) == [bool(re.match(*pair)) for pair in zip(advice, more, strict=True)]
    assert f"delivered {2 * len(hours)} items from {2 * len(hours)} spools" == result


def test_record_that_another_process_delivers_meanwhile_is_no_error(
    receiver: Receiver, program: Program, tmp_path: Path
) -> None:
    """Its folder is gone when its turn comes."""
    event = LogRecord(1, 1, 9, "event", None, {})
    folders = [leave(tmp_path / "runs", [("logs", EVENT, tuple(event))]) for _ in range(3)]

    def deliver_the_others(_request: Request) -> None:
        for folder in folders[1:]:
            rmtree(folder, ignore_errors=True)

    receiver.rule(deliver_the_others)
    lines = program("replay", tmp_path / "runs", "--endpoint", receiver.url).stdout.splitlines()
    assert "delivered 1 item from 1 spool" == lines[-1]


@pytest.mark.parametrize("status", [413, 500])
def test_request_that_the_backend_cannot_take_does_not_stop_the_replay(
    receiver: Receiver, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A request that is too large is halved; an item that breaks the backend is found and set aside."""
    events = [LogRecord(number + 1, number + 1, 9, f"event {number}", None, {}) for number in range(100)]
    folder = leave(tmp_path / "runs", [("logs", EVENT, tuple(each)) for each in events])

    def refuse(request: Request) -> Answer | None:
        names = [each.name for each in records_of(request.message)]
        return Answer(status) if (len(names) > 10 if status == 413 else "event 99" in names) else None

    receiver.rule(refuse)
    monkeypatch.setattr(monitel_otlp.export.sender, "_LONGEST_PAUSE", 0.01)
    program("replay", tmp_path / "runs", "--endpoint", receiver.url, status=int(status != 413))
    if status == 413:
        assert [f"event {number}" for number in range(100)] == receiver.record_names()
    else:
        assert b"event 99" in next(folder.glob("rejected-*.log")).read_bytes()


def test_backend_that_is_down_gets_no_attempt_for_each_spool(
    receiver: Receiver, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five for the first signal, and one for each other signal. What remains is named for each spool."""
    monkeypatch.setattr("monitel_otlp.export.sender._LONGEST_PAUSE", 0.01)
    event = LogRecord(1, 1, 9, "event", None, {})
    for _ in range(3):
        leave(tmp_path / "many", [("logs", EVENT, tuple(event)), ("metrics", NUMBERS, [(1, 1, 0.5)])])
    receiver.rule(lambda _: Answer(503))
    printed = program("replay", tmp_path / "many", "--endpoint", receiver.url, status=1)
    assert (5, 1) == (len(receiver.of("metrics")), len(receiver.of("logs")))
    assert 6 == printed.stderr.count("run this command again")
