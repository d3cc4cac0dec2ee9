"""Metric names that every OpenTelemetry backend accepts: one name for each metric, and one metric for each name."""

from __future__ import annotations

import logging
import re
from itertools import count
from typing import TYPE_CHECKING

import monitel
from monitel.readings import counter_names, unit_of_counter, wait_keys
from monitel_otel.prometheus import stored_names
from monitel_otel.units import unit_of_number

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("monitel.otel")

_INVALID = re.compile(r"[^A-Za-z0-9_./-]")
_LONGEST = 255 - len(".number_99.wait.active")  # leaves room for the longest suffixes

Source = tuple[str, str]  # kind and name
Metrics = dict[str, tuple[str, bool]]  # suffix, unit, and True for a monotonic sum

_OWN = "metric of monitel"
_WORDS = {"Stat": ".stat", "logged number": ".number", "counter": ".counter"}
#: The metrics of a wait counter: time and number of the waits that have ended, waits in progress, the longest wait.
WAITS: Metrics = {
    ".wait.time": ("s", True),
    ".wait.count": ("{wait}", True),
    ".wait.active": ("{wait}", False),
    ".wait.max": ("s", False),
}
_DISTRIBUTION = ("p50", "p90", "p95", "p99", "histogram")


def metric_name(name: str) -> str:
    """Return ``name`` changed to OpenTelemetry's syntax for instrument names.

    Invalid characters become ``_``; a name that does not begin with a letter gets the prefix ``stat_``. A long name is
    cut.

    Example:
        >>> from monitel_otel import metric_name
        >>> metric_name("train.loss"), metric_name("step time"), metric_name("1st")
        ('train.loss', 'step_time', 'stat_1st')
    """
    cleaned = _INVALID.sub("_", name)
    if not cleaned[:1].isalpha():
        cleaned = f"stat_{cleaned}"
    return cleaned[:_LONGEST]


