"""The last values of a run: its numbers, its configuration and its steps, stored beside its ledger by rank zero."""

from __future__ import annotations

import json
import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.blackbox.forms import STEP_TIME
from monitel.step import first_step
from monitel.worker import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from monitel.blackbox.recorder import Series
    from monitel.window_bytes import Snapshot

_log = logging.getLogger("monitel")

#: A value of an attribute, or of a configuration, whose lists are JSON texts.
Scalar = None | bool | int | float | str

#: The name of a metric, and its attributes in the order of their names.
Key = tuple[str, tuple[tuple[str, Scalar], ...]]

VALUES = "values.json"
VERSION = 1
LIMIT_BYTES = 1 << 20
LONGEST_NAME = 200  # characters
LONGEST_TEXT = 1000  # characters of a value
MOST = 1000  # values, and parts of the configuration
MOST_ATTRIBUTES = 100
_STEPS = ("training.steps", "training.steps.skipped")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds between two writes
_RANK, _OVERFLOW, _IN_LEDGER = "training.rank", ("otel.metric.overflow", True), "training.time"
_FIELDS = {"value": "last", "min": "min", "max": "max", "stddev": "stddev"}  # of a window, by the end of a name


class Value(NamedTuple):
    """The last value of one series.

    Attributes:
        name: Name of the metric, such as ``loss.mean``.
        attributes: Its attributes, in the order of their names.
        unit: Its unit.
        value: The value.
        time_ns: Time of the value, Unix ns.
        total: It is a sum since the start of the run, to which each attempt adds.
        before: The part of a total that is from earlier attempts.
    """

    name: str
    attributes: tuple[tuple[str, Scalar], ...]
    unit: str
    value: float
    time_ns: int
    total: bool = False
    before: float = 0.0

    @property
    def key(self) -> Key:
        """The identity of the series."""
        return self.name, self.attributes


class Progress(NamedTuple):
    """The steps of one attempt, or of several.

    Attributes:
        steps: Number of steps that were made, repeated and skipped ones included.
        last_step: The last training step; None if none was set.
        timed: Number of steps with a duration.
        seconds: Sum of these durations.
    """

    steps: int = 0
    last_step: int | None = None
    timed: int = 0
    seconds: float = 0.0

    def plus(self, later: Progress) -> Progress:
        """Return both as one."""
        last_step = self.last_step if later.last_step is None else later.last_step
        return Progress(self.steps + later.steps, last_step, self.timed + later.timed, self.seconds + later.seconds)


NO_STEPS = Progress()


class Attempted(NamedTuple):
    """The last attempt of a run, as its ledger has it.

    Attributes:
        name: Unique name of the process.
        begin: The step at which it begins; None if it is unknown.
        last_step: The last step; None if there is none.
    """

    name: str
    begin: int | None = None
    last_step: int | None = None


class Latest(NamedTuple):
    """The values of a process.

    Attributes:
        values: The last number of each series, and totals.
        counters: Keys of the totals that belong to the process; other totals begin with the pipeline.
        config: The configuration by dotted name.
        progress: The steps. Durations of steps begin with the pipeline.
    """

    values: list[Value]
    counters: frozenset[Key]
    config: Mapping[str, Scalar]
    progress: Progress


@dataclass(frozen=True)
class RunValues:
    """The values of a run.

    Attributes:
        run: The run id; empty for a process without one.
        attempt: Unique name of the process that has written them.
        time_ns: Time of the writing, Unix ns.
        status: How the process ended: ``completed``, ``failed``, ``interrupted`` or ``preempted``; empty before that.
        attributes: Attributes of the resource.
        config: The configuration by dotted name.
        progress: The steps of this attempt.
        before: The steps of earlier attempts.
        values: The last value of each series.
        left_out: Number of values, parts of the configuration and attributes for which there was no room.
    """

    run: str
    attempt: str
    time_ns: int = 0
    status: str = ""
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    config: Mapping[str, Scalar] = field(default_factory=dict)
    progress: Progress = NO_STEPS
    before: Progress = NO_STEPS
    values: tuple[Value, ...] = ()
    left_out: int = 0

    @property
    def whole(self) -> Progress:
        """The steps of all attempts."""
        return self.before.plus(self.progress)

    def until(self, last: Attempted) -> RunValues:
        """Return the values with the steps that the ledger has recorded later, and no status of an earlier attempt."""
        if last.name != self.attempt:
            is_known = last.begin is not None and last.last_step is not None
            steps = max(last.last_step - last.begin, 0) + 1 if is_known else 0  # type: ignore[operator]
            kept = tuple(each._replace(before=each.value) if each.total else each for each in self.values)
            progress = Progress(steps, last.last_step)
            return replace(self, attempt=last.name, status="", before=self.whole, progress=progress, values=kept)
        step, known = last.last_step, self.progress.last_step
        if step is None or known is None or step <= known:
            return self
        return replace(self, progress=self.progress._replace(steps=self.progress.steps + step - known, last_step=step))

    def with_latest(self, latest: Latest) -> RunValues:
        """Return the values with newer ones of the process of this attempt, without its progress."""
        earlier, found = {each.key: each for each in self.values}, []
        for value in latest.values:
            known = earlier.pop(value.key, value)
            if known.total and value.total:
                before = known.before if known is value or value.key in latest.counters else known.value
                found.append(value._replace(value=before + value.value, before=before))
            else:
                found.append(max(known, value, key=lambda each: each.time_ns))
        return replace(self, config={**self.config, **latest.config}, values=(*found, *earlier.values()))


