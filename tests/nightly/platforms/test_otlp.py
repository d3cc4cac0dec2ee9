"""monitel-otlp on Windows and macOS: telemetry reaches a backend over HTTP, and what is missing is named."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("monitel_otlp")

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nightly.platforms.conftest import RunOn

_UNAVAILABLE = "this platform has neither descriptors of folders nor locks of files as POSIX has them"

_RUN = "monitel: run needs fork() and sigtimedwait(), which this platform does not have. The command was not started"

_TRAIN = """
import logging, sys
import monitel, monitel_otlp
from monitel import COUNT, SUM, Stat, profiler
from opentelemetry import metrics, trace

logging.basicConfig(format="%(message)s")
pipeline = monitel_otlp.configure(*PLACE, service_name="train", export_interval=0.2, spans=True, sigterm="auto")
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT, SUM], 60.0)
    for number in range(10):
        monitel.set_step(number)
        loss.add(number)
    clock.advance(60)
    monitel.close_expired_windows()
monitel.emit("checkpoint", path="step-9.pt")
with profiler.record_function("save"), monitel.activity("checkpoint.save"):
    pass
metrics.get_meter("own").create_counter("own").add(3)
with trace.get_tracer("own").start_as_current_span("own"):
    pass
late = Stat("late", [SUM], 3600.0)
late.add(1.0)
"""
_SEND = _TRAIN.replace("*PLACE", "endpoint=sys.argv[1]")


def test_telemetry_reaches_a_backend(run_on: RunOn, platform: str, receiver: Any) -> None:
    """Windows, events, spans, and data of the SDK are exported, at exit too, and nothing is logged."""
    finished = run_on(platform, "-c", _SEND, receiver.url)
    assert ([10], [45.0]) == (receiver.values("loss.count"), receiver.values("loss.sum"))
    assert [1.0] == receiver.values("late.sum")
    assert 3 in receiver.values("own")
    assert "checkpoint" in receiver.record_names()
    assert {"save", "own"} == {span.name for span in receiver.spans()}
    assert {0} == {*receiver.values("monitel.dropped")} | {0}
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("monitel")]
    assert [] == lines, finished.stderr


def test_offline_windows_says_that_telemetry_is_lost(run_on: RunOn) -> None:
    """Without an endpoint and without a spool one warning at the start, and the count at the end, name the loss."""
    finished = run_on("windows", "-c", _TRAIN.replace("*PLACE, ", ""))
    assert f"no OTLP endpoint is set: telemetry goes nowhere, because {_UNAVAILABLE}" in finished.stderr
    assert "dropped" in finished.stderr.splitlines()[-2], finished.stderr


def test_unreachable_backend_on_windows(run_on: RunOn) -> None:
    """Items that cannot be sent are kept in memory. At exit they are lost, and the reason is logged once."""
    finished = run_on("windows", "-c", _SEND, "http://127.0.0.1:9")
    assert 1 == finished.stderr.count(_UNAVAILABLE), finished.stderr
    assert "dropped" in finished.stderr


def test_spool_on_macos(run_on: RunOn, receiver: Any, tmp_path: Path) -> None:
    """Locks and descriptors of folders are there: what was not sent is on disk, is printed, and is replayed."""
    run_on("macos", "-c", _TRAIN.replace("*PLACE", "spool_dir='runs'"))
    (spool,) = [each for each in (tmp_path / "runs").iterdir() if each.name != "ledgers"]
    printed = run_on("macos", "-m", "monitel_otlp", "cat", spool).stdout
    assert {"loss.count", "late.sum"} <= _metrics(printed)
    run_on("macos", "-m", "monitel_otlp", "replay", "runs", "--endpoint", receiver.url)
    assert ([10], [1.0]) == (receiver.values("loss.count"), receiver.values("late.sum"))
    assert not spool.exists()
    assert "checkpoint" in run_on("macos", "-m", "monitel_otlp", "ledger", env={"MONITEL_SPOOL_DIR": "runs"}).stdout


def _metrics(text: str) -> set[str]:
    lines = [json.loads(line) for line in text.splitlines()]
    scopes = [scope for line in lines for each in line.get("resourceMetrics", ()) for scope in each["scopeMetrics"]]
    return {metric["name"] for scope in scopes for metric in scope["metrics"]}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "simulate"),
        (["run", "--", sys.executable, "-c", "print('started')"], 1, _RUN),
        (["cat", "."], 1, _UNAVAILABLE),
        (["autopsy", "."], 1, _UNAVAILABLE),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_on_windows(run_on: RunOn, arguments: list[str], status: int, text: str) -> None:
    """A command that needs what is missing names it in one line, without a traceback."""
    finished = run_on("windows", "-m", "monitel_otlp", *arguments, returncode=status)
    assert text in finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr
    assert status == 0 or 1 == len(finished.stderr.splitlines()), finished.stderr


def test_commands_on_macos(run_on: RunOn) -> None:
    """``run`` does not start the command; ``autopsy`` finds no black boxes."""
    finished = run_on(
        "macos", "-m", "monitel_otlp", "run", "--", sys.executable, "-c", "print('started')", returncode=1
    )
    assert ("", True) == (finished.stdout, finished.stderr.startswith(_RUN))
    assert "no black boxes" in run_on("macos", "-m", "monitel_otlp", "autopsy").stdout


def test_doctor(run_on: RunOn, platform: str, receiver: Any) -> None:
    """The endpoints are tried, and the place of undelivered telemetry is described."""
    printed = run_on(platform, "-m", "monitel_otlp", "doctor", "--endpoint", receiver.url).stdout
    assert "3 of 3 endpoints accept telemetry" in printed
    assert (_UNAVAILABLE in printed) is (platform == "windows")
