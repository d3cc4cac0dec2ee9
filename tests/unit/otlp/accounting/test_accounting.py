"""Accounts: which items count, counters that move together, and the numbers that are printed and sent."""

from __future__ import annotations

import re
from array import array
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.inbox import DEADLINE, Answer, Request, points_of
from tests.support.producers import emit_items, make_small
from tests.support.receiver import partial_success

import monitel
from monitel import COUNT, MAX, MEAN, MIN, SUM, VALUE, Stat
from monitel.bounded_queue import BoundedQueue
from monitel.profiler import record_function
from monitel_otlp.accounting import Accounting, Stage
from monitel_otlp.messages.request import SIGNALS, FrozenRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel_otlp import Account

MOVES = st.tuples(
    st.sampled_from(["put", "take", "record", "move", "deliver", "drop", "lose", "close"]),
    st.sampled_from(SIGNALS),
    st.integers(0, 5),
)


def total(account: Account) -> int:
    """Return the sum of delivered, stored, folded, lost and waiting items."""
    return account.delivered + account.on_disk + account.folded + account.lost + account.waiting


def fill(queue: BoundedQueue[int], items: int) -> None:
    """Put this number of items into a queue."""
    for number in range(items):
        queue.put(number)


@given(st.lists(MOVES, max_size=60))
def test_accounts_add_up_after_any_sequence_of_moves(moves: list[tuple[str, str, int]]) -> None:
    """Each account adds up after each step, no number is negative, and nothing changes after the close."""
    accounting = Accounting()
    queues: dict[str, BoundedQueue[int]] = {signal: BoundedQueue(4, 10_000) for signal in SIGNALS}
    for signal, queue in queues.items():
        accounting.add_queue(signal, queue)
    final = None
    for move, signal, items in moves:
        encoding = min(items, accounting.held(signal, Stage.ENCODING))
        memory = min(items, accounting.held(signal, Stage.MEMORY))
        steps: dict[str, Callable[[], object]] = {
            "put": partial(fill, queues[signal], items),
            "take": partial(accounting.take, signal, queues[signal].take, items),
            "record": partial(accounting.record, signal, items),
            "move": partial(accounting.move, signal, Stage.ENCODING, Stage.MEMORY, encoding),
            "deliver": partial(accounting.deliver, signal, Stage.MEMORY, memory),
            "drop": partial(accounting.drop, signal, Stage.MEMORY, "reason", memory),
            "lose": partial(accounting.lose, signal, "worker", items),
            "close": partial(accounting.close, encoded=False),
        }
        steps[move]()
        if accounting.closed:
            final = final or accounting.account()
        for account in accounting.account().values():
            assert account.recorded == total(account)
            assert min(account.recorded, account.delivered, account.waiting, *account.dropped.values(), 0) == 0
            assert 0 not in account.dropped.values()
    if final is not None:
        assert final == accounting.account()
        assert {0} == {account.waiting for account in final.values()}


def test_items_in_motion_are_in_every_account() -> None:
    """A reader waits while items move from a queue to the encoder, and counts them once."""
    accounting = Accounting()
    queue: BoundedQueue[int] = BoundedQueue(10, 10_000)
    accounting.add_queue("logs", queue)
    fill(queue, 3)
    seen: list[Account] = []
    reader = Thread(target=lambda: seen.append(accounting.account()["logs"]), daemon=True)

    def take(limit: int) -> list[int]:
        taken = queue.take(limit)
        reader.start()
        reader.join(0.05)
        return taken

    assert [0, 1, 2] == accounting.take("logs", take, 5)
    reader.join(DEADLINE)
    assert [(3, 3)] == [(account.recorded, account.waiting) for account in seen]