class MetricNames:
    """Gives each Stat, logged number, counter and wait counter metric names that no other one has.

    Names are compared without case, as in OpenTelemetry, and as Prometheus stores them: with ``.``, ``/``, ``-`` and
    ``_`` alike, with the unit, and ``_total`` after a monotonic sum. The first source of a name keeps it. A later
    source of another kind gets the name with its kind (``loss.counter``), and a wait counter or one of the same kind
    the name with a number (``loss_2``). A warning is logged once for such a source. A name that was given stays until
    the process ends.

    A counter and a wait counter count from their creation, a Stat from its first window, and a number from its first
    call.

    Thread-safe. Takes no lock, so that a signal handler may call it.

    Example:
        >>> import monitel
        >>> from monitel_otel import MetricNames
        >>> names = MetricNames()
        >>> names.of_stat("loss", (monitel.MEAN,)), names.of_number("loss"), names.of_counter("loss")
        ('loss', 'loss', 'loss.counter')
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, object], str] = {}
        self._used: dict[Source, tuple[str, ...]] = {}  # the names of a source, without suffixes
        self._owners: dict[str, Source] = {}
        self._reserved: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._warned: dict[Source, object] = {}
        self._counters = self._wait_counters = 0  # how many of them have names

    def of_stat(
        self, name: str, aggregations: tuple[monitel.Aggregation, ...], unit: str = "", monotonic: bool = False
    ) -> str:
        """Return the metric name of a Stat, without the suffix of an aggregation.

        Args:
            name: The Stat's name.
            aggregations: Its aggregations.
            unit: Its unit.
            monotonic: True if its sum never falls.
        """
        key = "Stat", name, (aggregations, unit, monotonic)
        found = self._known.get(key)
        if found is not None:
            return found
        self._name_counters()
        metrics: Metrics = {}
        for aggregation in aggregations:
            if aggregation is monitel.HISTOGRAM:
                metrics.update((f".{suffix}", (unit, False)) for suffix in _DISTRIBUTION)
            elif aggregation is monitel.COUNT:
                metrics[".count"] = "{sample}", True
            else:
                metrics[f".{aggregation.suffix}"] = unit, monotonic and aggregation is monitel.SUM
        return self._known.setdefault(key, self._choose(("Stat", name), metrics))

    def of_number(self, name: str) -> str:
        """Return the metric name of a logged number."""
        return self._of("logged number", name)

    def of_counter(self, name: str) -> str:
        """Return the metric name of a counter."""
        return self._of("counter", name)

    def of_wait_counter(self, key: str) -> str:
        """Return the metric name of a wait counter, without the suffix, such as ``.wait.time``."""
        return self._of("wait counter", key)

    def reserve(self, *metrics: str, unit: str = "", monotonic: bool = True, kind: str = _OWN) -> None:
        """Add the names of metrics of monitel itself, which no other source gets from now on.

        Args:
            *metrics: The names.
            unit: Their unit.
            monotonic: True for counters.
            kind: ``"counter"`` if they are counters of the core, which get their names like those of the application.
        """
        for metric in metrics:
            for key in _keys(metric, {"": (unit, monotonic)}):
                self._owners.setdefault(key, (kind, metric))
                self._reserved.add(key)

    def forget(self) -> None:
        """Forget all names but the reserved ones, for tests."""
        for key in self._owners.keys() - self._reserved:
            del self._owners[key]
        self._known.clear()
        self._used.clear()
        self._numbers.clear()
        self._warned.clear()
        self._counters = self._wait_counters = 0

    def _of(self, kind: str, name: str) -> str:
        found = self._known.get((kind, name, None))
        if found is not None:
            return found
        self._name_counters()
        return self._new(kind, name)

    def _new(self, kind: str, name: str) -> str:
        metrics = WAITS
        if kind == "logged number":
            metrics = {"": (unit_of_number(name), False)}
        elif kind == "counter":
            metrics = {"": (unit_of_counter(name), True)}
        return self._known.setdefault((kind, name, None), self._choose((kind, name), metrics))

    def _name_counters(self) -> None:
        """Give names to the counters and wait counters that exist already, so that no export decides who is first."""
        if self._counters < len(counter_names()):
            names = list(counter_names())
            for name in names[self._counters :]:
                self._new("counter", name)
            self._counters = len(names)
        if self._wait_counters < len(wait_keys()):
            keys = list(wait_keys())
            for key in keys[self._wait_counters :]:
                self._new("wait counter", key)
            self._wait_counters = len(keys)

    def _choose(self, source: Source, metrics: Metrics) -> str:
        """Return a name with which all metrics of a source are free, and take them.

        Args:
            source: The source.
            metrics: The suffixes of its metrics.
        """
        wanted = metric_name(source[1])
        for name in self._candidates(source, wanted, metrics):
            keys = _keys(name, metrics)
            if all(self._owners.get(key, source) == source for key in keys) and all(
                self._owners.setdefault(key, source) == source for key in keys
            ):
                break  # else another thread was faster
        self._used[source] = tuple(dict.fromkeys([*self._used.get(source, ()), name]))
        if name != wanted and (conflict := self._conflict(source, wanted, metrics)) is not None:
            self._warn(source, *conflict, name)
        return name

    def _conflict(self, source: Source, name: str, metrics: Metrics) -> tuple[str, Source] | None:
        """Return the first metric that another source has, in words, and that source."""
        for suffix, metric in metrics.items():
            for added, key in enumerate(_keys(name, {suffix: metric})):
                owner = self._owners.get(key, source)
                if owner != source:
                    return f"{key!r} in Prometheus" if added else repr(f"{name}{suffix}"), owner
        return None

    def _candidates(self, source: Source, wanted: str, metrics: Metrics) -> Iterator[str]:
        """Yield names to try, first those that the source has for other metrics."""
        yield from self._used.get(source, ())
        yield wanted
        conflict = self._conflict(source, wanted, metrics)
        if conflict is not None and conflict[1][0] != source[0] and source[0] in _WORDS:
            wanted += _WORDS[source[0]]
            yield wanted
        for number in count(self._numbers.get(wanted, 2)):
            self._numbers[wanted] = number  # thousands of names may have one form, and lower numbers are in use
            yield f"{wanted}_{number}"

    def _warn(self, source: Source, metric: str, owner: Source, name: str) -> None:
        token = object()
        if self._warned.setdefault(source, token) is token:
            _log.warning(
                "%s %r and %s %r have the same metric name %s: %s %r is sent as %r. Rename one of them.",
                *(*owner, *source, metric, *source, name),
            )


def _keys(name: str, metrics: Metrics) -> list[str]:
    """Return the names of metrics as they are compared."""
    return [
        key
        for suffix, (unit, monotonic) in metrics.items()
        for key in stored_names(f"{name}{suffix}", unit, monotonic=monotonic)
    ]


#: The metric names of this process, for all exporters: a source has the same name in each of them.
NAMES = MetricNames()
NAMES.reserve("training.step")
NAMES.reserve("training.goodput", unit="1", monotonic=False)
NAMES.reserve("training.time", unit="s", kind="counter")  # of each process with a ledger


def describe(name: str, description: str, metric: str | None = None) -> str:
    """Return a metric's description: that of the Stat, and the Stat's name if the metric has another one.

    Args:
        name: The Stat's name.
        description: The Stat's description.
        metric: The metric name without suffix; by default that of :func:`metric_name`.
    """
    if (metric or metric_name(name)) == name:
        return description
    return f"{description} (Stat {name!r})" if description else f"Stat {name!r}"
