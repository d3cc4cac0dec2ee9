"""Contents of a black box, read by another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.open_windows import decode
from monitel_otlp.black_box.checked import check_event, check_header
from monitel_otlp.black_box.cut import newest_cut, unpack_state
from monitel_otlp.black_box.event_journal import read_journal
from monitel_otlp.black_box.request_files import read_requests
from monitel_otlp.boxes.layout import (
    CONTEXT,
    CUTS,
    HEADER,
    JOURNALS,
    STACKS,
    STACKS_NOW,
    VERSION,
    BoxError,
    NewerBoxError,
    read_file,
    unpack,
)
from monitel_otlp.messages.request import FrozenRequest, UnfinishedRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monitel.open_windows import Snapshot
    from monitel_otlp.black_box.cut import Cut, SeriesState, StatState
    from monitel_otlp.logs.mapping import PlainEvent
    from monitel_otlp.spool.folder import Folder
    from monitel_otlp.spool.lock import Owner

_LARGEST_TEXT = 256 << 10  # bytes of stacks
_ATTEMPTS = 5  # at a box whose process runs, and may replace a file meanwhile


class Header(NamedTuple):
    """The process that a box belongs to.

    Attributes:
        owner: The process.
        created_ns: Creation of the box, Unix ns.
        resource: The resource and its schema; see :func:`monitel_otlp.messages.resource.encode_resource`.
        scope: Name, version and schema of the scope.
        mapping: The arguments of :class:`monitel_otlp.metrics.mapping.WindowMapping`.
        spool_dir: The spool folder of the pipeline.
        run: The token of the ``monitel run`` that has started the process; empty without one.
        off: The signals that are not recorded.
    """

    owner: Owner
    created_ns: int
    resource: bytes
    scope: tuple[str, str, str]
    mapping: tuple[str, int, str]
    spool_dir: str
    run: str
    off: tuple[str, ...] = ()


def header_values(header: Header) -> dict[str, Any]:
    """Return a header as the plain values that a box holds."""
    return {"version": VERSION, **header._asdict(), "owner": tuple(header.owner)}


@dataclass
class Window:
    """An open window of a box.

    Attributes:
        stat: Its Stat.
        snapshot: Its numbers.
        closed: It was closed, but no request has it.
    """

    stat: StatState
    snapshot: Snapshot
    closed: bool


@dataclass
class Contents:
    """All that a box holds.

    Attributes:
        header: The process that it belongs to.
        cut: The newest cut; None if there is none.
        requests: Finished requests that no backend has acknowledged, oldest first.
        parts: Requests under construction, by the newest cut.
        events: Plain values of the events that are in no request and no part.
        windows: The windows that are in no request and no part.
        series: The series of the windows; see :attr:`StatState.series`.
        context: The page of :mod:`monitel.context_page`, unread; empty without one.
        stacks: What the crash handler has written; empty without a crash.
        stacks_now: Stacks that the running process has written on request; empty without a request.
        problems: Descriptions of the parts that could not be read.
    """

    header: Header
    cut: Cut | None
    requests: list[FrozenRequest] = field(default_factory=list)
    parts: list[FrozenRequest] = field(default_factory=list)
    events: list[PlainEvent] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    series: list[SeriesState] = field(default_factory=list)
    context: bytes = b""
    stacks: str = ""
    stacks_now: str = ""
    problems: list[str] = field(default_factory=list)


def read_header(folder: Folder) -> Header:
    """Return the header of a box.

    Raises:
        BoxError: It is missing, damaged, or of a newer version.
    """
    values = unpack(_content(folder, HEADER), HEADER)
    version = values.pop("version", None) if isinstance(values, dict) else None
    if version != VERSION:
        raised = NewerBoxError if isinstance(version, int) and version > VERSION else BoxError
        raise raised(f"expected version {VERSION} of the layout, got {version!r}: use another version of monitel-otlp")
    try:
        return Header(**check_header(values))
    except (TypeError, KeyError, ValueError) as error:
        raise BoxError(f"{HEADER} has other fields than expected: {error}") from None


def read_box(folder: Folder) -> Contents:
    """Read a box, whether its process has ended or runs. Nothing is changed.

    Raises:
        BoxError: The box is damaged, or of a newer version.
    """
    header = read_header(folder)
    try:
        return _read(folder, header)
    except BoxError:
        raise
    except Exception as error:  # its checksums are right, and its values are not
        raise BoxError(f"its values are not those of a black box: {error!r}") from error


def _read(folder: Folder, header: Header) -> Contents:
    for _ in range(_ATTEMPTS):
        before = _newest(folder)
        found = Contents(header, before)
        _read_rest(folder, found)
        after = _newest(folder)
        if (before and before.number) == (after and after.number):
            break  # else the process has committed requests meanwhile
    return found


def _newest(folder: Folder) -> Cut | None:
    return newest_cut([_content(folder, name) for name in CUTS])


def _read_rest(folder: Folder, found: Contents) -> None:
    cut = found.cut
    last, below, done = (cut.last_request, cut.events_below, set(cut.events_done)) if cut else (0, 1, set())
    found.requests = read_requests(folder, last, found.problems.append)
    journals = chain.from_iterable(events_of(_content(folder, name)) for name in JOURNALS)
    left = [(number, plain) for number, plain in journals if number >= below and number not in done]
    found.events = [plain for _, plain in sorted(left, key=itemgetter(0))]
    found.context = _content(folder, CONTEXT)
    found.stacks = _text(folder, STACKS)
    found.stacks_now = _text(folder, STACKS_NOW)
    if cut is not None:
        found.parts = [_request(UnfinishedRequest(*part), cut.time_ns) for part in cut.parts]
        stats, found.series = unpack_state(cut.state)
        found.windows = windows_of(cut, stats)


def _request(part: UnfinishedRequest, created_ns: int) -> FrozenRequest:
    return FrozenRequest(part.signal, part.body, part.items, created_ns, part.weights, part.synthetic)


def events_of(content: bytes) -> Iterator[tuple[int, PlainEvent]]:
    """Yield number and plain values of each event in a file of the journal.

    Raises:
        BoxError: The values are not those of an event.
    """
    for number, plain in read_journal(content):
        try:
            yield number, check_event(plain)
        except ValueError as error:
            raise BoxError(f"an event has other values than expected: {error}") from None


def windows_of(cut: Cut, states: Iterable[StatState]) -> list[Window]:
    """Return the windows of a cut that are in no part and no request, in their order.

    A window of a Stat is there already if it ends with the Stat's last encoded window, or before. The open window is
    there, or has a newer version here, if a window is closed that ended after the one before it.

    Args:
        cut: The cut.
        states: The Stats whose windows are wanted.
    """
    stats = {stat.serial: stat for stat in states}
    windows = list(decode(cut.windows, stats))  # a Stat that was destructed after the reading is encoded
    ends = {serial: stat.end_ns for serial, stat in stats.items()}
    for window in windows:
        if window.closed:
            ends[window.serial] = max(ends[window.serial], window.snapshot.end_ns)
    found = []
    for window in windows:
        stat = stats[window.serial]
        left = window.snapshot.end_ns > stat.end_ns if window.closed else ends[window.serial] <= window.previous_end_ns
        if left:
            found.append(Window(stat, window.snapshot, window.closed))
    return sorted(found, key=lambda window: (window.stat.series, window.snapshot.end_ns))


def _content(folder: Folder, name: str) -> bytes:
    try:
        return read_file(folder, name)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BoxError(f"{name} cannot be read: {error.strerror}") from None


def _text(folder: Folder, name: str) -> str:
    try:
        return folder.read(name, _LARGEST_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