def test_items_that_vanish_are_unaccounted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Items that are still counted as encoding after everything was encoded and sent have vanished through a bug."""
    accounting = Accounting()
    accounting.record("logs", 3)
    accounting.record("traces", 2, Stage.APPLICATION)
    accounting.close(encoded=True)
    accounts = accounting.account()
    assert ({"unaccounted": 3}, {"exit": 2}) == (dict(accounts["logs"].dropped), dict(accounts["traces"].dropped))
    assert 1 == len([each for each in caplog.records if "bug in monitel" in each.getMessage()])


def test_account_does_not_change_once_it_was_read(start: Start) -> None:
    """A snapshot and its reasons are immutable; later items change only the next snapshot."""
    pipeline = start()
    before = pipeline.account()
    monitel.emit("event")
    assert (0, 1) == (before["logs"].recorded, pipeline.account()["logs"].recorded)
    with pytest.raises(TypeError):
        before["logs"].dropped["reason"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        before["logs"].recorded = 1  # type: ignore[misc]
    assert set(SIGNALS) == set(before)
    before.clear()
    assert set(SIGNALS) == set(pipeline.account())


@pytest.mark.parametrize("sampler", ["every", "never"])
def test_ranges_that_are_not_sampled_are_not_recorded(
    start: Start, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    """A range that ``span_steps`` or the sampler excludes is not an item."""
    if sampler == "never":
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    pipeline = start(spans=True, span_steps=2)
    for step in range(4):
        monitel.set_step(step)
        with record_function("range"):
            pass
    pipeline.force_flush(DEADLINE)
    assert (0 if sampler == "never" else 2) == pipeline.account()["traces"].recorded


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_ranges_beyond_the_budget_wait_until_their_fold_is_complete(
    receiver: Receiver, start: Start, budget: int
) -> None:
    """Ranges are recorded when they end and count as folded when the step is over; the fold is not an item."""
    pipeline = start(spans=True, span_budget=budget)
    monitel.set_step(1)
    for _ in range(9):
        with record_function("range"):
            pass
    assert pipeline.force_flush(DEADLINE)
    account = pipeline.account()["traces"]
    assert (9, budget, 0, 9 - budget) == (account.recorded, account.delivered, account.folded, account.waiting)
    monitel.set_step(2)
    pipeline.force_flush(DEADLINE)
    pipeline.force_flush(DEADLINE)
    account = pipeline.account()["traces"]
    assert (9, budget, 9 - budget, 0) == (account.recorded, account.delivered, account.folded, account.waiting)
    assert (1, budget + 1) == (account.synthetic, len(receiver.spans()))
    assert pipeline.shutdown()


def test_spans_of_steps_are_not_items(receiver: Receiver, start: Start) -> None:
    """The spans that connect the ranges of a step count as ``synthetic``."""
    pipeline = start(step_traces=True)
    for step in range(3):
        monitel.set_step(step)
        with record_function("range"):
            pass
    assert pipeline.shutdown()
    account = pipeline.account()["traces"]
    assert (3, 3, 6, 9) == (account.recorded, account.delivered, account.synthetic, len(receiver.spans()))


def test_each_pipeline_has_an_account(receiver: Receiver, start: Start, tmp_path: Path) -> None:
    """The account of an ended pipeline stays readable and does not change; leftovers of earlier runs are in neither."""
    with start(endpoint=None) as offline:
        monitel.emit("older")
    first = start()
    monitel.emit("first")
    second = start()
    monitel.emit("second")
    assert second.shutdown()
    accounts = [each.account()["logs"] for each in (offline, first, second)]
    assert [(1, 0, 1), (1, 1, 0), (1, 1, 0)] == [(each.recorded, each.delivered, each.on_disk) for each in accounts]
    assert ["first", "second"] == receiver.record_names()


def test_merged_windows_are_all_counted_as_delivered(
    *, receiver: Receiver, start: Start, clock: monitel.testing.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of one series less than 1 ms apart become one point, and each of them is counted."""
    pipeline = start()
    assert pipeline.engine is not None
    put, requests = pipeline.engine.delivery.put, list[FrozenRequest]()

    def keep(request: FrozenRequest) -> None:
        requests.append(request)
        put(request)

    monkeypatch.setattr(pipeline.engine.delivery, "put", keep)
    stat = Stat("loss", [COUNT, MEAN], 60.0)
    for _ in range(200):
        stat.add(1)
        stat.flush()
        clock.advance(0.0001)
    assert pipeline.force_flush(DEADLINE)
    account = pipeline.account()["metrics"]
    assert 200 == account.delivered == account.recorded
    assert len(receiver.values("loss.mean")) < account.delivered
    assert 200 == receiver.values("loss.count")[-1]
    weighted = [request for request in requests if request.items]
    assert [each.items for each in weighted] == [sum(array("I", each.weights)) for each in weighted]


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 20])
def test_split_windows_are_counted_with_their_last_point(receiver: Receiver, start: Start, largest: int) -> None:
    """If a backend accepts only small requests, each window is counted as delivered once."""

    def too_large(request: Request) -> Answer | None:
        return Answer(413) if len(list(points_of(request.message))) > largest else None

    receiver.rule(lambda request: too_large(request) if request.signal == "metrics" else None)
    pipeline = start()
    for number in range(10):
        stat = Stat(f"loss.{number % 3}", [COUNT, SUM, MEAN, VALUE][: 1 + number % 4], 60.0)
        stat.add(number)
        stat.flush()
    assert pipeline.force_flush(DEADLINE)
    account = pipeline.account()["metrics"]
    assert (10, 10) == (account.recorded, account.delivered)


