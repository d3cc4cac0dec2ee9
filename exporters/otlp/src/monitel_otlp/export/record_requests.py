"""The requests in which the record of an ended process is delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.blackbox.disk import load
from monitel.blackbox.record import Item
from monitel_otlp.export.requests import next_of, outboxes
from monitel_otlp.export.totals import Definitions, Totals
from monitel_otlp.export.windows import Mapping, WindowPoints
from monitel_otlp.messages.request import LEVELS, record_lists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.blackbox.recovery import Dead
    from monitel_otlp.export.requests import Outbox

_BATCH = 500


def mapping_of(identity: dict[str, Any]) -> Mapping:
    """Return how the windows of a process become points."""
    return Mapping(*(identity.get("mapping") or ("cumulative", identity["created_ns"], "percentiles")))


def add_settled(dead: Dead) -> Totals:
    """Return the running totals of a process, with the items that it has settled after it has stored them.

    The items are encoded once more, because their series have begun with them, and their last points have times. To be
    called before such items are removed.
    """
    journal, mapping = dead.journals["metrics"], mapping_of(dead.names[0])
    if isinstance(journal.fold, Totals):
        return journal.fold
    definitions, stored = Definitions(dead.names.__getitem__), dead.totals[:2]
    totals = Totals(definitions, histograms=mapping.totals_of_histograms, after_ns=mapping.after_ns, stored=stored)
    points, batch = WindowPoints(mapping), list[Item]()

    def add() -> None:
        if batch:
            totals.pass_dropped(batch[0].number)
            draft = totals.draft()
            points.write(batch, draft, ResourceMetrics().scope_metrics.add().metrics)
            totals.commit(batch[-1].last, draft)
            batch.clear()

    for item in dead.items("metrics", totals.number + 1):
        if item.number > journal.settled:
            break
        if item.last > journal.settled:
            item, _ = item.split(journal.settled + 1 - item.number)  # noqa: PLW2901  the rest is sent
        if item.number <= totals.number < item.last:
            _, item = item.split(totals.number + 1 - item.number)  # noqa: PLW2901
        if len(batch) >= _BATCH or (batch and item.number > batch[-1].last + 1):
            add()
        batch.append(item)
    add()
    journal.fold = totals
    return totals


def outboxes_of(dead: Dead) -> dict[str, list[Outbox]]:
    """Return the outboxes of each signal, with encoders as those of the process."""
    identity = dead.names[0]
    return outboxes(dead.journals, identity.get("resource", b""), add_settled(dead), WindowPoints(mapping_of(identity)))


def peeked(dead: Dead) -> Iterator[tuple[str, bytes]]:
    """Yield signal and body of the requests that a record would be delivered in. Nothing on disk is changed."""
    for signal, each_of in outboxes_of(dead).items():
        while (outbox := next_of(each_of)) is not None or any(load(each.journal) for each in each_of):
            if outbox is not None and (request := outbox.request) is not None:
                outbox.settle(request.sent)
                if request.body:
                    yield signal, request.body


def oldest_ns(dead: Dead, signal: str) -> int | None:
    """Return the time of the oldest item of a signal that is not settled, Unix ns; None if there is none."""
    times = list[int]()
    for outbox in outboxes_of(dead)[signal]:
        while (found := outbox.next()) is None and load(outbox.journal):
            pass
        if found is not None:
            times += _times(found.message(), signal)
    return min(times, default=None)


def _times(message: Any, signal: str) -> Iterator[int]:
    for records in record_lists(message, LEVELS[signal]):
        yield from (each.end_time_unix_nano if signal == "traces" else each.time_unix_nano for each in records)
