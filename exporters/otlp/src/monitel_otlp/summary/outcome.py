"""The outcome of the items of all processes: exported, on disk, lost."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monitel_otlp.ledger.screen import Screen
    from monitel_otlp.summary.report import Report


def outcome(reports: Sequence[Report], screen: Screen, *, endpoint_given: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each row; none if nothing was recorded.

    A spool that does not exist any more was delivered after its process had ended.

    Args:
        reports: The reports.
        screen: The terminal.
        endpoint_given: The endpoint was an option, so that a command without it does not find it.
    """
    delivered: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    on_disk = 0
    spools = []
    for report in reports:
        stored = report.stored or any(each.on_disk for each in report.accounts.values())
        stored = stored and os.path.lexists(report.spool_dir)  # else it was delivered after the report
        if stored:
            spools.append(report)
        for signal, account in report.accounts.items():
            delivered[signal] += account.delivered + (0 if stored else account.on_disk)
            on_disk += account.on_disk if stored else 0
            dropped.update(account.dropped)
    if sum(delivered.values()):
        spans = f", {delivered['traces']:,} spans" if delivered["traces"] else ""
        yield "exported", f"{delivered['metrics']:,} windows and numbers, {delivered['logs']:,} events{spans}"
    if spools:
        what = f"{on_disk:,} item{'' if on_disk == 1 else 's'}" if on_disk else "values of instruments"
        unknown = endpoint_given or all(report.offline for report in spools)
        endpoint = " --endpoint http://HOST:4318" if unknown else ""
        # The folder that holds the spools: in further spools there is what the processes had on disk before.
        folders = sorted({str(Path(report.spool_dir).parent) for report in spools})
        commands = [f"monitel replay {shlex.quote(screen.printable(folder))}{endpoint}" for folder in folders]
        yield "on disk", f"{what}, deliver with: {'; '.join(commands)}"
    if lost := sum(dropped.values()):
        reasons = ", ".join(f"{screen.printable(reason)} {items:,}" for reason, items in sorted(dropped.items()))
        yield "lost", f"{lost:,} item{'' if lost == 1 else 's'} ({reasons})"
