"""The outcome of the items of ended processes, and the commands for what they have left."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.text import counted, replay_command

if TYPE_CHECKING:
    from monitel.runs.process import Process


def record_command(process: Process) -> str:
    """Return the command that shows the record of an ended process; empty once its telemetry is delivered."""
    if not os.path.lexists(process.spool):
        return ""
    return f"monitel autopsy {shlex.quote(process.spool)}"  # its process id leads only to the usual folders


def outcome(processes: Iterable[Process]) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each row about items; none if nothing was recorded."""
    delivered, dropped = Counter[str](), Counter[str]()
    on_disk, spools = 0, []
    for each in (report for process in processes for report in process.reports):
        stored = each.stored or any(account.on_disk for account in each.accounts.values())
        stored = stored and os.path.lexists(each.spool)  # otherwise it was delivered after the end of the process
        spools += [each] if stored else []
        for signal, account in each.accounts.items():
            delivered[signal] += account.delivered + (0 if stored else account.on_disk)
            on_disk += account.on_disk if stored else 0
            dropped.update(account.dropped)
    if sum(delivered.values()):
        spans = f", {delivered['traces']:,} spans" if delivered["traces"] else ""
        yield "exported", f"{delivered['metrics']:,} windows and numbers, {delivered['logs']:,} events{spans}"
    if spools:
        what = counted(on_disk, "item") if on_disk else "values of instruments"
        # The folder that holds the spools: in further spools there is what the processes had on disk before.
        folders = sorted({str(Path(each.spool).parent) for each in spools})
        yield "on disk", f"{what}, deliver with: {'; '.join(map(replay_command, folders))}"
    if lost := sum(dropped.values()):
        reasons = ", ".join(f"{reason} {items:,}" for reason, items in sorted(dropped.items()))
        yield "lost", f"{counted(lost, 'item')} ({reasons})"
