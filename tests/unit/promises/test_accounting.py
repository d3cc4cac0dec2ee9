"""``recorded = delivered + on_disk + folded + sum(dropped) + waiting``, at every moment, for each signal."""

import logging
import re
from collections import Counter
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE, TEMPORALITY, Answer, Request, points_of
from tests.support.pipelines import Start, busy_encoder, delivered_by
from tests.support.producers import (
    ANSWERED,
    ANY,
    answer_at_random,
    checked_continuously,
    emit_items,
    make_small,
    record_ranges,
    record_window,
    run_together,
)
from tests.support.receiver import Receiver, partial_success
from tests.support.spools import Content, cat

import monitel
from monitel import COUNT, MAX, MEAN, MIN, VALUE, Stat
from monitel_otlp import Account, Pipeline

SIGNALS = ("metrics", "logs", "traces")
PRODUCERS, ITEMS = 4, 200
FOLDED = "monitel.folded"  # a span that is not an item, but holds the number of those that have none


def numbers(account: Account) -> tuple[int, ...]:
    """Return recorded, delivered, stored, folded, lost and waiting items."""
    return account.recorded, account.delivered, account.on_disk, account.folded, account.lost, account.waiting


def arrived(receiver: Receiver) -> dict[str, int]:
    """Return the number of distinct windows (of one sample each, as deltas), log records and spans that arrived."""
    windows = {
        (point.metric, point.time_ns): point.value
        for point in receiver.all_points()
        if point.metric.startswith("loss.") and point.metric.endswith(".count")
    }
    records = {(each.name, each.body, each.attributes.get("id")) for each in receiver.records()}
    spans = {each.span_id for each in receiver.spans() if each.name != FOLDED}
    return {"metrics": int(sum(windows.values())), "logs": len(records), "traces": len(spans)}


def stored(content: Content) -> dict[str, int]:
    windows = [points_of(message) for signal, message in content.requests if signal == "metrics"]
    counts = [point for each in windows for point in each if re.fullmatch(r"loss\.\d+\.count", point.metric)]
    return {
        "metrics": int(sum(point.value for point in counts)),
        "logs": len(content.records),
        "traces": len([each for each in content.spans if each.name != FOLDED]),
    }


def produce(pipeline: Pipeline, seed: int) -> Counter[str]:
    """Record items in several threads while the account is read all the time, and return their number by signal."""
    recorded: list[Counter[str]] = []

    def emit(number: int) -> None:
        recorded.append(emit_items(ITEMS, PRODUCERS * seed + number))

    with checked_continuously(pipeline):
        run_together(*(partial(emit, number) for number in range(PRODUCERS)))
        pipeline.force_flush(0.1)
    return sum(recorded, Counter())


def test_each_kind_of_item_counts_once_in_its_signal(receiver: Receiver, start: Start) -> None:
    """Windows and numbers are metrics, events and records of ``logging`` are logs, ranges are traces."""
    with delivered_by(start(spans=True, logging_level="INFO")) as pipeline, busy_encoder(pipeline):
        for samples in ([1], [1], [1], []):  # a window without samples is not an item
            record_window("loss", [COUNT], *samples)
        open_window = Stat("open", [COUNT], 3600.0)
        open_window.add(1)
        monitel.log({"accuracy": 0.5, "bleu": 1.5})
        monitel.emit("first")
        logging.getLogger("mine").warning("text")
        record_ranges("range")
        waiting = [(each.recorded, each.waiting) for each in pipeline.account().values()]
    delivered = [(each.recorded, each.delivered) for each in pipeline.account().values()]
    assert [(5, 5), (3, 3), (1, 1)] == waiting == delivered
    assert (3, 1, 3) == (len(receiver.records()), len(receiver.spans()), receiver.values("loss.count")[-1])


def test_account_is_final_after_the_end(start: Start) -> None:
    pipeline = start()
    before = pipeline.account()
    monitel.emit("event")
    assert (0, 1) == (before["logs"].recorded, pipeline.account()["logs"].recorded)
    assert pipeline.shutdown(DEADLINE)
    final = pipeline.account()
    monitel.emit("late")
    pipeline.force_flush(1.0)
    assert final == pipeline.account()
    assert (1, 1, 0, 0, 0, 0) == numbers(final["logs"])


@pytest.mark.parametrize(("largest", "rejected"), [(3, 5), (7, 0)])
def test_window_is_never_split_over_requests(receiver: Receiver, start: Start, largest: int, rejected: int) -> None:
    """If a backend accepts only few points in a request, the windows that have more of them are rejected."""

    def too_large(request: Request) -> Answer | None:
        points = list(points_of(request.message)) if request.signal == "metrics" else []
        return Answer(413) if len(points) > largest else None

    receiver.rule(too_large)
    pipeline = start()
    for number in range(10):
        record_window(f"loss.{number % 3}", [COUNT, MIN, MEAN, VALUE][: 1 + number % 4], number)
    assert (not rejected) == pipeline.force_flush(DEADLINE)
    assert (10, 10 - rejected, 0, 0, rejected, 0) == numbers(pipeline.account()["metrics"])


