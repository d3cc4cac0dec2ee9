"""The report of a process that could not write one, from its record."""

from __future__ import annotations

import logging
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel.attributes import INT64_MAX
from monitel.blackbox.account import Account
from monitel.blackbox.forms import REPORTED
from monitel.blackbox.record import JOURNALS
from monitel.blackbox.settings import mark_of
from monitel.console.summary.report import (
    RECOMPILATIONS,
    RECOMPILING,
    SKIPPED,
    STEPS,
    TIME,
    Report,
    Total,
    job_of,
    step_total,
    whole,
)
from monitel.console.summary.stored import write_report
from monitel.training_time import LOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monitel.blackbox.death import Death
    from monitel.blackbox.forms import PlainCounter
    from monitel.blackbox.reading import Record

_log = logging.getLogger("monitel.otlp")

_TOKEN = 3  # place of the random part in the name of a record


def report_death(record: Record, death: Death | None, spool: Path) -> bool:
    """Write the report of a dead process into the folder of its ``monitel run``. Never raises. Idempotent.

    Args:
        record: The record of the process.
        death: The death; None if the process lives on with another program.
        spool: Where its items are.

    Returns:
        True if the report is written; False if there is no such folder, or not any more.
    """
    if not record.run:
        return False
    try:
        token = str(record.identity["name"]).split("-")[_TOKEN]
        write_report(Path(record.run), box_report(record, death, spool), token)
    except Exception as error:
        _log.debug("the report for monitel run cannot be written: %s", error)
        return False
    return True


def box_report(record: Record, death: Death | None, spool: Path) -> Report:
    """Return the report of a process; the arguments are those of :func:`report_death`."""
    attributes, counters, doing = record.attributes, record.counters, record.doing
    counted = {name: total for name, _, _, _, total, *_ in counters}
    step_time, stages = step_total(_series(record))
    first_step, last_step = doing.get("first_step"), doing.get("step")
    since_snapshot = 0  # steps; they are those of optimizers unless the program has set them
    if death is not None and death.step is not None:
        if first_step is None and last_step is not None and counted.get(STEPS):
            since_snapshot = max(death.step - last_step, 0)
        last_step = death.step
    step_ns = None if death is None or death.step_age is None else death.time_ns - round(death.step_age * 1e9)
    return Report(
        owner=record.owner,
        job=job_of(attributes, ""),
        attempt=whole(attributes.get("training.attempt")) or 0,
        rank=whole(attributes.get("training.rank")),
        world_size=whole(attributes.get("training.world_size")),
        time_ns=record.time_ns if death is None else death.time_ns,
        first_step=first_step,
        last_step=last_step,
        steps=int(min(counted.get(STEPS, 0) + since_snapshot, INT64_MAX)),
        skipped=int(min(counted.get(SKIPPED, 0), INT64_MAX)),
        step_time=step_time,
        stages=stages,
        activities=_activities(counters),
        accounts=_accounts(record, died=death is not None),
        spool_dir=str(spool),
        offline=not mark_of(str(record.identity["name"])),
        stored=not record.off.issuperset(JOURNALS),
        death="" if death is None else death.how,
        step_ns=None if step_ns is None else max(step_ns, 0),
        observed=death is not None and death.end is not None and death.end.time_ns > 0,
        recompilations=int(min(counted.get(RECOMPILATIONS, 0), INT64_MAX)),
        recompiling_ns=int(min(counted.get(RECOMPILING, 0) * 1e9, INT64_MAX)),
    )


def _series(record: Record) -> Iterator[tuple[str, dict[str, Any], Total]]:
    """Yield the series of a report up to the snapshot, and their windows since then."""
    for series, count, total, windows, largest in record.reported:
        yield series.name, series.attributes, Total(count, total, windows, largest)
    for each in record.windows:
        if each.series.name in REPORTED:
            numbers = each.window.snapshot
            known = (1, numbers.max) if numbers.count and math.isfinite(numbers.max) else (0, 0.0)
            yield each.series.name, each.series.attributes, Total(numbers.count, numbers.sum, *known)


def _activities(counters: Iterable[PlainCounter]) -> dict[str, int]:
    """Return the ledger of the process: steps that it makes again are ``lost`` in its counters, and ``step`` here."""
    found: Counter[str] = Counter()
    for name, _, _, attributes, total, *_ in counters:
        if name == TIME and (activity := attributes.get("training.activity")) is not None:
            found["step" if activity == LOST else str(activity)] += round(total * 1e9)
    return dict(found)


def _accounts(record: Record, *, died: bool) -> dict[str, Account]:
    items = Counter(record.waiting)
    items["metrics"] += len(record.open_windows)
    items["logs"] += died
    known = {signal: number for signal, number in items.items() if number and signal not in record.off}
    return {signal: Account(recorded=number, on_disk=number) for signal, number in known.items()}
