"""Accounts: which items count, counters that move together, and the numbers that are printed and sent."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from tests.support.inbox import DEADLINE

from monitel.bounded_queue import BoundedQueue
from monitel_otlp.accounting import Accounting, Stage

if TYPE_CHECKING:
    import pytest

    from monitel_otlp import Account


def fill(queue: BoundedQueue[int], items: int) -> None:
    """Put this number of items into a queue."""
    for number in range(items):
        queue.put(number)


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