@pytest.mark.parametrize(("rejected", "lost"), [(1, 1), (4, 2), (10**6, 4), (-3, 0)])
def test_partial_success_drops_as_many_windows_as_the_points_may_belong_to(
    receiver: Receiver, start: Start, rejected: int, lost: int
) -> None:
    """Four windows of three points: the number is rounded up, and never beyond what was sent."""
    pipeline = start()
    with monitel.testing.ManualClock():
        for number in range(4):
            record_window(f"loss.{number}", [MIN, MAX, MEAN], 1)
    receiver.answer("metrics", partial_success("metrics", rejected, "left out"))
    assert (lost == 0) == pipeline.force_flush(DEADLINE)
    account = pipeline.account()["metrics"]
    assert (4 - lost, {"partial_success": lost} if lost else {}) == (account.delivered, dict(account.dropped))


def test_account_metrics_and_last_line_are_the_same(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_small(monkeypatch, spool_bytes=9_000)
    pipeline = start(spans=True, logging_level="INFO")
    receiver.answer("logs", partial_success("logs", 3, "left out"))
    receiver.rule(lambda request: Answer(400) if b"poison" in request.body else None)
    with busy_encoder(pipeline):
        emit_items(300, 1)
        wait_until(lambda: not any(each.waiting for each in pipeline.account().values()), "an empty memory")
        for name in ("poison", "good"):
            monitel.emit(name)
            record_ranges(name)
    pipeline.force_flush(DEADLINE)
    pipeline.force_flush(DEADLINE)
    accounts = pipeline.account()

    def reported(metric: str) -> dict[tuple[Any, ...], Any]:
        found = [(each.attributes, each.value) for each in receiver.points(metric)]
        return {tuple(of[name] for name in ("error.type", "signal") if name in of): value for of, value in found}

    dropped = {(reason, signal): items for signal, each in accounts.items() for reason, items in each.dropped.items()}
    assert {"spool_full", "rejected", "partial_success"} == {reason for reason, _ in dropped}
    assert dropped == reported("monitel.exporter.item.dropped")
    delivered = {(signal,): each.delivered for signal, each in accounts.items()}
    assert delivered == reported("monitel.exporter.item.exported")
    pipeline.shutdown()
    assert accounts == pipeline.account()
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("monitel: "))
    windows, events, spans = (accounts[signal].delivered for signal in SIGNALS)
    assert f"exported {windows} windows and numbers, {events} events, {spans} spans; " in line
    reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(pipeline.dropped.items()))
    assert f"; dropped {sum(dropped.values())} ({reasons})" in line


def test_what_is_delivered_has_arrived(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads record while the backend answers at random: what it kept is delivered, the rest has a reason."""
    make_small(monkeypatch)
    monkeypatch.setenv(TEMPORALITY, "delta")
    pipeline = start(export_interval=0.02, spans=True, logging_level="INFO")
    backend = answer_at_random(receiver, 1, ANSWERED)
    recorded, seeds = Counter[str](), count(1)
    while not pipeline.dropped:  # a busy machine sends few requests in the first round
        recorded += produce(pipeline, next(seeds))
    receiver.forget_rules()
    pipeline.force_flush(DEADLINE)  # False only if something is rejected in here
    accounts = pipeline.account()
    assert recorded == Counter({signal: each.recorded for signal, each in accounts.items()})
    assert {0} == {each.waiting + each.on_disk for each in accounts.values()}
    reasons = {reason for each in accounts.values() for reason in each.dropped}
    assert set() < reasons <= {"rejected", "partial_success"}
    found = arrived(receiver)
    for signal in ("logs", "traces"):
        left_out = accounts[signal].dropped.get("partial_success", 0)
        assert backend.left_out[signal] == left_out == found[signal] - accounts[signal].delivered
    metrics = accounts["metrics"]
    assert found["metrics"] == metrics.delivered + metrics.dropped.get("partial_success", 0)
    assert not pipeline.shutdown()


@pytest.mark.invalid_output(
    "halves of a request that was stored without an answer, and is too large later, merge other windows; "
    "and the backend may reject the parent of a folded span",
    *("series.overlap", "series.duplicate", "span.parent"),
)
@pytest.mark.parametrize(
    "options", [{"black_box": False}, {"black_box": True}, {"spans": {"budget": 3}}, {"endpoint": None}], ids=str
)
def test_account_adds_up_with_small_limits_and_lost_answers(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """No item counts as delivered that has not arrived, and what counts as on disk is there."""
    make_small(monkeypatch, memory_bytes=6_000, spool_bytes=30_000)
    monkeypatch.setenv(TEMPORALITY, "delta")
    pipeline = start(**{"export_interval": 0.02, "spans": True, "logging_level": "INFO", **options})
    answer_at_random(receiver, 1, [*ANY, *["503"] * 8])
    recorded = Counter[str]()
    for step in range(2):
        monitel.set_step(step)
        recorded += produce(pipeline, step)
        assert recorded == Counter({signal: each.recorded for signal, each in pipeline.account().items()})
    pipeline.shutdown()
    accounts = pipeline.account()
    assert {} == {signal: each for signal, each in accounts.items() if each.delivered > arrived(receiver)[signal]}
    on_disk = {signal: each.on_disk for signal, each in accounts.items()}
    found = stored(cat("spool")) if any(on_disk.values()) else dict.fromkeys(SIGNALS, 0)
    assert on_disk == found
