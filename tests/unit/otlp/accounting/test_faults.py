"""Accounts with records that cannot be formatted, unusual timeouts, and instruments that cannot be collected."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.producers import emit_items, run_together

import monitel
import monitel_otlp
from monitel_otlp.log_handler import LogHandler

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver


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
    """A record that cannot be formatted is dropped with the reason ``encoding``; all others are sent."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    pipeline = start(logging_level="INFO")
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, LogHandler))
    handler.handle(logging.makeLogRecord({"name": "mine", "levelno": logging.INFO, "pathname": "file", **fields}))
    assert arrives == pipeline.force_flush(DEADLINE)
    account = pipeline.account()["logs"]
    assert (1, int(arrives)) == (account.recorded, account.delivered)
    assert int(arrives) == len(receiver.records())


@pytest.mark.parametrize("timeout", [math.inf, 1e12, math.nan, 0, -1, -math.inf])
def test_shutdown_with_any_timeout_keeps_queued_items(start: Start, timeout: float) -> None:
    """A shutdown writes to disk even if its timeout is zero, negative or not a number."""
    pipeline = start(endpoint=None)
    for _ in range(10):
        monitel.emit("event")
    assert pipeline.force_flush(timeout) in {True, False}
    monitel.emit("event")
    assert pipeline.shutdown(timeout), pipeline.account()
    assert 11 == pipeline.account()["logs"].on_disk


def test_shutdown_of_a_disabled_pipeline_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that never started has ended for every thread."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    pipeline = monitel_otlp.configure()
    assert pipeline.shutdown(DEADLINE)
    run_together(partial(pipeline.shutdown, 10 * DEADLINE))
    assert pipeline.shutdown(DEADLINE)


def test_instruments_that_cannot_be_collected_stop_nothing_else(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the SDK raises in each collection, windows, events and spans are still delivered."""
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
