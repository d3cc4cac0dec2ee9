"""The report of a process that could not write one, from its black box."""

from __future__ import annotations

import logging
import math
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.attributes import INT64_MAX
from monitel.training_time import LOST
from monitel_otlp.accounting import Account
from monitel_otlp.black_box.window_state import REPORTED
from monitel_otlp.config.settings import mark_of
from monitel_otlp.summary.report import (
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
from monitel_otlp.summary.stored import write_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monitel_otlp.black_box.contents import Contents
    from monitel_otlp.collection.death import Death
    from monitel_otlp.metrics.readings import PlainCounter

_log = logging.getLogger("monitel.otlp")


def report_death(contents: Contents, death: Death | None, spool: Path, box: str) -> bool:
    """Write the report of a dead process into the folder of its ``monitel run``. Never raises. Idempotent.

    Args:
        contents: The box.
        death: The death; None if the process lives on with another program.
        spool: The spool that the box becomes.
        box: The name of the box.

    Returns:
        True if the report is written; False if there is no such folder, or not any more.
    """
    if not contents.header.run:
        return False
    try:
        write_report(Path(contents.header.run), box_report(contents, death, spool), box.rpartition("-")[2])
    except Exception as error:
        _log.debug("the report for monitel run cannot be written: %s", error)
        return False
    return True


def box_report(contents: Contents, death: Death | None, spool: Path) -> Report:
    """Return the report of a process; the arguments are those of :func:`report_death`."""
    header, cut = contents.header, contents.cut
    attributes = _resource(header.resource)
    counters = [] if cut is None else cut.counters
    counted = {name: total for name, _, _, _, total, *_ in counters}
    step_time, stages = step_total(_series(contents))
    doing = {} if cut is None else cut.context
    first_step, last_step = doing.get("first_step"), doing.get("step")
    since_cut = 0  # steps; they are those of optimizers unless the program has set them
    if death is not None and death.step is not None:
        if first_step is None and last_step is not None and counted.get(STEPS):
            since_cut = max(death.step - last_step, 0)
        last_step = death.step
    step_ns = None if death is None or death.step_age is None else death.time_ns - round(death.step_age * 1e9)
    return Report(
        owner=header.owner,
        job=job_of(attributes, ""),
        attempt=whole(attributes.get("training.attempt")) or 0,
        rank=whole(attributes.get("training.rank")),
        world_size=whole(attributes.get("training.world_size")),
        time_ns=death.time_ns if death is not None else header.created_ns if cut is None else cut.time_ns,
        first_step=first_step,
        last_step=last_step,
        steps=int(min(counted.get(STEPS, 0) + since_cut, INT64_MAX)),
        skipped=int(min(counted.get(SKIPPED, 0), INT64_MAX)),
        step_time=step_time,
        stages=stages,
        activities=_activities(counters),
        accounts=_accounts(contents, events=len(contents.events) + (death is not None)),
        spool_dir=str(spool),
        offline=not mark_of(Path(header.spool_dir).name),
        stored=True,
        death="" if death is None else death.how,
        step_ns=None if step_ns is None else max(step_ns, 0),
        observed=death is not None and death.end is not None and death.end.time_ns > 0,
        recompilations=int(min(counted.get(RECOMPILATIONS, 0), INT64_MAX)),
        recompiling_ns=int(min(counted.get(RECOMPILING, 0) * 1e9, INT64_MAX)),
    )


def _series(contents: Contents) -> Iterator[tuple[str, list[KeyValue], Total]]:
    """Yield the series of a report up to their last encoded windows, and their open windows."""
    known = {
        number: (state.plain[1], [KeyValue.FromString(pair) for pair in state.plain[5]])
        for number, state in enumerate(contents.series)
        if state.plain[1] in REPORTED
    }
    for number, described in known.items():
        yield *described, Total(*contents.series[number][1:])
    for window in contents.windows:
        if window.stat.series in known:
            count, largest = window.snapshot.count, window.snapshot.max
            known_largest = (1, largest) if count and math.isfinite(largest) else (0, 0.0)
            yield *known[window.stat.series], Total(count, window.snapshot.sum, *known_largest)


def _activities(counters: Iterable[PlainCounter]) -> dict[str, int]:
    """Return the ledger of the process: steps that it makes again are ``lost`` in its counters, and ``step`` here."""
    found: Counter[str] = Counter()
    for name, _, _, attributes, total, *_ in counters:
        if name == TIME:
            for key, activity in map(_text_attribute, attributes):
                if key == "training.activity":
                    found["step" if activity == LOST else activity] += round(total * 1e9)
    return dict(found)


# A reader that follows many processes makes their reports each second.
@lru_cache(maxsize=512)
def _resource(resource: bytes) -> dict[str, str | int]:
    attributes = ResourceMetrics.FromString(resource).resource.attributes
    return {each.key: each.value.string_value or each.value.int_value for each in attributes}


@lru_cache(maxsize=512)
def _text_attribute(attribute: bytes) -> tuple[str, str]:
    pair = KeyValue.FromString(attribute)
    return pair.key, pair.value.string_value


def _accounts(contents: Contents, events: int) -> dict[str, Account]:
    items: Counter[str] = Counter({"logs": events, "metrics": len(contents.windows)})
    for request in (*contents.requests, *contents.parts):
        items[request.signal] += request.items
    return {signal: Account(recorded=number, on_disk=number) for signal, number in items.items() if number}