class ValuesError(ValueError):
    """Raised for content that is not the values of a run in this version."""


def encode(values: RunValues) -> bytes:
    """Return the content of the file. Values for which there is no room are left out and counted, the last ones first.

    Raises:
        ValuesError: There is not even room for the names of the run.
    """
    kept = replace(
        values,
        attributes=_limited(values.attributes, MOST_ATTRIBUTES),
        config=_limited(values.config, MOST),
        values=tuple(islice(filter(_is_short, values.values), MOST)),
    )
    while True:
        given, stored = (sum(map(len, (each.values, each.config, each.attributes))) for each in (values, kept))
        fields = {"version": VERSION, **vars(kept), "left_out": values.left_out + given - stored}
        content = json.dumps(fields, separators=(",", ":")).encode()
        if len(content) <= LIMIT_BYTES:
            return content
        if not (kept.values or kept.config):
            raise ValuesError(f"have more than {LIMIT_BYTES} bytes")
        config = dict(islice(kept.config.items(), len(kept.config) // 2))
        kept = replace(kept, values=kept.values[: len(kept.values) // 2], config=config)


def decode(content: bytes) -> RunValues:
    """Return the values in a file.

    Raises:
        ValuesError: The content is damaged, or has another version.
    """
    if len(content) > LIMIT_BYTES:
        raise ValuesError(f"have more than {LIMIT_BYTES} bytes")
    try:
        stored = json.loads(content)
        if (version := stored.pop("version")) == VERSION:
            values = tuple(map(_value, stored.pop("values")))
            progress, before = Progress(*stored.pop("progress")), Progress(*stored.pop("before"))
            return RunValues(**stored, values=values, progress=progress, before=before)
    except Exception:  # its content is not shown
        raise ValuesError("are not the values of a run") from None
    if isinstance(version, int) and version > VERSION:
        raise ValuesError(f"have version {version}, which a newer monitel has written")
    raise ValuesError("have an unknown version")


def _value(stored: Any) -> Value:
    name, attributes, unit, value, time_ns, total, before = stored
    pairs = tuple((name, each) for name, each in attributes)
    return Value(str(name), pairs, str(unit), float(value), int(time_ns), bool(total), float(before))


def limited_text(value: Scalar) -> Scalar:
    """Return a value as it is stored: the end of a long text is replaced by its length and a checksum of the whole.

    So texts that differ are stored as texts that differ. Idempotent.
    """
    if not isinstance(value, str) or len(value) <= LONGEST_TEXT:
        return value
    checksum = sha256(value.encode(errors="surrogatepass")).hexdigest()[:16]
    end = f"... ({len(value):,} characters, SHA-256 {checksum}...)"
    return value[: LONGEST_TEXT - len(end)] + end


def _limited(values: Mapping[str, Scalar], most: int) -> dict[str, Scalar]:
    """Return values of limited number and length, without those with longer names."""
    short = ((name, each) for name, each in values.items() if len(name) <= LONGEST_NAME)
    return {name: limited_text(each) for name, each in islice(short, most)}


def _is_short(value: Value) -> bool:
    texts = [value.name, value.unit, *(each for pair in value.attributes for each in pair if isinstance(each, str))]
    return len(value.attributes) <= MOST_ATTRIBUTES and max(map(len, texts)) <= LONGEST_NAME


class ValuesFile:
    """The content of the file: the values of this process, together with those of earlier attempts of the run.

    The pause between two writes doubles from a second to a minute. So a killed process loses at most the values of its
    last minute. Use it in one thread at a time.

    Args:
        run: The run id; empty for a process without one.
        attempt: Unique name of this process.
        attributes: Attributes of the resource.
        latest: Returns the values of this process; None if there are none.

    Attributes:
        found: The content before this process has written it; None if there was none.
    """

    def __init__(
        self, run: str, attempt: str, attributes: Mapping[str, Any], latest: Callable[[], Latest | None]
    ) -> None:
        scalars = {str(name): each if isinstance(each, Scalar) else str(each) for name, each in attributes.items()}
        self._new = RunValues(run, attempt, attributes=scalars)
        self._latest = latest
        self._earlier = RunValues(run, "")
        self._pause, self._due = _FIRST_PAUSE, 0.0
        self._failed = False
        self.found: bytes | None = None

    def resume(self, found: bytes | None, last: Attempted | None) -> None:
        """Take over the values of earlier attempts. Those that cannot be used are replaced by the next write.

        Args:
            found: The content of the file; None if it cannot be read.
            last: The last attempt by the ledger; None if there is none.
        """
        self.found, self._earlier = found, RunValues(self._new.run, "")
        with suppress(ValuesError):
            earlier = self._earlier if found is None else decode(found)
            self._earlier = earlier if earlier.run == self._new.run else self._earlier
        if last is not None:
            self._earlier = self._earlier.until(last)

    def content(self, status: str, *, last: bool) -> bytes | None:
        """Return the content to write; None if no write is due.

        Args:
            status: How the process ends; empty while it runs.
            last: The process ends.
        """
        now = time.monotonic()
        if self._failed or (now < self._due and not last):
            return None
        self._due, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        try:
            latest = self._latest()
            return None if latest is None else encode(replace(self._after(latest), status=status))
        except Exception:  # of an object of the application; the ledger must go on
            self._failed = True
            _log.debug("the values of the run cannot be stored", exc_info=True)
            return None

    def _after(self, latest: Latest) -> RunValues:
        """Return the values of the run with those of this process."""
        earlier, new = self._earlier, self._new
        if earlier.attempt == new.attempt:  # an earlier pipeline of this process: the steps are those of the process
            before, progress = earlier.before, earlier.progress._replace(steps=0, last_step=None).plus(latest.progress)
        else:
            earlier = earlier.until(Attempted(new.attempt))
            before, progress = earlier.before, latest.progress
        values = earlier.with_latest(latest)
        return replace(
            new, time_ns=time.time_ns(), before=before, progress=progress, config=values.config, values=values.values
        )


def latest(
    series: Iterable[Series], numbers: Mapping[Series, tuple[int, int, Any]], config: Mapping[str, Scalar]
) -> Latest:
    """Return the values of this process. It touches no file, takes no lock, and releases the GIL between slices.

    Args:
        series: All series of the pipeline.
        numbers: The last number of each series of ``monitel.log()``, as :class:`Recorder` has them.
        config: The configuration of the process by dotted name.
    """
    values = [
        Value(each.name, scalars_of(each.plain_attributes), each.definition.unit, float(value), time_ns)
        for each, (_, time_ns, value) in numbers.items()
    ]
    timed, seconds = 0, 0.0
    pace = Pace()
    for each in series:
        pace.pause()
        attributes, window, unit = scalars_of(each.plain_attributes), each.latest, each.definition.unit
        if each.definition.name == STEP_TIME:
            timed, seconds = timed + each.count, seconds + each.sum
        if window is None or _OVERFLOW in attributes:
            continue
        suffixes = [aggregation.suffix for aggregation in window.definition.aggregations]
        values += values_of(each.name, attributes, unit, suffixes, window)
        total = each.sum if math.isfinite(window.sum) else window.sum  # the total of the series is without such windows
        for suffix, value, of_unit in (("count", each.count, "{sample}"), ("sum", total, unit)):
            if suffix in suffixes:
                values.append(Value(f"{each.name}.{suffix}", attributes, of_unit, float(value), window.end_ns, True))
    now_ns, totals = time.time_ns(), list(monitel.counters())
    counters = counter_values(((each.name, each.unit, each.attributes, total) for each, total, _ in totals), now_ns)
    step = monitel.get_step()
    progress = Progress(steps_made(counters, first_step(), step, timed), step, timed, seconds)
    return Latest([*values, *counters], frozenset(each.key for each in counters), config, progress)


def values_of(
    name: str,
    attributes: tuple[tuple[str, Scalar], ...],
    unit: str,
    suffixes: Iterable[str],
    window: monitel.Window | Snapshot,
) -> list[Value]:
    """Return the aggregations of a window of a Stat, other than totals."""
    found: dict[str, float | None] = {}
    for suffix in suffixes:
        if suffix == monitel.HISTOGRAM.suffix:
            if window.histogram is not None and window.histogram.count:
                found.update(window.histogram.percentiles())
        elif suffix == monitel.MEAN.suffix:
            found[suffix] = window.sum / window.count
        elif suffix in _FIELDS:
            found[suffix] = getattr(window, _FIELDS[suffix])
    return [
        Value(f"{name}.{suffix}", attributes, unit, float(value), window.end_ns)
        for suffix, value in found.items()
        if value is not None
    ]


def counter_values(counters: Iterable[tuple[str, str, Mapping[str, Any], float]], time_ns: int) -> list[Value]:
    """Return the totals of counters that are not in the ledger, by name, unit, attributes and total."""
    return [
        Value(name, scalars_of(attributes), unit, total, time_ns, total=True)
        for name, unit, attributes, total in counters
        if name != _IN_LEDGER and math.isfinite(total)
    ]


def steps_made(counters: Iterable[Value], first: int | None, last: int | None, timed: int) -> int:
    """Return the number of steps of a process: as counted, else from the first to the last one, or with a duration."""
    counted = sum(each.value for each in counters if each.name in _STEPS and not each.attributes)
    if counted or first is None or last is None:
        return int(counted)
    return max(last - first, timed, 0) + 1  # they may begin again in each epoch


def scalars_of(attributes: Mapping[str, Any]) -> tuple[tuple[str, Scalar], ...]:
    """Return the attributes of a series without the rank, in the order of their names."""
    scalars = {name: each for name, each in attributes.items() if isinstance(each, bool | int | float | str)}
    return tuple(sorted((name, each) for name, each in scalars.items() if name != _RANK))
