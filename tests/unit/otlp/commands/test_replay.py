"""``monitel replay``: raw segments, the age of the data, requests that a backend cannot take, and a full disk."""

from __future__ import annotations

import errno
import os
import re
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import Answer, records_of
from tests.support.spools import write
from tests.unit.otlp.commands.spooled_run import EVENTS, POISON, events_request

import monitel_otlp.delivery.replay
from monitel_otlp.messages.request import REQUESTS, FrozenRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inbox import Request
    from tests.support.receiver import Receiver
    from tests.unit.otlp.commands.spooled_run import Command

HOUR_NS = 3600 * 10**9
PROMETHEUS = "Prometheus refuses metrics of that age, .*out_of_order_time_window is {} or more"
LOKI = "Loki refuses log records .* more than a week old.*reject_old_samples is false"


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
    *, receiver: Receiver, command: Command, tmp_path: Path, hours: dict[str, float], words: str, advice: list[str]
) -> None:
    """The age of the oldest request in all folders, with advice for backends that refuse old data."""
    for signal, age in hours.items():
        for younger in (0, 1):
            created_ns = time.time_ns() - int(age * HOUR_NS / (1 + younger)) - 10**9
            empty = FrozenRequest(signal, REQUESTS[signal]().SerializeToString(), 1, created_ns)
            write(tmp_path / "runs" / f"{signal}{younger}", empty)
    first, *more, result = command("replay", tmp_path / "runs", "--endpoint", receiver.url).stdout.splitlines()
    assert first.endswith(f", {words} ago")
    assert [True] * len(advice) == [bool(re.match(*pair)) for pair in zip(advice, more, strict=True)]
    assert f"delivered {2 * len(hours)} items from {2 * len(hours)} spools" == result


def test_raw_segments_are_printed_and_delivered_as_requests(receiver: Receiver, command: Command, raw: Path) -> None:
    """Raw segments keep their position among other requests, and a replay resumes inside a raw segment."""
    assert EVENTS == re.findall(r'"eventName":"([^"]*)"', command("cat", raw).stdout)
    receiver.rule(lambda request: Answer(401) if POISON in request.body else None)
    ended = command("replay", raw, "--endpoint", receiver.url, returncode=1)
    assert "delivered 7 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert EVENTS[7:] == re.findall(r'"eventName":"([^"]*)"', command("cat", raw).stdout)
    receiver.forget_rules()
    ended = command("replay", raw, "--endpoint", receiver.url)
    assert "delivered 13 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert EVENTS == receiver.record_names()
    assert [] == list(raw.iterdir())


def test_damaged_raw_block_costs_its_items(receiver: Receiver, command: Command, raw: Path) -> None:
    """It is counted; everything else is delivered."""
    (path,) = raw.glob("*/*.raw")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    ended = command("replay", raw, "--endpoint", receiver.url, returncode=1)
    assert EVENTS[:18] + EVENTS[19:] == receiver.record_names()
    summary = "delivered 19 items from 1 spool; lost (disk 1): 1; unreadable segments or records: 1"
    assert summary == ended.stdout.splitlines()[-1]


@pytest.mark.parametrize("status", [413, 500])
def test_request_that_the_backend_cannot_take_does_not_stop_the_replay(
    receiver: Receiver, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A request that is too large is halved; one that breaks the backend is set aside after three attempts."""
    write(tmp_path / "runs" / "spool", events_request(range(100)))
    receiver.rule(lambda request: Answer(status) if len(list(records_of(request.message))) > 10 else None)
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", (0.01, 0.01, 0.01, 0.01))
    command("replay", tmp_path / "runs", "--endpoint", receiver.url, returncode=int(status != 413))
    if status == 413:
        assert [f"event {number}" for number in range(100)] == receiver.record_names()
    else:
        assert 1 == len(list(tmp_path.glob("runs/*/rejected/*.binpb")))


def test_full_disk_is_reported(
    receiver: Receiver, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused requests and parts of requests that cannot be written are counted as lost."""
    write(tmp_path / "runs" / "spool", *(events_request([number, number + 1]) for number in range(0, 20, 2)))

    def refuse(request: Request) -> Answer | None:
        if b"event 19" in request.body:
            return Answer(413) if b"event 18" in request.body else Answer(503, {"Retry-After": "0"})
        return Answer(400) if POISON in request.body else None

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    receiver.rule(refuse)
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(monitel_otlp.delivery.replay, "PAUSES", ())
    ended = command("replay", tmp_path / "runs", "--endpoint", receiver.url, returncode=1)
    assert [name for number, name in enumerate(EVENTS) if number not in {7, 19}] == receiver.record_names()
    assert "delivered 18 items from 1 spool; lost (disk 1, rejected 1): 2" == ended.stdout.splitlines()[-1]
    assert "No space left on device" in ended.stderr
