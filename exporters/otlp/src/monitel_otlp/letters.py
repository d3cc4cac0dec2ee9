"""What ranks write to each other: a line of JSON each, of limited length; nothing is unpickled."""

from __future__ import annotations

import json
from dataclasses import astuple
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel_otlp.cells import Row
from monitel_otlp.digest import Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monitel_otlp.place import Place

LONGEST, LONGEST_GREETING = 1 << 20, 1 << 12  # bytes of a line
ROWS = 100  # windows of a letter: read in half a millisecond, in which the training loop waits for the GIL
_VERSION = 1
_RANKS = 1 << 32
_SCALES, _BUCKETS, _OFFSETS, _COUNTS = range(-20, 21), 160, 1 << 31, 1 << 48  # of a histogram


class LetterError(ValueError):
    """A line that is no letter, or one from another run."""


class Greeting(NamedTuple):
    """Who is speaking; the first line in both directions."""

    run: str
    rank: int
    host: str


class Letter(NamedTuple):
    """Windows of some ranks.

    Attributes:
        number: Rises from letter to letter of one rank; it is what is acknowledged.
        ranks: Those that are alive behind the sender, itself among them.
        rows: The windows.
    """

    number: int
    ranks: frozenset[int]
    rows: list[Row]


def greet(place: Place) -> bytes:
    """The line of a greeting."""
    return _line({"monitel": _VERSION, "run": place.run, "rank": place.rank, "host": place.host})


def read_greeting(line: bytes, place: Place) -> Greeting:
    """Read a greeting; it must be of the same run.

    Raises:
        LetterError: It is not.
    """
    content = _read(line)
    try:
        found = Greeting(content["run"], content["rank"], content["host"])
        known = content["monitel"] == _VERSION
    except (KeyError, TypeError) as error:
        raise LetterError("no greeting") from error
    if not known or found.run != place.run or not _is_rank(found.rank, place) or not isinstance(found.host, str):
        raise LetterError("a greeting of another run")
    return found


def write(number: int, ranks: Iterable[int], rows: Sequence[Row]) -> bytes:
    """The line of a letter; windows of one Stat follow its definition."""
    series: dict[int, tuple[monitel.StatDefinition, list[list[Any]]]] = {}
    for definition, share in rows:
        series.setdefault(id(definition), (definition, []))[1].append(_share_as_list(share))
    stats = [[_definition_as_list(definition), shares] for definition, shares in series.values()]
    return _line({"number": number, "ranks": sorted(ranks), "stats": stats})


def read(line: bytes, place: Place, known: dict[str, monitel.StatDefinition]) -> Letter:
    """Read a letter.

    Args:
        line: It.
        place: Who reads: ranks must be of its world.
        known: The definitions that have been read before: equal ones become the same one.

    Raises:
        LetterError: It is none.
    """
    content = _read(line)
    try:
        number, ranks = content["number"], frozenset(content["ranks"])
        rows = []
        for definition, shares in content["stats"]:
            key = json.dumps(definition)
            if key not in known:
                known[key] = _definition_of(*definition)
            rows += [Row(known[key], _share(share, place)) for share in shares]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LetterError(f"a malformed letter: {error}") from error
    if type(number) is not int or not all(_is_rank(rank, place) for rank in ranks):
        raise LetterError("a letter without its number or with ranks that cannot be")
    return Letter(number, ranks, rows)


def acknowledge(number: int) -> bytes:
    """The line that says that a letter has come."""
    return _line({"acknowledged": number})


def read_acknowledgement(line: bytes) -> int:
    """The number of the letter that has come.

    Raises:
        LetterError: The line says something else.
    """
    number = _read(line).get("acknowledged")
    if type(number) is not int:
        raise LetterError("no acknowledgement")
    return number


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _read(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LetterError("no JSON") from error
    if not isinstance(content, dict):
        raise LetterError("no JSON object")
    return content


def _definition_as_list(definition: monitel.StatDefinition) -> list[Any]:
    aggregations = [int(each) for each in definition.aggregations]
    attributes = dict(definition.attributes)
    return [definition.name, aggregations, definition.unit, definition.description, attributes, definition.monotonic]


def _definition_of(  # noqa: PLR0917  the fields in their order
    name: Any, aggregations: Any, unit: Any, description: Any, attributes: Any, monotonic: Any
) -> monitel.StatDefinition:
    for text in (name, unit, description, *attributes, *attributes.values()):
        if isinstance(text, str):
            text.encode()  # half a character could not be sent on
    if not all(isinstance(text, str) for text in (name, unit, description)) or not isinstance(monotonic, bool):
        raise TypeError("a definition of other types")
    for value in attributes.values():
        if not isinstance(value, (str, int, float)) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
            raise TypeError("an attribute of another type")
    asked = tuple(monitel.Aggregation(each) for each in aggregations)
    return monitel.StatDefinition(name, asked, unit, description, MappingProxyType(attributes), monotonic)


def _share_as_list(share: Share) -> list[Any]:
    return [*share[:-1], None if share.histogram is None else astuple(share.histogram)]


def _share(fields: Any, place: Place) -> Share:
    share = Share(*fields)
    if share.histogram is not None:
        share = share._replace(histogram=_histogram(fields[-1]))
    whole = (share.start_ns, share.end_ns, share.samples, share.discarded)
    numbers = (share.sum, share.min, share.max, share.last)
    if not _is_rank(share.rank, place) or {type(each) for each in whole} != {int} or share.samples < 1:
        raise TypeError("a window of other types")
    if {type(each) for each in numbers} != {float} or type(share.last_step) not in {int, type(None)}:
        raise TypeError("a window of other types")
    if type(share.stddev) not in {float, type(None)}:
        raise TypeError("a standard deviation of another type")
    if not 0 <= share.start_ns <= share.end_ns < 2**62 or not 0 <= share.samples + share.discarded < _COUNTS:
        raise ValueError("a window that cannot be")
    return share


def _histogram(fields: list[Any]) -> monitel.Histogram:
    histogram = monitel.Histogram(*fields)
    offsets = histogram.positive_offset, histogram.negative_offset
    counts = histogram.zero_count, histogram.nonfinite, *histogram.positive, *histogram.negative
    numbers = histogram.sum, histogram.min, histogram.max
    if {type(each) for each in (histogram.scale, *offsets, *counts)} != {int} or set(map(type, numbers)) != {float}:
        raise TypeError("a histogram of other types")
    sizes = len(histogram.positive), len(histogram.negative)
    if histogram.scale not in _SCALES or max(sizes) > _BUCKETS or max(map(abs, offsets)) >= _OFFSETS:
        raise ValueError("a histogram that cannot be")
    if min(counts) < 0 or max(counts) >= _COUNTS:
        raise ValueError("a histogram that cannot be")
    return histogram


def _is_rank(rank: object, place: Place) -> bool:
    return type(rank) is int and 0 <= rank < (place.world_size if place.world_size > 1 else _RANKS)
