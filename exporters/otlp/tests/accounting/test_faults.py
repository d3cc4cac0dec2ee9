"""Faults around the accounts: records that cannot be formatted, odd timeouts, exceptions in a phase of the exit."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import monitel
import monitel_otlp
import monitel_otlp.engine
from monitel_otlp.log_handler import LogHandler

from .inbox import DEADLINE
from .producers import emit_items, run_together

if TYPE_CHECKING:
    from .conftest import Start
    from .receiver import Receiver


class Unprintable(Exception):  # noqa: N818  not a fault of this package
    """An exception without a message."""

    def __str__(self) -> str:
        raise ValueError("a fault of the application")


class UnprintableMessage:
    """A message that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("a fault of the application")


@pytest.mark.parametrize(
    ("fields", "arrives"),
    [
        ({"msg": "%d", "args": ("x",)}, False),
        ({"msg": UnprintableMessage()}, False),
        ({"msg": "text", "created": None}, False),
        ({"msg": "text", "exc_info": (Unprintable, Unprintable(), None)}, True),
        ({"msg": "lone \ud800", "pathname": "/\udcff"}, True),
        ({"msg": "text", "name": None}, True),
        ({"msg": "text", "exc_info": (None, None, None)}, True),
    ],
    ids=["arguments", "message", "time", "exception", "surrogate", "no name", "no exception"],
)
def test_log_record_is_delivered_or_counted(
    *,
    receiver: Receiver,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    arrives: bool,
) -> None:
    """A record that cannot be formatted is dropped as ``encoding``; whatever can be sent is."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    pipeline = start(logging_level="INFO")
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, LogHandler))
    handler.handle(logging.makeLogRecord({"name": "mine", "levelno": logging.INFO, "pathname": "file", **fields}))
    assert arrives == pipeline.force_flush(DEADLINE)
    account = pipeline.account()["logs"]
    assert (1, int(arrives)) == (account.recorded, account.delivered)
    assert int(arrives) == len(receiver.records())


@pytest.mark.parametrize("timeout", [math.inf, 1e12, math.nan, 0, -1, -math.inf])
def test_any_timeout_keeps_what_is_queued(start: Start, timeout: float) -> None:
    """A shutdown without time, or with any amount of it, still writes to disk; nothing raises."""
    pipeline = start(endpoint=None)
    for _ in range(10):
        monitel.emit("event")
    assert pipeline.force_flush(timeout) in {True, False}
    monitel.emit("event")
    assert pipeline.shutdown(timeout), pipeline.account()
    assert 11 == pipeline.account()["logs"].on_disk


def test_shutdown_of_a_silent_pipeline_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that never began is over for every thread."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    pipeline = monitel_otlp.configure()
    assert pipeline.shutdown(DEADLINE)
    run_together(partial(pipeline.shutdown, 10 * DEADLINE))
    assert pipeline.shutdown(DEADLINE)


@pytest.mark.parametrize("kind", ["raw_events", "raw_ranges", "raw_records", "raw_spans", "raw_windows"])
def test_exception_in_one_raw_form_does_not_cost_the_others(
    *, start: Start, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What cannot be written is counted as ``encoding``; every other kind goes to disk."""
    pipeline = start(endpoint=None, spans=True, logging_level="INFO")
    assert pipeline.engine is not None

    def broken(*_arguments: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(monitel_otlp.engine, kind, broken)
    monkeypatch.setattr(pipeline.engine.encoder, "finish", lambda *_arguments: False)
    with pipeline.engine.encoder._encoding:  # nothing is encoded
        handed_over = emit_items(pipeline, 120, 3)
        assert not pipeline.shutdown()
    accounts = pipeline.account()
    lost = {signal: dict(each.dropped) for signal, each in accounts.items() if each.dropped}
    assert 1 == len(lost)
    assert [{"encoding"}] == [set(reasons) for reasons in lost.values()]
    assert handed_over.total() == sum(each.on_disk + each.lost for each in accounts.values())
    assert 3 == sum(each.on_disk > 0 for each in accounts.values()) + (kind == "raw_windows")


def test_instruments_that_cannot_be_collected_stop_nothing_else(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the SDK raises in each collection, windows, events and spans are delivered all the same."""
    pipeline = start(spans=True, logging_level="INFO")
    assert pipeline.engine is not None
    assert pipeline.engine.providers is not None

    def broken() -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(pipeline.engine.providers, "collect", broken)
    handed_over = emit_items(pipeline, 60, 5)
    assert pipeline.force_flush(DEADLINE)
    assert pipeline.shutdown()
    assert handed_over == {signal: each.delivered for signal, each in pipeline.account().items()}
    assert 1 == len([each for each in caplog.records if "cannot be collected" in each.getMessage()])


@pytest.mark.parametrize("phase", ["encoder.finish", "_prepare_raw", "delivery.finish"])
def test_exception_in_a_phase_of_the_exit_does_not_skip_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """What a phase leaves behind is on disk or counted, and requests in memory are written in any case."""
    pipeline = start(endpoint="http://127.0.0.1:9")
    assert pipeline.engine is not None
    for _ in range(10):
        monitel.emit("event")
    assert not pipeline.force_flush(0.3)

    def broken(*_arguments: Any) -> Any:
        raise RuntimeError("injected")

    target, _, name = f"engine.{phase}".rpartition(".")
    owner = pipeline
    for part in target.split("."):
        owner = getattr(owner, part)
    monkeypatch.setattr(owner, name, broken)
    assert not pipeline.shutdown()
    assert 10 == pipeline.account()["logs"].on_disk
