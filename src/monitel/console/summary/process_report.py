"""The report of this process, which it writes at its end if ``monitel run`` has started it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import monitel
from monitel.attributes import INT64_MAX
from monitel.blackbox.process import this_process
from monitel.console.ledger.run_identity import parent
from monitel.console.summary.report import (
    RECOMPILATIONS,
    RECOMPILING,
    SKIPPED,
    STEPS,
    Report,
    Total,
    job_of,
    step_total,
    whole,
)
from monitel.console.summary.stored import write_report
from monitel.launcher import distributed_rank
from monitel.run_events import status
from monitel.run_folder import VARIABLE, is_running
from monitel.step import first_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from monitel.blackbox.account import Account
    from monitel.blackbox.recorder import Series
    from monitel.console.ledger.shares import RunTime

_log = logging.getLogger("monitel.otlp")


def report_end(
    attributes: Mapping[str, Any],
    series: Iterable[Series],
    accounts: Mapping[str, Account],
    run_time: Callable[[], RunTime | None],
    *,
    member: tuple[int, int] | None,
    spool_dir: os.PathLike[str],
    offline: bool,
    stored: bool,
) -> bool:
    """Write the report of this process into the folder of its run. Never raises, and takes no lock.

    Args:
        attributes: Attributes of the resource.
        series: All series of the pipeline.
        accounts: The account of each signal.
        run_time: Returns the time of the run over all attempts; None in other ranks than zero.
        member: Rank and world size in torch.distributed, which take precedence; None if they are not known.
        spool_dir: The spool folder of this process.
        offline: True if no signal has an endpoint.
        stored: True if requests are on disk, even if they hold no item.

    Returns:
        True if the report is written; False if ``monitel run`` has not started this process, or does not run any more.
    """
    path = os.environ.get(VARIABLE, "")
    if not is_running(path):
        return False
    try:
        step_time, stages = step_total(
            (each.definition.name, each.plain_attributes, Total(each.count, each.sum, each.windows, each.largest))
            for each in series
        )
        counted = {each.counter.name: each.total for each in monitel.counters() if not each.counter.attributes}
        book = monitel.ledger()
        member = member or distributed_rank()
        rank, world_size = member or (attributes.get("training.rank"), attributes.get("training.world_size"))
        report = Report(
            owner=this_process(),
            job=job_of(attributes, parent()),
            attempt=whole(attributes.get("training.attempt")) or 0,
            rank=whole(rank),
            world_size=whole(world_size),
            time_ns=time.time_ns(),
            first_step=first_step(),
            last_step=monitel.get_step(),
            steps=_limited(counted.get(STEPS, 0)),
            skipped=_limited(counted.get(SKIPPED, 0)),
            step_time=step_time,
            stages=stages,
            activities={} if book is None else book.activities,
            run_time=run_time(),
            accounts=accounts,
            spool_dir=os.path.abspath(spool_dir),  # noqa: PTH100  without looking at the disk
            offline=offline,
            stored=stored,
            status=status(),
            recompilations=_limited(counted.get(RECOMPILATIONS, 0)),
            recompiling_ns=_limited(counted.get(RECOMPILING, 0) * 1e9),
        )
        write_report(Path(path), report)
    except Exception as error:
        _log.debug("the report for monitel run cannot be written: %s", error)
        return False
    return True


def _limited(number: float) -> int:
    return int(min(number, INT64_MAX))
