"""Producers that are faster than the encoder: metrics are sent, drops are counted at once, memory stays bounded."""

import resource
from itertools import count, pairwise

import pytest
from tests.support.checks import in_time, limit
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import Start, check_accounts, logs
from tests.support.producers import checked_continuously, repeating
from tests.support.receiver import Receiver

import monitel
from monitel.blackbox import box, journal

INTERVAL = 0.25
LATE = 1.5  # seconds between two metrics requests, with a margin for other tests on the same machine
BURST = 12  # duration of a burst in metrics requests


def wait_for_metrics(receiver: Receiver, requests: int) -> list[float]:
    def found() -> list[float]:
        return [each.arrived for each in receiver.of("metrics") if b"alive" in each.body]

    known = len(found())
    receiver.wait_until(lambda: len(found()) >= known + requests)
    return found()[known:]


@pytest.mark.parametrize("backend", ["healthy", "away"])
def test_metrics_are_sent_in_every_interval_of_a_burst(
    *, receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Drops are counted at once, and the account adds up whenever it is read."""
    monkeypatch.setattr(journal, "MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(box, "DISK_BYTES", 1 << 20)
    pipeline = start(export_interval=INTERVAL)
    monitel.counter("alive").add(1)
    if backend == "away":
        receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    numbers = count()

    def emit_many() -> None:
        for _ in range(100):
            monitel.emit("event", number=next(numbers))

    with repeating(emit_many), checked_continuously(pipeline) as checks:
        arrivals = wait_for_metrics(receiver, BURST)
        seen = [logs(pipeline)]
        wait_for_metrics(receiver, 2)
        seen.append(logs(pipeline))
    assert max(later - earlier for earlier, later in pairwise(arrivals)) < limit(LATE)
    assert seen[0].recorded < seen[1].recorded
    assert len(checks) > 100
    account = logs(pipeline)
    assert next(numbers) == account.recorded
    if account.dropped:
        assert {"queue_full", "spool_full"} >= set(account.dropped)
        assert seen[1].lost
    if backend == "healthy":
        pipeline.force_flush(DEADLINE)
        after = logs(pipeline)
        assert after.recorded == after.delivered + after.lost


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  a file of the kernel
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("outage", [False, True])
def test_memory_is_bounded_by_bytes(receiver: Receiver, start: Start, *, outage: bool) -> None:
    """The box and the memory hold at most 80 MiB of 2 GB of events, the disk 1 GiB; the rest is dropped and counted."""
    if outage:
        receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    pipeline = start(export_interval=INTERVAL)
    before = resident_bytes()
    most = 0
    for number in range(20_000):
        monitel.emit("large", text=str(number) + "x" * 100_000)
        if number % 100 == 0:
            most = max(most, resident_bytes())
            receiver.requests[:] = [each for each in receiver.requests if each.signal != "logs"]
    assert most - before < 700 << 20
    account = logs(pipeline)
    assert 20_000 == account.recorded
    assert account.lost
    check_accounts(pipeline)
    with in_time(3.5):  # 80 MiB are written; with a margin for other tests on the same machine
        pipeline.shutdown()
