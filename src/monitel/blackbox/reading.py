"""The record of a process in its box and its spool folder, as it is read without a lock. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from monitel.blackbox.activity import Doing, doing_at
from monitel.blackbox.context_page import PAGE, PAGE_BYTES, Context, read_page
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.forms import Definition, LogRecord
from monitel.blackbox.process import Owner
from monitel.blackbox.record import (
    ENDED,
    EVENT,
    HEAD,
    JOURNALS,
    POSITION,
    REJECTED,
    SIGNALS,
    STACKS,
    STATE,
    TOTALS,
    VERSION,
    WINDOW,
    Item,
    files_of,
    first_of,
    load,
    read_names,
    read_slots,
    scan,
)
from monitel.stats.window import OpenWindow, decode, key

_LEFT_OUT = -1  # kind of an item that is only counted
_LARGEST_STACKS = 256 << 10  # bytes


class RecordError(ValueError):
    """Raised for a record whose values are senseless. The message gives the reason."""


class Snapshot(NamedTuple):
    """The state of a process at one moment."""

    time_ns: int  # Unix
    position: int  # number of the next item of the journal of metrics
    windows: list[tuple[int, bytes]]  # that are open, as values of entries of kind WINDOW
    values: dict[str, Any]  # the parts that the sources of the box have returned


class Window(NamedTuple):
    """A window that was open at the snapshot, or was closed after it."""

    number: int  # of its definition
    series: Definition
    window: OpenWindow
    item: int  # number in the journal; 0 for an open window
    content: bytes  # the window in the form of `monitel.stats.window`


@dataclass
class Record:
    """The record of a process that runs or has ended."""

    path: Path  # the box; without one the spool folder
    names: list[Any]  # the definitions; number 0 describes the process
    snapshot: Snapshot | None = None  # the newest one
    page: Context = Context()  # noqa: RUF009  it is frozen
    items: dict[str, list[Item]] = field(default_factory=dict)  # those not settled, and those after the snapshot
    settled: dict[str, int] = field(default_factory=dict)  # number of the last such item of each journal, and SENDING
    totals: tuple[int, Any] = (0, None)  # number of an item, and the exporter's totals of series up to it
    holes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # items that were dropped
    stacks: str = ""  # of all threads at a crash

    @property
    def identity(self) -> dict[str, Any]:
        return self.names[0]  # type: ignore[no-any-return]

    @cached_property
    def owner(self) -> Owner:
        return Owner.of(self.identity)

    @property
    def attributes(self) -> dict[str, Any]:
        return self.identity.get("attributes") or {}

    @property
    def created_ns(self) -> int:
        return int(self.identity["created_ns"])

    @property
    def run(self) -> str:
        """The folder of the ``monitel run`` that has started the process; empty without one."""
        return str(self.identity.get("run") or "")

    @property
    def store(self) -> str:
        """The folder of the run, which may be missing; empty if its process stores none."""
        return str(self.identity.get("store") or "")

    @property
    def spool(self) -> Path | None:
        """The spool folder of the process, which may not exist; None without one."""
        root = self.identity.get("spool")
        return Path(root, self.identity["name"]) if root else None

    @property
    def time_ns(self) -> int:
        """The time of the snapshot, Unix ns; without one that of the begin."""
        return self.created_ns if self.snapshot is None else self.snapshot.time_ns

    @property
    def doing(self) -> dict[str, Any]:
        return self._value("doing") or {}

    def doing_at(self, time_ns: int) -> Doing:
        return doing_at(time_ns, self.doing, None if self.snapshot is None else self.snapshot.time_ns, self.page)

    @property
    def pending(self) -> tuple[int, list[Any]]:
        """Number of the next reading, and the readings that were not appended when the snapshot was written."""
        return self._value("pending") or (0, [])

    @property
    def before_ns(self) -> int:
        """Begin of the run, Unix ns, if the process has had another run before; otherwise 0."""
        return int((self._value("before") or (0,))[0])

    @property
    def counted(self) -> list[tuple[str, dict[str, Any], float]]:
        """Name, attributes and total of each counter since the begin of the run."""
        _, earlier = self._value("before") or (0, ())
        known = {(name, *sorted(attributes.items())): total for name, attributes, total in earlier}
        return [
            (name, attributes, total - known.get((name, *sorted(attributes.items())), 0))
            for name, attributes, total in self._value("counters") or []
        ]

    @property
    def reported(self) -> list[tuple[Definition, int, float, int, float]]:
        """Count, sum, windows, and sum of the largest samples, of the series in the summary of a run."""
        return [(self.definition(number), *total) for number, *total in self._defined("totals")]

    @property
    def last_event(self) -> LogRecord | None:
        """The last event other than logged numbers, of a process that runs; None before."""
        found = self._value("event")
        return LogRecord(*load(found)) if found else None

    @property
    def numbers(self) -> list[tuple[Definition, int, float]]:
        """Time, Unix ns, and value of the last number of each series of ``monitel.log()``."""
        return [(self.definition(number), *last) for number, *last in self._defined("numbers")]

    @property
    def stack(self) -> str:
        """The stack of the main thread at the snapshot, in the form of faulthandler; empty without one."""
        return str(self._value("stack") or "")

    @property
    def exception(self) -> tuple[str, str, str] | None:
        """Type, message and place of the last exception that was not caught; None without one."""
        return self._value("exception")  # type: ignore[no-any-return]

    def _value(self, name: str) -> Any:
        return None if self.snapshot is None else self.snapshot.values.get(name)

    def _defined(self, name: str) -> Iterator[Any]:
        return (each for each in self._value(name) or () if self._is_defined(each[0]))

    def _is_defined(self, number: int) -> bool:
        """Return True if a series has its definition in the files: a full box has no room for new ones."""
        return 0 <= number < len(self.names)

    def definition(self, number: int) -> Definition:
        """Return a series, which is made once."""
        found = self.names[number]
        if type(found) is not Definition:
            found = self.names[number] = Definition(*found)
        return found

    @cached_property
    def windows(self) -> list[Window]:
        """The windows that were closed after the snapshot, or are open in it, in this order."""
        position, opened = (1, []) if self.snapshot is None else (self.snapshot.position, self.snapshot.windows)
        items = (each for each in self.items.get("metrics", ()) if each.kind == WINDOW and each.number >= position)
        found = [(each.number, *each.value) for each in items]
        closed = {key(content) for _, _, content in found}
        found += [(0, number, content) for number, content in opened if key(content) not in closed]
        return [
            Window(number, self.definition(number), decode(content), item, content)
            for item, number, content in found
            if self._is_defined(number)
        ]

    @property
    def open_windows(self) -> list[Window]:
        return [each for each in self.windows if not each.item]

    def unsettled(self, journal: str) -> list[Item]:
        """Return the items of a journal that no backend has acknowledged, oldest first."""
        last = self.settled.get(journal, 0)
        found = [each for each in self.items.get(journal, ()) if each.last > last]
        if found and found[0].number <= last:
            found[0] = found[0].split(last + 1 - found[0].number)[1]
        return found

    @property
    def off(self) -> frozenset[str]:
        return frozenset(self.identity.get("off", ()))

    @property
    def is_unread(self) -> bool:
        """True if the process had no reader for any of its journals: they are for an autopsy."""
        return self.off >= {*JOURNALS}

    @property
    def waiting(self) -> dict[str, int]:
        """The number of items of each signal that no backend has acknowledged, without open windows."""
        signals = [each for each in SIGNALS if each not in self.off]
        return {signal: sum(item.items for item in self.unsettled(signal)) for signal in signals}

    @property
    def events(self) -> list[LogRecord]:
        """The events that no backend has acknowledged, oldest first."""
        return [LogRecord(*item.value) for item in self.unsettled("logs") if item.kind == EVENT]


def read_snapshot(folder: Folder) -> Snapshot | None:
    """Return the newest whole snapshot in a box, if there is one. It raises anything if the content is senseless."""
    for name in (STATE, ENDED):
        value = read_slots(folder, name)[1]
        if value is not None and value[0] == VERSION:
            return Snapshot(*value[1:])
    return None


def read_record(
    *given: Folder | None,
    journals: Sequence[str] = JOURNALS,
    events: Collection[str] = (),
) -> Record:
    """Read a record, whether its process has ended or runs: its box, its spool folder, or both.

    Most events other than those of the given names are only counted, which is faster. A record with other values raises
    a :class:`RecordError`, one of another version a :class:`FolderError`.
    """
    folders = [each for each in given if each is not None]
    folder = folders[0]
    try:
        snapshot = read_snapshot(folder)
        stored: list[Any] = [read_slots(each, TOTALS)[1] or (0, None, {}) for each in folders]
        totals = max(stored, key=lambda each: int(each[0]))[:2]
        settled = {"metrics": int(totals[0])}
        for each in folders:
            for name, number in (read_slots(each, POSITION)[1] or {}).items():
                settled[name] = max(number, settled.get(name, 0))
        position = 1 if snapshot is None else snapshot.position
        after = {**settled, "metrics": min(totals[0], position - 1)}
        items = {
            name: [*_items(folders, name, after.get(name, 0), events if name == "logs" else ())] for name in journals
        }
        names = names_of(*folders)  # after the items, which refer to them
        found = Record(folder.path, names, snapshot, page_of(folder), items, settled, totals)
        found.holes = {name: [each for of in stored for each in of[2].get(name, ())] for name in (*JOURNALS, REJECTED)}
        found.stacks = text_of(folder, STACKS)
        _ = found.owner, found.created_ns, found.windows, found.doing_at(found.time_ns)  # raises if senseless
    except (RecordError, FolderError, OSError):
        raise
    except Exception as error:  # its checksums are right, and its values are not, or are those of another version
        names_of(*folders)  # raises for another version
        raise RecordError(f"its values are not those of a black box: {error!r}") from error
    return found


def names_of(*folders: Folder) -> list[Any]:
    """Return the definitions of a process; the errors are those of :func:`read_record`."""
    names, _ = read_names(*folders)
    if not names:
        raise RecordError("names is damaged: it does not describe the process")
    if (version := names[0]["version"]) != VERSION:
        words = f"has version {version!r} of the record, and this monitel reads {VERSION}: use the one that wrote it"
        raise FolderError(f"{str(folders[0].path)!r} {words}")
    return names


def page_of(folder: Folder) -> Context:
    """Return the page of a box; an empty one if it has none."""
    with suppress(OSError):
        return read_page(folder.read(PAGE, PAGE_BYTES))
    return Context()


def text_of(folder: Folder, name: str) -> str:
    """Return the content of a file of stacks; empty if there is none."""
    with suppress(OSError):
        return folder.read(name, _LARGEST_STACKS).decode("utf-8", "replace")
    return ""


def _items(folders: Sequence[Folder], journal: str, after: int, events: Collection[str]) -> Iterator[Item]:
    files, wanted = [], [each.encode() for each in events]
    for folder in folders:
        for name in files_of(folder, journal):
            with suppress(FileNotFoundError):  # a running process has removed it
                content = folder.read(name)
                files.append((first_of(content), content))
    for first, content in sorted(files, key=lambda file: file[0]):
        for part in scan(content, HEAD.size, len(content), first) if first else ():
            last, value = part.number + part.items - 1, content[part.begin : part.end]
            if last > after:
                after = last
                is_wanted = not wanted or any(name in value for name in wanted)
                yield Item(part.number, part.items, *((part.kind, load(value)) if is_wanted else (_LEFT_OUT, None)))
