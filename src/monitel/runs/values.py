"""The last values of a run: its numbers and its configuration, which rank zero stores with its ledger."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.process.worker import Pace
from monitel.runs.stored import dump
from monitel.stats.window import OpenWindow
from monitel.training.counters import before

if TYPE_CHECKING:
    from monitel.blackbox.recorder import Recorder, Series

_log = logging.getLogger("monitel")

#: A value of an attribute, or of a configuration, whose lists are JSON texts.
Scalar = None | bool | int | float | str

#: The name of a metric, and its attributes in the order of their names.
Key = tuple[str, tuple[tuple[str, Scalar], ...]]

LONGEST_TEXT = 1000  # characters of a setting or attribute
MOST = 1000  # values, settings, and attributes
LIMIT_BYTES = 1 << 18  # of all together as JSON

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 60.0  # seconds between two writes
_RANK, _OVERFLOW, _IN_LEDGER = "training.rank", ("otel.metric.overflow", True), "training.time"
_PIPELINE, _PROCESS = "pipeline", "process"  # kinds of totals: of Stats, and of counters
_FIELDS = {"value": "last", "min": "min", "max": "max", "stddev": "stddev"}  # of a window, by the end of a name


class Value(NamedTuple):
    """The last value of one series."""

    name: str  # of the metric, such as ``loss.mean``
    attributes: tuple[tuple[str, Scalar], ...]  # in the order of their names
    unit: str
    value: float
    time_ns: int  # Unix ns
    total: str = ""  # a sum since the start of the run: it begins with each ``"pipeline"``, or each ``"process"``
    before: float = 0.0  # the part of a total that is from earlier attempts

    @property
    def key(self) -> Key:
        """The identity of the series."""
        return self.name, self.attributes


@dataclass(frozen=True)
class RunValues:
    """The values of a run."""

    attributes: Mapping[str, Scalar] = field(default_factory=dict)  # of the resource
    config: Mapping[str, Scalar] = field(default_factory=dict)  # by dotted name
    values: tuple[Value, ...] = ()  # of each series
    left_out: int = 0  # values, settings and attributes for which there was no room

    @cached_property
    def stored(self) -> bytes:
        """The stored form, which each heartbeat writes."""
        return dump(self)

    @property
    def ended(self) -> RunValues:
        """The values at the end of their attempt: the next one adds to all totals."""
        values = (each._replace(before=each.value) if each.total else each for each in self.values)
        return replace(self, values=tuple(values))

    def continued(self, latest: RunValues) -> RunValues:
        """Return the values with the newer ones of a process."""
        earlier, found = {each.key: each for each in self.values}, []
        for value in latest.values:
            known = earlier.pop(value.key, value)
            if known.total and value.total:
                before = known.before if known is value or value.total == _PROCESS else known.value
                found.append(value._replace(value=before + value.value, before=before))
            else:
                found.append(max(known, value, key=lambda each: each.time_ns))
        return replace(latest, config={**self.config, **latest.config}, values=(*found, *earlier.values()))

    @property
    def limited(self) -> RunValues:
        """The values as they are stored: those for which there is no room are left out and counted, the last first."""
        config, attributes = (
            {name: _limited(each) for name, each in islice(settings.items(), MOST)}
            for settings in (self.config, self.attributes)
        )
        kept = RunValues(attributes, config, self.values[:MOST])
        while len(kept.stored) > LIMIT_BYTES:
            config, attributes = (dict(islice(each.items(), len(each) // 2)) for each in (config, attributes))
            kept = RunValues(attributes, config, kept.values[: len(kept.values) // 2])
        given, stored = (sum(map(len, (each.values, each.config, each.attributes))) for each in (self, kept))
        return replace(kept, left_out=given - stored)


def _limited(value: Scalar) -> Scalar:
    """Return a value as it is stored: the end of a long text is replaced by its length and a checksum of the whole.

    So texts that differ are stored as texts that differ. Idempotent.
    """
    if not isinstance(value, str) or len(value) <= LONGEST_TEXT:
        return value
    checksum = sha256(value.encode(errors="surrogatepass")).hexdigest()[:16]
    end = f"... ({len(value):,} characters, SHA-256 {checksum}...)"
    return value[: LONGEST_TEXT - len(end)] + end


def stem(name: str) -> str:
    """Return the name that the values and the means of a number have in common."""
    return name.removesuffix(".mean").removesuffix(".value")


def is_loss(name: str) -> bool:
    """Return True for the name of the last value, or of the mean, of a loss."""
    return stem(name).endswith("loss")


def loss_of(values: Iterable[Value]) -> Value | None:
    """Return the last value, or the mean, of ``loss``, or of the first name that ends with it; None if there is none.

    A Stat comes before a logged number.
    """

    def order(value: Value) -> tuple[bool, ...]:
        name = value.name
        return stem(name) != "loss", not name.endswith(".value"), not name.endswith(".mean")

    return min((each for each in values if is_loss(each.name) and not each.total), key=order, default=None)


class CurrentValues:
    """The values of the run of this process. The pause between two reads doubles up to a minute."""

    def __init__(self, attributes: Mapping[str, Any], latest: Callable[[], RunValues | None]) -> None:
        pairs = ((str(name), each if isinstance(each, Scalar) else str(each)) for name, each in attributes.items())
        self._attributes = dict(pairs)
        self._latest = latest
        self._found: RunValues | None = None
        self._pause, self._due = _FIRST_PAUSE, 0.0

    def after(self, earlier: RunValues, *, last: bool) -> RunValues:
        """Return the values with those of earlier attempts. They are read if that is due, and for the last time."""
        now = time.monotonic()
        if now >= self._due or (last and self._due < math.inf):
            self._due, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            try:
                if (latest := self._latest()) is not None:
                    self._found = earlier.continued(replace(latest, attributes=self._attributes)).limited
            except Exception:  # of an object of the application; the ledger must go on
                self._due = math.inf
                _log.debug("the values of the run cannot be stored", exc_info=True)
        return self._found or earlier


def latest(recorder: Recorder) -> RunValues:
    """Return the values of this process. It touches no file, takes no lock, and releases the GIL between slices.

    The totals of the series are without the open windows; the numbers are those of ``monitel.log()``.
    """
    values = [
        Value(each.title, scalars(each.plain_attributes), each.definition.unit, float(value), time_ns)
        for each, (_, time_ns, value) in recorder.numbers.copy().items()
    ]
    pace = Pace()
    for each, window in [*((each, each.latest) for each in recorder.series), *recorder.windows_so_far()]:
        pace.pause()
        values += [] if window is None else _of_stat(each, window)
    newest = {each.key: each for each in values}
    now_ns, earlier = time.time_ns(), before().counters
    counters = [
        Value(each.name, scalars(each.attributes), each.unit, rest, now_ns, _PROCESS)
        for each, total, _ in monitel.counters()
        if each.name != _IN_LEDGER and math.isfinite(rest := total - earlier.get(each, 0))
    ]
    return RunValues(config=recorder.config, values=(*newest.values(), *counters))


def _of_stat(series: Series, window: monitel.Window | OpenWindow) -> Iterator[Value]:
    """Yield the aggregations of a window of a Stat, and its totals; none for the series beyond the limit."""
    name, unit, attributes = series.title, series.definition.unit, scalars(series.plain_attributes)
    if _OVERFLOW in attributes:
        return
    for suffix in (aggregation.suffix for aggregation in series.definition.aggregations):
        found: dict[str, float | None] = {}
        if suffix in {"count", "sum"}:
            # The total sum is without windows whose sum is not finite.
            total = series.count if suffix == "count" else series.sum if math.isfinite(window.sum) else window.sum
            if series.latest is not None:
                of_unit = "{sample}" if suffix == "count" else unit
                yield Value(f"{name}.{suffix}", attributes, of_unit, float(total), window.end_ns, _PIPELINE)
        elif suffix == "histogram":
            found = dict(window.histogram.percentiles()) if window.histogram and window.histogram.count else {}
        else:
            found[suffix] = window.sum / window.count if suffix == "mean" else getattr(window, _FIELDS[suffix])
        for end, value in found.items():
            if value is not None:
                yield Value(f"{name}.{end}", attributes, unit, float(value), window.end_ns)


def scalars(attributes: Mapping[str, Any]) -> tuple[tuple[str, Scalar], ...]:
    """Return the attributes of a series without the rank, in the order of their names."""
    found = {name: each for name, each in attributes.items() if isinstance(each, bool | int | float | str)}
    return tuple(sorted((name, each) for name, each in found.items() if name != _RANK))
