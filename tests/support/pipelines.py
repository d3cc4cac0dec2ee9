"""Pipelines of the tests: how they are started, how they are kept busy, and whether their accounts add up."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.support.inbox import DEADLINE

import monitel
from monitel.blackbox.journal import DISK, Journal
from monitel_otlp import Account, Pipeline

Start = Callable[..., Pipeline]  # type of the fixture ``start``


def check_accounts(pipeline: Pipeline) -> None:
    for name, account in pipeline.account().items():
        found = account.delivered + account.on_disk + account.folded + account.lost + account.waiting
        assert account.recorded == found, (name, account)
        numbers = [account.delivered, account.on_disk, account.folded, account.waiting, *account.dropped.values()]
        assert min(numbers) >= 0, (name, account)
        assert "unaccounted" not in account.dropped, (name, account)
    if (engine := pipeline.engine) is not None and pipeline.is_recording:
        for journal in engine.box.journals.values():
            check_journal(journal)


def check_journal(journal: Journal) -> None:
    """Check that the items that wait are there: an account has them as the rest of all others."""
    with journal.lock:
        account = journal.account()
        there = sum(items for each, items in journal.unsettled() if each.where != DISK)
    assert account.waiting == (there if account.recorded else 0), (journal, account, there)


@contextmanager
def busy_encoder(pipeline: Pipeline) -> Iterator[None]:
    """Let nothing be encoded and sent during the block, as on a machine without CPU time for the senders."""
    assert pipeline.engine is not None
    with ExitStack() as held:
        for sender in pipeline.engine._senders.values():
            held.enter_context(sender.sending)
        yield


@contextmanager
def delivered_by(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Yield a pipeline, which must deliver everything that the block records by the end of the block."""
    yield pipeline
    assert pipeline.force_flush(DEADLINE)


def logs(pipeline: Pipeline) -> Account:
    return pipeline.account()["logs"]


def emit(pipeline: Pipeline, *names: str, seconds: float = DEADLINE) -> bool:
    """Emit events, each in its own request, and return True if the last flush has delivered everything in time."""
    outcome = True
    for name in names:
        monitel.emit(name)
        outcome = pipeline.force_flush(seconds)
    return outcome
