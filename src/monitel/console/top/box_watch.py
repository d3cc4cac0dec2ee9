"""Repeated reading of one black box: only the parts that have changed. Nothing is locked, claimed or written."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monitel.blackbox.box import ENDED, PAGE
from monitel.blackbox.discovery import is_running
from monitel.blackbox.folder import Folder
from monitel.blackbox.forms import STAT, Definition
from monitel.blackbox.process import this_process
from monitel.blackbox.reading import Record, RecordError, names_of, read_head, read_record
from monitel.blackbox.recovery import read_snapshot
from monitel.console.autopsy.box_findings import identity_of_record
from monitel.console.autopsy.records import event_of_plain, whole
from monitel.console.ledger.run_identity import parent_of, process_name
from monitel.console.summary.box_report import box_report
from monitel.console.summary.report import JobName, job_of
from monitel.console.top.numbers import Numbers
from monitel.console.top.period import History
from monitel.console.top.step_rate import StepDistribution, StepRate
from monitel.context_page import PAGE_BYTES, Context, read_page, read_step_times

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.console.autopsy.findings import Identity, PastEvent


class BoxWatch:
    """One black box, which is read again and again.

    Args:
        path: The box.

    Attributes:
        path: The box.
        show: The Stat or logged number that is looked at; None for the usual one.
        record: Its definitions and its newest snapshot, without journals.
        identity: The names of the process.
        job: The names of its job. Without ``monitel run``, the launcher is the parent of the process when the box was
            opened.
        process: Identity of the process, as ``launcher`` has that of its parent; empty if it is of another machine or
            container.
        page: The context page at the last reading.
        steps: The rate of the steps.
        distribution: The times of the steps.
        history: The totals of the process.
        numbers: The last values of Stats and logged numbers.
        event: The last event that was seen, other than logged numbers.

    Raises:
        RecordError: The box is damaged, or of a newer version.
        FolderError: The box is a link, or belongs to another user.
        OSError: The box cannot be read, or was removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.page = Context()
        self.steps = StepRate()
        self.distribution = StepDistribution()
        self.history = History()
        self.numbers = Numbers()
        self.event: PastEvent | None = None
        self.show: str | None = None
        self._page_file = -1
        self._step_times = b""
        self._seen = 1  # definitions
        self._folder = Folder.open(path, probe=False)
        try:
            self.record: Record = read_head(self._folder)
            owner, attributes = self.record.owner, self.record.attributes
            self.identity: Identity = identity_of_record(self.record)
            local = owner.is_near(this_process())
            self.process = process_name(owner.pid, owner.start) if local else ""
            launcher = parent_of(int(owner.pid), owner.start) if local and not self.record.run else self.record.run
            self.job: JobName = job_of(attributes, launcher)
            self._open_page()
        except BaseException:
            self.close()
            raise

    def refresh(self, show: str | None = None, *, only_page: bool = False) -> None:
        """Read what has changed since the previous call.

        Args:
            show: The Stat or logged number that the row shows; None for the usual one.
            only_page: Read the step, the waits and the heartbeat only. Ignored in the first call.

        Raises:
            RecordError: A part of the box is damaged. Its other parts are read.
            OSError: The box cannot be read, or was removed.
        """
        self._open_page()
        self._see_page()
        self.steps.look(time.monotonic_ns())
        if only_page and self.record.snapshot is not None:
            return
        self.distribution.see(self._step_times, time.monotonic_ns())
        self.show = show
        self._see_snapshot()

    @property
    def thread(self) -> int:
        """Identity of the training thread; 0 if it is not known."""
        return whole(self.record.doing.get("thread")) or 0

    @property
    def stepped(self) -> bool:
        """True if the process has set a step itself. A forked child begins with the step of its parent."""
        life = self.history.life
        return self.page.step_ns is not None or (life is not None and life.made > 0)

    def is_alive(self) -> bool:
        """Return True if the process runs.

        Raises:
            OSError: The lock of the box cannot be read.
        """
        with suppress(OSError):
            self._see_page()
        return is_running(self._folder, self.record.owner, self.page)

    def has_ended(self) -> bool:
        """Return True if nothing is added to the box any more: it is read like a spool then."""
        return self._folder.has(ENDED)

    def reopen(self) -> None:
        """Open the box again after :meth:`close`.

        Raises:
            FileNotFoundError: The box was removed.
            FolderError: The box is a link, or belongs to another user.
            OSError: The box cannot be read.
        """
        self._folder = Folder.open(self.path, probe=False)

    def see_end(self) -> None:
        """Read the page once more, and close the files. The page outlives the box, which was removed."""
        with suppress(OSError):
            self._see_page()
            self.distribution.see(self._step_times, time.monotonic_ns())
        self.close()

    def read(self) -> Record:
        """Return everything that the box holds.

        Raises:
            RecordError: The box is damaged.
            OSError: The box was removed.
        """
        return read_record(self._folder)

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._folder.close()
        if self._page_file >= 0:
            os.close(self._page_file)
            self._page_file = -1

    def _see_page(self) -> None:
        if self._page_file >= 0:
            content = os.pread(self._page_file, PAGE_BYTES, 0)
            self.page = read_page(content)
            self._step_times = read_step_times(content)
            if self.page.step is not None and self.page.step_ns is not None:
                self.steps.note(self.page.step, self.page.step_ns)

    def _open_page(self) -> None:
        """Open the page, unless it is open. A box that is being made has none yet."""
        if self._page_file < 0:
            with suppress(FileNotFoundError):
                self._page_file = self._folder.open_file(PAGE, os.O_RDONLY)

    def _see_snapshot(self) -> None:
        """Take over a new snapshot.

        Raises:
            RecordError: The values of the snapshot are not those of a snapshot.
        """
        known = self.record.snapshot
        try:
            snapshot = read_snapshot(self._folder)
            if snapshot is None or (known is not None and snapshot.monotonic_ns <= known.monotonic_ns):
                return
            record = Record(self.path, self.record.names, snapshot)
            if len(record.names) <= _largest(snapshot):
                record.names = names_of(self._folder)
            series = [Definition(*each) for each in record.names[self._seen :]]
            self.numbers.add_stats(each.name for each in series if each.kind == STAT)
            self._seen = len(record.names)
            self.numbers.log(record.numbers)
            self.numbers.see(record.windows)
            if (event := record.last_event) is not None:
                self.event = event_of_plain(event)
            report = box_report(record, None, self.path)
        except (RecordError, OSError):
            raise
        except Exception as error:  # its checksum is right, and its values are not
            raise RecordError(f"its values are not those of a black box: {error!r}") from error
        self.record = record
        self.history.add(report)


def _largest(snapshot: Any) -> int:
    """Return the largest number of a definition that a snapshot refers to."""
    numbers = (each[0] for name in ("totals", "numbers") for each in snapshot.values.get(name) or ())
    return int(max([0, *snapshot.window_names, *numbers]))
