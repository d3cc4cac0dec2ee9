"""The telemetry on this machine that no backend has acknowledged: in spools, and in black boxes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.record import READING, WINDOW, Item
from monitel.window_bytes import encode
from monitel_otlp.collection.death import Deaths, death_of
from monitel_otlp.compare.disks import Disks, HangingError
from monitel_otlp.compare.evidence import Process, add_counters, add_event, add_metrics, identity
from monitel_otlp.discovery import has_called_exec, is_running
from monitel_otlp.export.requests import Encoded, MetricsEncoder, ReadingsEncoder
from monitel_otlp.export.totals import Definitions, Totals
from monitel_otlp.export.windows import Mapping, WindowPoints
from monitel_otlp.messages.request import REQUESTS
from monitel_otlp.record import RecordError, page_of, read_head, read_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from monitel_otlp.record import Record

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
            record = self._disks.read(path.parent, lambda: self._spool(path))
            if record is not None:
                self._add(record, _process_of(record))
        except Exception as error:  # the spool may be damaged in any way
            self._report(path, error)

    def add_box(self, path: Path) -> None:
        """Read a black box, and the spool of its process. A box that vanishes meanwhile is left out."""
        try:
            read = self._disks.read(path.parent, lambda: self._box(path))
            if read is None:
                return
            record, alive = read
            spool = record.spool
            if spool is not None and spool.is_absolute() and self._disks.read(spool.parent, spool.is_dir):
                self.add_spool(spool)
            found = self._add(record, _process_of(record))
            found.alive, found.spool_dir = alive, spool
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

    def _report(self, path: Path, error: Exception) -> None:
        if isinstance(error, FolderError):
            self._problems.append(str(error))
        else:
            reason = str(error) if isinstance(error, RecordError) else repr(error)
            self._problems.append(f"{str(path)!r} cannot be read: {reason}")

    def _spool(self, path: Path) -> Record | None:
        """Read a spool; None if its process is not wanted."""
        with closing(Folder.open(path)) as folder:
            process = _process_of(read_head(folder))
            if not self._wanted(process):
                return None
            journals = ["logs"] if self._rank_zero and process.rank else [*_JOURNALS]
            size = sum(folder.status(name).st_size for name in folder.names() if name.startswith(tuple(journals)))
            if size > _LARGEST:
                self._problems.append(f"{str(path)!r} is left out, because it has {size:,} bytes")
                return None
            return read_record(folder, journals=journals)

    def _box(self, path: Path) -> tuple[Record, bool] | None:
        """Read a box; None if its process is not wanted."""
        with closing(Folder.open(path, probe=False)) as folder:
            head = read_head(folder)
            if not self._wanted(_process_of(head)):
                return None
            return read_record(folder), is_running(folder, head.owner, page_of(folder))

    def _add(self, record: Record, process: Process) -> Process:
        """Add the items of a record, and its open windows."""
        found = self._found.setdefault(identity(process.attributes), process)
        for message in _messages(record):
            for resource in message.resource_metrics:
                add_metrics(found, resource)
        for event in record.events:
            add_event(found, event)
        return found


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
