"""A cut: the state of a pipeline at one moment, from which nothing is missing and in which nothing is twice."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel_otlp.black_box.checked import check_cut, check_state
from monitel_otlp.boxes.layout import CUTS, LARGEST_FILE, MARSHAL, BoxError, decode, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel_otlp.black_box.box import OwnFile
    from monitel_otlp.metrics.readings import PlainCounter
    from monitel_otlp.metrics.window_row import PlainSeries


class StatState(NamedTuple):
    """A Stat with an open window.

    Attributes:
        serial: Its number in the process; see :class:`monitel.open_windows.OpenWindow`.
        series: The number of its series in the cut.
        suffixes: The aggregations that it reports, e.g. ``"mean"``.
        end_ns: End of its last window that is in a part or a request, Unix ns; 0 if there is none. A window of the
            box that ends earlier is there already; an open window that began before is closed meanwhile.
    """

    serial: int
    series: int
    suffixes: tuple[str, ...]
    end_ns: int


class SeriesState(NamedTuple):
    """A series, with its totals up to its last window that is in a part or a request.

    Attributes:
        plain: See :func:`monitel_otlp.metrics.window_row.plain_series`.
        count: Number of samples.
        sum: Sum of the samples.
        windows: Number of windows in ``largest``.
        largest: Sum of the largest samples of these windows.
    """

    plain: PlainSeries
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    sum: float
    windows: int = 0
    largest: float = 0.0


class Cut(NamedTuple):
    """One cut.

    Attributes:
        number: Rises from cut to cut.
        time_ns: Time of the cut, Unix ns.
        monotonic_ns: The same by the monotonic clock.
        last_request: Number of the last request that belongs to the cut. Files of later requests are ignored.
        parts: Requests under construction, each with the fields of an
            :class:`monitel_otlp.messages.request.UnfinishedRequest`.
        events_below: All events of the journal with a smaller number are in parts or requests.
        events_done: Further events that are.
        windows: Open windows, for :func:`monitel.open_windows.decode`.
        state: The Stats and their series; see :func:`pack_state`.
        counters: The counters; see :data:`monitel_otlp.metrics.readings.PlainCounter`.
        context: What the process was doing; see :func:`monitel_otlp.black_box.activity.describe`.
    """

    number: int
    time_ns: int
    monotonic_ns: int
    last_request: int
    parts: list[Any]
    events_below: int
    events_done: list[int]
    windows: bytes
    state: bytes
    counters: list[PlainCounter]
    context: dict[str, Any]


def pack_state(stats: Sequence[StatState], series: Sequence[SeriesState]) -> bytes:
    """Return Stats and series for a cut. They rarely differ from those of the previous cut.

    Raises:
        ValueError: They contain other objects than plain values.
    """
    return marshal.dumps((tuple(map(tuple, stats)), tuple(map(tuple, series))), MARSHAL)


def unpack_state(state: bytes) -> tuple[list[StatState], list[SeriesState]]:
    """Return the Stats and series of a cut.

    Raises:
        BoxError: They cannot be decoded.
    """
    if not state:
        return [], []
    try:
        stats, series = check_state(decode(state))
        return [StatState(*each) for each in stats], [SeriesState(*each) for each in series]
    except (ValueError, TypeError) as error:
        raise BoxError(f"the series of a cut cannot be decoded: {error}") from None


class CutWriter:
    """Writes cuts in turn to two files, so that one of them is always complete.

    Args:
        files: The two files.
        claim: Called with the bytes by which a file grows; returns False if there is no room.
    """

    def __init__(self, files: tuple[OwnFile, OwnFile], claim: Callable[[int], bool]) -> None:
        self._files = files
        self._claim = claim
        self._sizes = [0, 0]
        self._next = 0

    def write(self, cut: Cut) -> None:
        """Write a cut. If the process is killed in here, the previous cut is valid.

        Raises:
            OSError: There is no room, or the write failed.
            ValueError: The cut contains other objects than plain values.
        """
        block, which = pack(tuple(cut)), self._next
        grown = len(block) - self._sizes[which]
        if grown > 0:
            if len(block) > LARGEST_FILE or not self._claim(grown):
                raise OSError(f"no room for a cut of {len(block):,} bytes")
            self._sizes[which] = len(block)
        self._files[which].write(block, 0)
        self._next = 1 - which


def newest_cut(blocks: list[bytes]) -> Cut | None:
    """Return the newest complete cut of the two files; None if the process was killed before its first cut.

    Raises:
        BoxError: A file has content, and no cut is complete.
    """
    found, problem = [], None
    for name, block in zip(CUTS, blocks, strict=True):
        if block:
            try:
                found.append(Cut(*check_cut(unpack(block, name))))
            except (BoxError, TypeError, ValueError) as error:
                problem = error
    if not found:
        if problem is not None and all(blocks):
            raise BoxError(f"no cut is complete: {problem}")
        return None
    return max(found, key=lambda cut: cut.number)
