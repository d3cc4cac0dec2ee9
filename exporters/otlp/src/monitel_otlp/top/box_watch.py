"""Repeated reading of one black box: only the parts that have changed. Nothing is locked, claimed or written."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.context_page import PAGE_BYTES, Context, read_page, read_step_times
from monitel_otlp.autopsy.records import attributes_of, event_of_plain, identity_of, whole
from monitel_otlp.black_box.contents import Contents, events_of, read_box, read_header, windows_of
from monitel_otlp.black_box.cut import newest_cut, unpack_state
from monitel_otlp.black_box.window_state import REPORTED
from monitel_otlp.boxes.box_lock import is_alive
from monitel_otlp.boxes.layout import CONTEXT, CUTS, JOURNALS, BoxError, read_file
from monitel_otlp.ledger.run_identity import parent_of, process_name
from monitel_otlp.spool.folder import Folder, SpoolError
from monitel_otlp.spool.lock import this_process
from monitel_otlp.summary.box_report import box_report
from monitel_otlp.summary.report import JobName, job_of
from monitel_otlp.top.numbers import Numbers
from monitel_otlp.top.period import History
from monitel_otlp.top.step_rate import StepDistribution, StepRate

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp.autopsy.findings import Identity, PastEvent
    from monitel_otlp.black_box.contents import Header
    from monitel_otlp.black_box.cut import Cut, SeriesState, StatState

LOGGED = "run.log"  # the event of a monitel.log() call
_TICK_NS = 50_000_000  # within which two writes may leave a file with one time

_Version = tuple[int, int]  # size and time of a file


class BoxWatch:
    """One black box, which is read again and again.

    Args:
        path: The box.

    Attributes:
        path: The box.
        show: The Stat or logged number that is looked at; None for the usual one.
        header: The process that it belongs to.
        identity: The names of the process.
        job: The names of its job. Without ``monitel run``, the launcher is the parent of the process when the box was
            opened.
        process: Identity of the process, as ``launcher`` has that of its parent; empty if it is of another machine or
            container.
        page: The context page at the last reading.
        cut: The newest cut; None before the first one.
        steps: The rate of the steps.
        distribution: The times of the steps.
        history: The totals of the process.
        numbers: The last values of Stats and logged numbers.
        event: The last event that was seen, other than logged numbers.

    Raises:
        BoxError: The box is damaged, or of a newer version.
        SpoolError: The box is a link, or belongs to another user.
        OSError: The box cannot be read, or was removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.page = Context()
        self.cut: Cut | None = None
        self.steps = StepRate()
        self.distribution = StepDistribution()
        self.history = History()
        self.numbers = Numbers()
        self.event: PastEvent | None = None
        self.show: str | None = None
        self._page_file = -1
        self._step_times = b""
        self._state: tuple[bytes, list[StatState], list[SeriesState]] = (b"", [], [])
        self._versions: dict[str, _Version] = {}
        self._recent: set[str] = set()  # files that were written just before they were read
        self._last_event = 0
        self._folder = Folder.open(path, probe=False)
        try:
            self.header: Header = read_header(self._folder)
            attributes = attributes_of(ResourceMetrics.FromString(self.header.resource).resource.attributes)
            owner = self.header.owner
            names = identity_of(attributes)
            self.identity: Identity = names._replace(pid=whole(owner.pid), host=names.host or owner.host)
            viewer = this_process()
            local = bool(owner.boot) and (owner.boot, owner.namespace) == (viewer.boot, viewer.namespace)
            self.process = process_name(owner.pid, owner.start) if local else ""
            launcher = parent_of(int(owner.pid), owner.start) if local and not self.header.run else self.header.run
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
            BoxError: A part of the box is damaged. Its other parts are read.
            OSError: The box cannot be read, or was removed.
        """
        self._open_page()
        self._see_page()
        self.steps.look(time.monotonic_ns())
        if only_page and self.cut is not None:
            return
        self.distribution.see(self._step_times, time.monotonic_ns())
        if show != self.show:
            self.show = show
            if self.cut is not None:
                self._shown_part(self.cut)
        journals = [events_of(self._read(name)) for name in JOURNALS if self._has_changed(name)]
        self._see_events(sorted(chain(*journals), key=lambda event: event[0]))
        changed = [name for name in CUTS if self._has_changed(name)]
        if changed:
            self._see_cut(self._newest_cut(changed))

    @property
    def thread(self) -> int:
        """Identity of the training thread; 0 if it is not known."""
        return (whole(self.cut.context.get("thread")) or 0) if self.cut is not None else 0

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
        return is_alive(self._folder)

    def reopen(self) -> None:
        """Open the box again after :meth:`close`.

        Raises:
            FileNotFoundError: The box was removed.
            SpoolError: The box is a link, or belongs to another user.
            OSError: The box cannot be read.
        """
        try:
            self._folder = Folder.open(self.path, probe=False)
        except SpoolError:
            self.path.lstat()
            raise

    def see_end(self) -> None:
        """Read the page once more, and close the files. The page outlives the box, which was removed."""
        with suppress(OSError):
            self._see_page()
            self.distribution.see(self._step_times, time.monotonic_ns())
        self.close()

    def contents(self) -> Contents:
        """Return everything that the box holds.

        Raises:
            BoxError: The box is damaged.
            OSError: The box was removed.
        """
        return read_box(self._folder)

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
                self._page_file = self._folder.open_file(CONTEXT, os.O_RDONLY)

    def _has_changed(self, name: str) -> bool:
        try:
            status = self._folder.status(name)
        except FileNotFoundError:
            return False
        version = status.st_size, status.st_mtime_ns
        if version == self._versions.get(name) and name not in self._recent:
            return False
        self._versions[name] = version
        if time.time_ns() - status.st_mtime_ns < _TICK_NS:
            self._recent.add(name)  # it may be written again without another time
        else:
            self._recent.discard(name)
        return True

    def _read(self, name: str) -> bytes:
        try:
            return read_file(self._folder, name)
        except FileNotFoundError:
            return b""

    def _newest_cut(self, changed: list[str]) -> Cut | None:
        """Return the newest cut, from the file that was written last; from both if that is being written.

        Raises:
            BoxError: Both files are damaged.
        """
        last = max(changed, key=lambda name: self._versions[name][1])
        found = newest_cut([self._read(name) if name == last else b"" for name in CUTS])
        return newest_cut([self._read(name) for name in CUTS]) if found is None else found

    def _see_cut(self, cut: Cut | None) -> None:
        """Take over a cut, unless it is an earlier one because the newest is being written.

        Raises:
            BoxError: The values of the cut are not those of a cut.
        """
        if cut is None or (self.cut is not None and cut.number <= self.cut.number):
            return
        try:
            contents = self._shown_part(cut)
            report = box_report(contents, None, self.path)
        except BoxError:
            raise
        except Exception as error:  # its checksum is right, and its values are not
            raise BoxError(f"its values are not those of a black box: {error!r}") from error
        self.cut = cut
        self.history.add(report)

    def _shown_part(self, cut: Cut) -> Contents:
        """Return the windows of a cut that a row is made from: those of a report, and the one of the shown value."""
        state, stats, series = self._state
        if cut.state != state:
            stats, series = unpack_state(cut.state)
            self._state = cut.state, stats, series
            self.numbers.add_stats(series)
        wanted = {*REPORTED, self.numbers.stat(self.show)}
        windows = windows_of(cut, [stat for stat in stats if series[stat.series].plain[1] in wanted])
        self.numbers.see(windows, series)
        return Contents(self.header, cut, windows=windows, series=series)

    def _see_events(self, events: list[tuple[int, Any]]) -> None:
        last = None
        for number, plain in events:
            if number <= self._last_event:
                continue
            self._last_event = number
            _, _, _, name, body, *_ = plain
            if name == LOGGED:
                self.numbers.log(body if isinstance(body, dict) else {})
            else:
                last = plain
        if last is not None:
            self.event = event_of_plain(last)
