"""The telemetry on this machine that no backend has acknowledged: in spools, and in black boxes."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.context_page import read_page
from monitel_otlp.autopsy.records import attributes_of
from monitel_otlp.black_box.contents import read_box, read_header
from monitel_otlp.boxes.box_lock import has_called_exec, is_alive
from monitel_otlp.boxes.layout import BoxError
from monitel_otlp.collection.death import Deaths, death_of
from monitel_otlp.collection.recovered_spool import write_spool
from monitel_otlp.compare.disks import Disks, HangingError
from monitel_otlp.compare.evidence import Process, add_requests, identity
from monitel_otlp.spool.folder import Folder, SpoolError
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    from monitel_otlp.black_box.contents import Contents
    from monitel_otlp.messages.request import FrozenRequest

_LARGEST = 256 << 20  # bytes of a spool that is read
_SIGNALS = ("metrics", "logs")


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

    def add_spool(self, folder: Path) -> None:
        """Read a spool, once. It is left out if its first request is not of a process that is wanted."""
        if folder in self._read:
            return
        self._read.add(folder)
        try:
            first: dict[str, Process] = {}
            for signal in _SIGNALS:
                add_requests(islice(self._requests(folder, [signal]), 1), first)
            if not any(map(self._wanted, first.values())):
                return
            signals = _SIGNALS[1:] if self._rank_zero and all(each.rank for each in first.values()) else _SIGNALS
            size = self._disks.read(folder.parent, lambda: _size(folder, signals))
            if size > _LARGEST:
                self._problems.append(f"{str(folder)!r} is left out, because it has {size:,} bytes")
                return
            add_requests(self._requests(folder, signals), self._found)
        except Exception as error:  # the spool may be damaged in any way
            known = isinstance(error, SpoolError | OSError)
            self._problems.append(str(error) if known else f"{str(folder)!r} cannot be read: {error!r}")

    def add_box(self, path: Path) -> None:
        """Read a black box, and the spool of its process. A box that vanishes meanwhile is left out."""
        try:
            read = self._disks.read(path.parent, lambda: self._box(path))
            if read is None:
                return
            process, resource, alive, contents = read
            spool = Path(contents.header.spool_dir)
            if spool.is_absolute():
                self.add_spool(spool)  # nothing is found in a folder that does not exist
            key = identity(attributes_of(resource.attributes))
            found = self._found.setdefault(key, process)
            found.attributes = process.attributes
            found.alive, found.spool_dir = alive, spool
            self._add_contents(contents, alive=alive)
            created_ns = contents.header.created_ns
            found.last_ns = max(found.last_ns, created_ns if contents.cut is None else contents.cut.time_ns)
            found.started_ns = found.started_ns or created_ns
            if (step := read_page(contents.context).step) is not None:
                found.add_step(step, found.last_ns)
        except Exception as error:  # the box may be damaged in any way
            known = isinstance(error, SpoolError | BoxError)
            if isinstance(error, HangingError) or path.exists():
                self._problems.append(f"{str(path)!r} cannot be read: {error if known else repr(error)}")

    def _requests(self, folder: Path, signals: Sequence[str]) -> Iterator[FrozenRequest]:
        return self._disks.each(folder.parent, lambda: Spool(folder).peek(signals))

    def _box(self, path: Path) -> tuple[Process, Resource, bool, Contents] | None:
        """Read a box; None if its process is not wanted."""
        with closing(Folder.open(path, probe=False)) as folder:
            header = read_header(folder)
            resource = ResourceMetrics.FromString(header.resource).resource
            process = Process(attributes_of(resource.attributes))
            process.attributes["process.pid"] = int(header.owner.pid)
            if not self._wanted(process):
                return None
            return process, resource, is_alive(folder), read_box(folder)

    def _add_contents(self, contents: Contents, *, alive: bool) -> None:
        """Add everything in a box, with all of its counters, as the requests that it would become."""
        if contents.cut is not None:
            counters = [(*each[:-1], None) for each in contents.cut.counters]
            contents.cut = contents.cut._replace(counters=counters)  # type: ignore[arg-type]
        lives = alive or has_called_exec(contents.header.owner)
        death = None if lives else death_of(contents, Deaths())
        with TemporaryDirectory(prefix="monitel-") as temporary, closing(Spool(Path(temporary) / "spool")) as spool:
            write_spool(contents, death, spool)
            add_requests(spool.peek(_SIGNALS), self._found)


def _size(folder: Path, signals: tuple[str, ...]) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.name.startswith(signals))
