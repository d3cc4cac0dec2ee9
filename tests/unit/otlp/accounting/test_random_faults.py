"""Accounts add up with concurrent producers, a backend that answers at random, and faults in every part."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.pipelines import check_accounts
from tests.support.producers import (
    answer_at_random,
    checked_continuously,
    emit_items,
    make_small,
    run_together,
)

import monitel_otlp.engine.exit_phases
import monitel_otlp.sdk.record_requests
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.metrics import mapping
from monitel_otlp.spool.spool import Spool, SpoolError
from monitel_otlp.traces.mapping import RangeMapping
from monitel_otlp.transport.http import HttpTransport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel_otlp import Account, Pipeline

PRODUCERS, ITEMS = 4, 240


@pytest.fixture(autouse=True)
def delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the number of samples in each window, so that windows can be counted (each has one sample)."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")


def produce(pipeline: Pipeline, seed: int) -> Counter[str]:
    """Record items in several threads while the accounts are checked, and return their number by signal."""
    handed_over: list[Counter[str]] = []

    def emit(number: int) -> None:
        handed_over.append(emit_items(pipeline, ITEMS, PRODUCERS * seed + number))

    with checked_continuously(pipeline):
        run_together(*(partial(emit, number) for number in range(PRODUCERS)))
        pipeline.force_flush(0.3)
    return sum(handed_over, Counter())


def arrived(receiver: Receiver) -> dict[str, int]:
    """Return the number of distinct windows, log records and spans that arrived."""
    windows: Counter[tuple[str, int]] = Counter()
    for point in receiver.all_points():
        if point.metric.startswith("loss.") and point.metric.endswith(".count"):
            windows[point.metric, point.time_ns] = point.proto.as_int
    records = {(record.name, record.body, record.attributes.get("id")) for record in receiver.records()}
    spans = {span.span_id for span in receiver.spans()}
    return {"metrics": sum(windows.values()), "logs": len(records), "traces": len(spans)}


def recorded(accounts: dict[str, Account]) -> dict[str, int]:
    """Return the number of recorded items of each signal."""
    return {signal: account.recorded for signal, account in accounts.items()}


FAULTS: dict[str, Callable[[Pipeline], list[tuple[Any, str]]]] = {}


def fault(name: str) -> Callable[[Callable[[Pipeline], list[tuple[Any, str]]]], None]:
    """Register a function that returns the objects and attributes at which a fault is injected."""

    def register(places: Callable[[Pipeline], list[tuple[Any, str]]]) -> None:
        FAULTS[name] = places

    return register


@fault("transport")
def _transport(_pipeline: Pipeline) -> list[tuple[Any, str]]:
    return [(HttpTransport, "send")]


@fault("spool")
def _spool(_pipeline: Pipeline) -> list[tuple[Any, str]]:
    return [(Spool, name) for name in ("append", "append_raw", "oldest", "remove_oldest", "set_aside", "close")]


@fault("encoders")
def _encoders(pipeline: Pipeline) -> list[tuple[Any, str]]:
    assert pipeline.engine is not None
    engine = pipeline.engine
    return [
        (engine.metric_requests.mapping, "add"),
        (EventMapping, "plain"),
        (RangeMapping, "plain"),
        (mapping, "plain_window"),
    ]


@fault("sdk encoders")
def _sdk_encoders(_pipeline: Pipeline) -> list[tuple[Any, str]]:
    return [(monitel_otlp.sdk.record_requests.RecordRequests, "_append")]


@fault("raw forms")
def _raw_forms(_pipeline: Pipeline) -> list[tuple[Any, str]]:
    kinds = ("raw_events", "raw_ranges", "raw_records", "raw_spans", "raw_windows")
    return [(monitel_otlp.engine.exit_phases, kind) for kind in kinds]


@fault("rounds")
def _rounds(pipeline: Pipeline) -> list[tuple[Any, str]]:
    assert pipeline.engine is not None
    assert pipeline.engine.providers is not None
    return [(pipeline.engine.providers, "collect")]


ERRORS = [partial(OSError, 5), SpoolError, RuntimeError, MemoryError]


@pytest.mark.parametrize("name", FAULTS)
def test_exceptions_in_any_part_lose_nothing_uncounted(
    *,
    receiver: Receiver,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """Public calls do not raise, and each item is counted once."""
    make_small(monkeypatch)
    seed = len(name)
    choose = random.Random(seed)
    pipeline = start(export_interval=0.02, spans=True, logging_level="INFO")
    answer_at_random(receiver, seed, ["503", "200"])

    def faulty(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if choose.random() < 0.3:
            raise choose.choice(ERRORS)("injected")
        return original(*arguments, **options)

    for target, attribute in FAULTS[name](pipeline):
        original = getattr(target, attribute)
        if isinstance(target, type):
            monkeypatch.setattr(target, attribute, lambda *a, _o=original, **o: faulty(_o, *a, **o))
        else:
            monkeypatch.setattr(target, attribute, partial(faulty, original))
    handed_over = produce(pipeline, seed)
    emit_items(pipeline, 20, seed)  # for the shutdown
    pipeline.shutdown()
    monkeypatch.undo()
    accounts = pipeline.account()
    check_accounts(pipeline)
    assert {} == {signal: each for signal, each in accounts.items() if each.recorded < handed_over[signal]}
    found = arrived(receiver)
    assert {} == {signal: each for signal, each in accounts.items() if each.delivered > found[signal]}
    assert [] == [record.getMessage() for record in caplog.records if "bug in monitel" in record.getMessage()]
    caplog.clear()  # the tracebacks of its records keep Stats