@pytest.mark.parametrize(
    ("aggregations", "windows", "rejected", "expected"),
    [
        ([MEAN], 4, 1, 1),
        ([MEAN], 4, 4, 4),
        ([MEAN], 4, 3, 3),
        ([MIN, MAX, MEAN], 4, 1, 1),
        ([MIN, MAX, MEAN], 4, 4, 2),
        ([MIN, MAX, MEAN], 4, 12, 4),
        ([MIN, MAX, MEAN], 4, 10**6, 4),
    ],
)
def test_partial_success_in_points_is_rounded_up_to_windows(  # noqa: PLR0917
    receiver: Receiver,
    start: Start,
    aggregations: list[monitel.Aggregation],
    windows: int,
    rejected: int,
    expected: int,
) -> None:
    """A window with a rejected point counts as dropped. Gauges have no start points."""
    pipeline = start()
    with monitel.testing.ManualClock():
        for number in range(windows):
            stat = Stat(f"loss.{number}", aggregations, 60.0)
            stat.add(1)
            stat.flush()
    receiver.answer("metrics", partial_success("metrics", rejected, "left out"))
    assert not pipeline.force_flush(DEADLINE)
    account = pipeline.account()["metrics"]
    assert (windows - expected, {"partial_success": expected}) == (account.delivered, dict(account.dropped))


def self_metric(receiver: Receiver, metric: str) -> dict[tuple[str, ...], float]:
    """Return the last values of a metric that the pipeline reports about itself, by reason and signal."""
    names = ("error.type", "signal")
    points = receiver.points(metric)
    return {tuple(each.attributes[name] for name in names if name in each.attributes): each.value for each in points}


def test_self_metrics_and_last_line_match_the_account(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Delivered and dropped items by signal and reason are the same in the account, in metrics and in the last line."""
    make_small(monkeypatch, queue=20)
    pipeline = start(spans=True, logging_level="INFO")
    receiver.answer("logs", partial_success("logs", 3, "left out"), Answer(400), Answer(400), Answer(400))
    receiver.answer("traces", Answer(400), Answer(400), Answer(400))
    emit_items(pipeline, 300, 1)
    pipeline.force_flush(DEADLINE)
    pipeline.force_flush(DEADLINE)
    accounts = pipeline.account()
    dropped = {(reason, signal): items for signal, each in accounts.items() for reason, items in each.dropped.items()}
    assert {"queue_full", "rejected", "partial_success"} == {reason for reason, _ in dropped}
    assert dropped == self_metric(receiver, "monitel.exporter.item.dropped")
    delivered = {(signal,): each.delivered for signal, each in accounts.items() if each.delivered}
    assert delivered == self_metric(receiver, "monitel.exporter.item.exported")
    pipeline.shutdown()
    assert accounts == pipeline.account()
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("monitel: "))
    exported = re.search(r"exported (\d+) windows and numbers, (\d+) events(?:, (\d+) spans)?", line)
    assert exported is not None
    assert [accounts[signal].delivered for signal in SIGNALS] == [int(number or 0) for number in exported.groups()]
    reasons = re.search(r"dropped (\d+) \((.*?)\)", line)
    assert reasons is not None
    assert pipeline.dropped == {name: int(items) for name, items in re.findall(r"(\w+) (\d+)", reasons[2])}
    assert sum(dropped.values()) == int(reasons[1])
