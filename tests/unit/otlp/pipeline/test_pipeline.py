"""A pipeline with a healthy backend: everything arrives once, with its time."""

import gc
from threading import Thread
from typing import Any

from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import Start
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, SUM, Stat


def test_flush_delivers_items_recorded_during_another_flush(receiver: Receiver, start: Start) -> None:
    """An export that is in progress does not include later items, so the flush waits for the next one."""
    pipeline = start()
    receiver.answer("metrics", Answer(delay=0.3))
    flusher = Thread(target=pipeline.force_flush, args=[DEADLINE])
    flusher.start()
    receiver.wait_until(lambda: receiver.requests)
    monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert ["event"] == receiver.record_names()
    flusher.join(DEADLINE)


def test_garbage_collected_stats_lose_nothing(receiver: Receiver, start: Start) -> None:
    """Stats in reference cycles log their last windows from the garbage collector, in any thread and at any line."""
    pipeline = start(export_interval=0.01)

    def work() -> None:
        for _ in range(300):
            cycle: list[Any] = [Stat("loss", [COUNT, SUM], 60.0)]
            cycle[0].add(1)
            cycle.append(cycle)
            monitel.emit("event")

    threads = [Thread(target=work, daemon=True) for _ in range(3)]
    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "deadlock"
    finally:
        gc.set_threshold(*before)

    def is_complete() -> bool:
        gc.collect()  # does nothing while another thread collects, so that no window may have arrived yet
        assert pipeline.force_flush(DEADLINE)
        return [900] == receiver.values("loss.count")[-1:] and [900.0] == receiver.values("loss.sum")[-1:]

    wait_until(is_complete)
    assert 900 == len(receiver.records("event"))
