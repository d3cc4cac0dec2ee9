"""The telemetry on this machine that no backend has acknowledged: in spools, and in black boxes."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from monitel.blackbox.death import Deaths, death_of
from monitel.blackbox.discovery import has_called_exec, is_box, is_running
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.reading import RecordError, page_of, read_head, read_record
from monitel.blackbox.record import READING, WINDOW, Item
from monitel.console.compare.disks import Disks, HangingError
from monitel.console.compare.evidence import Process, add_counters, add_event, add_metrics, identity
from monitel.window_bytes import encode
from monitel_otlp.export.requests import Encoded, MetricsEncoder, ReadingsEncoder
from monitel_otlp.export.totals import Definitions, Totals
from monitel_otlp.export.windows import Mapping, WindowPoints
from monitel_otlp.messages.request import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from monitel.blackbox.reading import Record

_LARGEST = 256 << 20  # bytes of a spool that is read
_JOURNALS = ("metrics", "logs", "readings")
_PER_REQUEST = 500  # items


class Telemetry:
    """Reads the telemetry of some processes. Nothing is locked or changed.

    Args:
        wanted: Returns True for a process to read, by the attributes of its resource.
        problems: Receives the description of each box or spool that cannot be read, or is too large.
        disks: Reads the files; None for one with the usual patience.
        rank_zero: Read of the spools of other ranks only the events, for their deaths.
    """

    def __init__(
        self,
        wanted: Callable[[Process], bool],
        problems: list[str],
        disks: Disks | None = None,
        *,
        rank_zero: bool = False,
    ) -> None:
        self._wanted = wanted
        self._disks = disks or Disks()
        self._problems = problems
        self._rank_zero = rank_zero
        self._found: dict[str, Process] = {}
        self._read: set[Path] = set()

    @property
    def processes(self) -> list[Process]:
        """The processes, in the order in which they were found."""
        return [each for each in self._found.values() if self._wanted(each)]

    def add_spool(self, path: Path) -> None:
        """Read a spool, once. It is left out if its process is not wanted."""
        if path in self._read:
            return
        self._read.add(path)
        try:
            record = self._disks.read(path.parent, lambda: self._record(path))
            if record is not None:
                self._add(record)
        except Exception as error:  # the spool may be damaged in any way
            self._report(path, error)

    def add_box(self, path: Path) -> None:
        """Read a black box, and the spool of its process. A box that vanishes meanwhile is left out."""
        try:
            record = self._disks.read(path.parent, lambda: self._record(path))
            if record is None:
                return
            record = self._with_spool(record)
            alive = self._disks.read(path.parent, lambda: _is_running(path))
            found = self._add(record)
            found.alive, found.spool_dir = alive, record.spool
            if not alive and not has_called_exec(record.owner):
                add_event(found, death_of(record, Deaths()).event())
            add_counters(found, record.counters, record.time_ns)
            found.last_ns = max(found.last_ns, record.time_ns)
            found.started_ns = found.started_ns or record.created_ns
            if record.page.step is not None:
                found.add_step(record.page.step, found.last_ns)
        except Exception as error:  # the box may be damaged in any way
            if isinstance(error, HangingError) or path.exists():
                self._report(path, error)

    def _with_spool(self, record: Record) -> Record:
        """Return a record together with what was moved from its box to the disk."""
        spool = record.spool
        if spool is None or not spool.is_absolute():
            return record
        self._read.add(spool)
        try:
            both = self._disks.read(spool.parent, lambda: self._record(record.path, spool) if spool.is_dir() else None)
        except Exception as error:
            self._report(spool, error)
            return record
        return both or record

    def _report(self, path: Path, error: Exception) -> None:
        if isinstance(error, FolderError):
            self._problems.append(str(error))
        else:
            reason = str(error) if isinstance(error, RecordError) else repr(error)
            self._problems.append(f"{str(path)!r} cannot be read: {reason}")

    def _record(self, path: Path, spool: Path | None = None) -> Record | None:
        """Read a record; None if its process is not wanted."""
        with ExitStack() as opened:
            paths = [path] if spool is None else [path, spool]
            folders = [opened.enter_context(closing(Folder.open(each, probe=each in self._read))) for each in paths]
            process, journals = _process_of(read_head(folders[0])), [*_JOURNALS]
            if not self._wanted(process):
                return None
            if self._rank_zero and process.rank and not is_box(folders[0].names()):
                journals = ["logs"]
            last = folders[-1]
            size = sum(last.status(name).st_size for name in last.names() if name.startswith(tuple(journals)))
            if size > _LARGEST:
                self._problems.append(f"{str(paths[-1])!r} is left out, because it has {size:,} bytes")
                return None
            return read_record(folders[0], None if spool is None else folders[1], journals)

    def _add(self, record: Record) -> Process:
        """Add the items of a record, and its open windows."""
        process = _process_of(record)
        found = self._found.setdefault(identity(process.attributes), process)
        for message in _messages(record):
            for resource in message.resource_metrics:
                add_metrics(found, resource)
        for event in record.events:
            add_event(found, event)
        return found


def _is_running(path: Path) -> bool:
    with closing(Folder.open(path, probe=False)) as folder:
        return is_running(folder, read_head(folder).owner, page_of(folder))


def _process_of(record: Record) -> Process:
    return Process({**record.attributes, "process.pid": int(record.owner.pid)})


def _messages(record: Record) -> list[Any]:
    """Return the unsettled metrics of a record, and its open windows, as the messages that a backend would get."""
    if "mapping" not in record.identity:
        return []  # no exporter has sent any
    resource, mapping = record.identity["resource"], Mapping(*record.identity["mapping"])
    totals = Totals(Definitions(record.names.__getitem__), histograms=False, stored=record.totals)
    items, settled = record.items.get("metrics", []), record.settled.get("metrics", 0)
    totals.add([each for each in items if totals.number < each.number <= settled], settled)
    following = record.unsettled("metrics")
    number = max([settled, *(each.last for each in items)])
    opened = [(each.number, encode(each.window)) for each in record.open_windows]
    following += [Item(number + at, 1, WINDOW, value) for at, value in enumerate(opened, 1)]
    encoder, found = MetricsEncoder(resource, totals, WindowPoints(mapping)), list[Encoded]()
    for begin in range(0, len(following), _PER_REQUEST):
        encoded = encoder.encode(following[begin : begin + _PER_REQUEST])
        totals.commit(following[begin : begin + _PER_REQUEST][-1].last, encoded.draft)
        found.append(encoded)
    readings = [each for each in record.unsettled("readings") if each.kind == READING]
    found += [ReadingsEncoder(resource).encode([each]) for each in readings]
    return [REQUESTS["metrics"].FromString(each.body) for each in found]
