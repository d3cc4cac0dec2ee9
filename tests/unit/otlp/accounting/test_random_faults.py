"""Accounts add up with concurrent producers, a backend that answers at random, and faults in every part."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.pipelines import check_accounts
from tests.support.producers import (
    ANSWERED,
    ANY,
    answer_at_random,
    checked_continuously,
    emit_items,
    make_small,
    run_together,
)
from tests.support.spools import folders, last_line

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


def in_spool(root: Path) -> Counter[str]:
    """Return the items in the spools below a folder, by signal."""
    found: Counter[str] = Counter()
    for folder in folders(root):
        for request in Spool(folder).peek():
            found[request.signal] += request.items
    return found


def recorded(accounts: dict[str, Account]) -> dict[str, int]:
    """Return the number of recorded items of each signal."""
    return {signal: account.recorded for signal, account in accounts.items()}


def nothing_waits(pipeline: Pipeline) -> bool:
    """Return True if no item is waiting."""
    return not any(account.waiting for account in pipeline.account().values())


@pytest.mark.parametrize("seed", range(3))
def test_delivered_items_are_those_that_arrived(
    *, receiver: Receiver, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """If the backend answers each request, the items that it kept count as delivered, and the others have a reason."""
    make_small(monkeypatch)
    pipeline = start(export_interval=0.02, spans=True, logging_level="INFO")
    backend = answer_at_random(receiver, seed, ANSWERED)
    handed_over = produce(pipeline, seed)
    receiver.forget_rules()
    assert not pipeline.force_flush(DEADLINE)  # False: something was rejected
    assert nothing_waits(pipeline)
    assert not pipeline.shutdown()
    accounts = pipeline.account()
    assert handed_over == Counter(recorded(accounts))
    assert {"rejected", "partial_success"} >= {reason for each in accounts.values() for reason in each.dropped}
    left_out = {signal: accounts[signal].dropped.get("partial_success", 0) for signal in ("logs", "traces")}
    found = arrived(receiver)
    assert left_out == {signal: backend.left_out[signal] for signal in left_out}
    assert left_out == {signal: found[signal] - accounts[signal].delivered for signal in left_out}
    lost = accounts["metrics"].dropped.get("partial_success", 0)
    assert found["metrics"] == accounts["metrics"].delivered + lost
    assert Counter() == in_spool(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_accounts_add_up_with_any_fault(
    *, receiver: Receiver, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With small queues, a small spool, removed segments and lost answers, each item is counted once."""
    make_small(monkeypatch, queue=40, memory_bytes=6_000, spool_bytes=12_000)
    choose = random.Random(seed)
    pipeline = start(export_interval=0.02, spans=True, logging_level="INFO")
    answer_at_random(receiver, seed, [*ANY, *["503"] * 8])
    ended = Event()

    def remove_segments() -> None:
        while not ended.wait(0.01):
            for path in tmp_path.rglob("*.spool"):
                if choose.random() < 0.2:
                    path.unlink(missing_ok=True)

    def emit() -> None:
        try:
            handed_over.update(produce(pipeline, seed))
        finally:
            ended.set()

    handed_over: Counter[str] = Counter()
    run_together(emit, remove_segments)
    pipeline.shutdown()
    accounts = pipeline.account()
    assert handed_over == Counter(recorded(accounts))
    found = arrived(receiver)
    assert {} == {signal: each for signal, each in accounts.items() if each.delivered > found[signal]}
    assert Counter({signal: each.on_disk for signal, each in accounts.items() if each.on_disk}) == in_spool(tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_offline_items_are_on_disk_or_have_a_reason(
    *, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Without an endpoint the items in the spool are those that the account reports as on disk."""
    make_small(monkeypatch)
    pipeline = start(endpoint=None, export_interval=0.02, spans=True, logging_level="INFO")
    handed_over = produce(pipeline, seed)
    assert pipeline.shutdown(), pipeline.account()
    accounts = pipeline.account()
    assert handed_over == Counter({signal: each.on_disk for signal, each in accounts.items()}) == in_spool(tmp_path)
    assert handed_over.total() == last_line(capsys.readouterr().err).spooled


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


ERRORS = [OSError(5, "injected"), SpoolError("injected"), RuntimeError("injected"), MemoryError("injected")]


@pytest.mark.parametrize("answers", [["503"], ["200"]], ids=["backend away", "backend there"])
@pytest.mark.parametrize("name", FAULTS)
def test_exceptions_in_any_part_lose_nothing_uncounted(
    *,
    receiver: Receiver,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    answers: list[str],
) -> None:
    """Public calls do not raise, and each item is counted once."""
    make_small(monkeypatch)
    seed = len(name)
    choose = random.Random(seed)
    pipeline = start(export_interval=0.02, spans=True, logging_level="INFO")
    answer_at_random(receiver, seed, answers)

    def faulty(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if choose.random() < 0.3:
            raise choose.choice(ERRORS)
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
