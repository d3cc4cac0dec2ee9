"""``monitel replay``: the age of the data, and requests that a backend cannot take."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import Answer, records_of
from tests.support.spools import write
from tests.unit.otlp.commands.spooled_run import events_request

import monitel_otlp.delivery.replay
from monitel_otlp.messages.request import REQUESTS, FrozenRequest

if TYPE_CHECKING:
    from pathlib import Path

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
