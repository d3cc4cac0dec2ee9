"""Names that every OpenTelemetry backend accepts: one for each metric, and one metric for each; those of attributes."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

import monitel
from monitel.attributes import ascii_text, attribute_name
from monitel.counter import first_of_names
from monitel.process.failures import warn_once
from monitel.wait_counter import wait_keys

_log = logging.getLogger("monitel.otel")

_INVALID = re.compile(r"[^A-Za-z0-9_./-]")
_WORD = re.compile(r"[a-z0-9]+")
_ANNOTATION = re.compile(r"\{[^}]*\}")
_LONGEST = 255 - len(".number_99.wait.active")  # leaves room for the longest suffixes

Source = tuple[str, str]  # kind and name
Metrics = tuple[tuple[str, str, bool], ...]  # suffix, unit, and True for a monotonic sum

#: Kinds of sources: what is added to the name of a later one, and the name in the program in a description.
_KINDS = {
    "Stat": (".stat", "Stat {!r:.255}"),
    "logged number": (".number", "Logged as {!r:.255}"),
    "counter": (".counter", "Counted as {!r:.255}"),
    "wait counter": ("", "WaitCounter {!r:.255}"),
}
#: Suffix, unit, and True for a monotonic sum, of each metric of a wait counter; and its description.
_WAITS = {
    (".wait.time", "s", True): "Time spent waiting",
    (".wait.count", "{wait}", True): "Waits that have ended",
    (".wait.active", "{wait}", False): "Waits in progress",
    (".wait.max", "s", False): "The longest wait that ended since the last export",
}
_DISTRIBUTION = ("p50", "p90", "p95", "p99", "histogram")


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


# Units in words, as Prometheus adds them to names.
_UNITS = _pairs(
    "By:bytes kBy:kilobytes MBy:megabytes GBy:gigabytes TBy:terabytes KiBy:kibibytes MiBy:mebibytes GiBy:gibibytes "
    "TiBy:tebibytes d:days h:hours min:minutes s:seconds ms:milliseconds us:microseconds ns:nanoseconds m:meters "
    "V:volts A:amperes J:joules W:watts g:grams Cel:celsius Hz:hertz %:percent 1:"
)
_PER = _pairs("s:second m:minute h:hour d:day w:week mo:month y:year")


def _stored(words: list[str], unit: str, *, monotonic: bool) -> list[str]:
    """Return the names of a metric in lower case, with ``_`` for all separators: without and with what Prometheus adds.

    Prometheus adds the unit in words, ``total`` to a monotonic sum, and ``ratio`` to another metric with the unit 1,
    each unless the name has it. A backend may be configured to add no unit. The first name has no additions:
    ``disk.read`` in bytes is ``disk_read``, ``disk_read_total`` and ``disk_read_bytes_total``.
    """
    (added, divisor), last = _words_of_unit(unit), _last(unit, monotonic=monotonic)
    found = [words]
    if unit:
        of_unit = [] if set(added) <= set(words) else added
        found.append([*words, *of_unit, *([] if set(divisor) <= set(words) else ["per", *divisor])])
    if last:
        found[1:] = [[*(word for word in each if word != last), last] for each in found]
    return list(dict.fromkeys(map("_".join, found)))


def _last(unit: str, *, monotonic: bool) -> str:
    return "total" if monotonic else "ratio" if unit == "1" else ""


@lru_cache(1000)
def _words_of_unit(unit: str) -> tuple[list[str], list[str]]:
    main, _, per = _ANNOTATION.sub("", unit).partition("/")
    return _words(_UNITS.get(main, main)), _words(_PER.get(per, per))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


@lru_cache(1000)
def _metrics_of(aggregations: tuple[monitel.Aggregation, ...], unit: str, *, monotonic: bool) -> Metrics:
    found: list[tuple[str, str, bool]] = []
    for each in aggregations:
        if each is monitel.HISTOGRAM:
            found += [(f".{suffix}", unit, False) for suffix in _DISTRIBUTION]
        elif each is monitel.COUNT:
            found.append((".count", "{sample}", True))
        else:
            found.append((f".{each.suffix}", unit, monotonic and each is monitel.SUM))
    return tuple(found)


@lru_cache(1000)
def _endings(metrics: Metrics) -> tuple[list[tuple[str, str]], set[str]]:
    """Return what follows a name in the stored names of its metrics, each with its suffix, and the words to add."""
    endings, added = [], set[str]()
    for suffix, unit, monotonic in metrics:
        stored = _stored(_words(suffix), unit, monotonic=monotonic)
        endings += [(f"_{each}" if each else "", suffix) for each in stored]
        added.update(*_words_of_unit(unit), [_last(unit, monotonic=monotonic)])
    return endings, added


def _all_stored(name: str, metrics: Metrics) -> dict[str, str]:
    """Return the stored names of all metrics of a name, each with the suffix of its metric."""
    words = _words(name)
    endings, added = _endings(metrics)
    if added.isdisjoint(words):  # the name changes no addition
        begin = "_".join(words)
        return {begin + ending: suffix for ending, suffix in endings}
    return {
        key: suffix
        for suffix, unit, monotonic in metrics
        for key in _stored([*words, *_words(suffix)], unit, monotonic=monotonic)
    }


def metric_name(name: str) -> str:
    """Return ``name`` changed to OpenTelemetry's syntax for instrument names, and cut if it is long."""
    cleaned = _INVALID.sub("_", ascii_text(name[:_LONGEST]))
    return (cleaned if cleaned[:1].isalpha() else f"stat_{cleaned}")[:_LONGEST]


def unit_of_number(name: str) -> str:
    """Return the unit of a number of ``monitel.log()``, which takes none: ``"1"`` for monitel's ``training.mfu``."""
    return "1" if name == "training.mfu" else ""


def describe(kind: str, name: str, metric: str, description: str = "") -> str:
    """Return the description of a source's metric, with the source's name if the metric has another one."""
    if metric == name:
        return description
    note = _KINDS[kind][1].format(name)
    return f"{description} ({note})" if description else note


class MetricNames:
    """Gives each Stat, logged number, counter and wait counter metric names that no other one has.

    Names are compared as Prometheus stores them. The first source of a name keeps it, until the process ends. A later
    source of another kind gets the name with its kind (``loss.counter``), and a wait counter or one of the same kind
    the name with a number (``loss_2``).

    Thread-safe. Takes no lock, so that a signal handler may call it.
    """

    def __init__(self) -> None:
        self._reserved: dict[str, Source] = {}
        self.forget()

    def forget(self) -> None:
        """Forget all names but the reserved ones, for tests."""
        self._known: dict[tuple[object, ...], str] = {}  # by kind, name and, of a Stat, what else decides
        self._owners = dict(self._reserved)  # by stored name
        self._first: dict[str, monitel.StatDefinition] = {}  # by metric name
        self._used: dict[Source, tuple[str, ...]] = {}  # the names of a source, without suffixes
        self._numbers: dict[str, int] = {}
        self._named: dict[str, int] = {}  # how many counters and wait counters have names

    def reserve(self, *metrics: str, unit: str = "", monotonic: bool = True, kind: str = "metric of monitel") -> None:
        """Keep the names of metrics of monitel itself from other sources. A ``"counter"`` is one of the core."""
        for metric in metrics:
            for key in _all_stored(metric, (("", unit, monotonic),)):
                self._reserved.setdefault(key, self._owners.setdefault(key, (kind, metric)))

    def of_stat(self, stat: monitel.StatDefinition) -> tuple[str, monitel.StatDefinition]:
        """Return the metric name of a Stat, without the suffix of an aggregation, and the first Stat of that name.

        The first Stat decides unit and monotonicity of the metric; one warning is logged for another one that differs.
        """
        key = "Stat", stat.name, stat.aggregations, stat.unit, stat.monotonic
        if (name := self._known.get(key)) is None:
            self._name_counters()
            metrics = _metrics_of(stat.aggregations, stat.unit, monotonic=stat.monotonic)
            name = self._known.setdefault(key, self._choose(("Stat", stat.name), metrics))
        first = self._first.setdefault(name, stat)
        if first is not stat and (first.unit, first.monotonic) != (stat.unit, stat.monotonic):
            warn_once(
                _log,
                "Stats of one metric differ: %r has unit %r and monotonic=%s, %r has unit %r and monotonic=%s; "
                "using those of the first",
                *(first.name, first.unit, first.monotonic),
                *(stat.name, stat.unit, stat.monotonic),
                key=name,
            )
        return name, first

    def of(self, kind: str, name: str) -> str:
        """Return the metric name of a logged number, a counter, or a wait counter, the last one without suffix."""
        if (found := self._known.get((kind, name))) is not None:
            return found
        self._name_counters()
        return self._new(kind, name)

    def _new(self, kind: str, name: str) -> str:
        metrics: Metrics = tuple(_WAITS)
        if kind == "counter":
            metrics = (("", first_of_names()[name].unit if name in first_of_names() else "", True),)
        elif kind == "logged number":
            metrics = (("", unit_of_number(name), False),)
        return self._known.setdefault((kind, name), self._choose((kind, name), metrics))

    def _name_counters(self) -> None:
        """Give names to the counters and wait counters that exist already, so that no export decides who is first."""
        for kind, names in (("counter", first_of_names()), ("wait counter", wait_keys())):
            if (named := self._named.get(kind, 0)) < len(names):
                found = list(names)
                for name in found[named:]:
                    self._new(kind, name)
                self._named[kind] = len(found)

    def _choose(self, source: Source, metrics: Metrics) -> str:
        """Return a name with which all metrics of a source are free, and take them."""
        wanted, used = metric_name(source[1]), self._used.get(source, ())
        for name in (*used, wanted):  # the names that the source has for other metrics come first
            conflict = self._take(source, name, metrics)
            if conflict is None:
                break
        if conflict is not None:
            metric, owner = conflict
            name = next(name for name in self._others(source, wanted, owner) if not self._take(source, name, metrics))
            if not used:
                _log.warning(
                    "%s %.255r and %s %.255r have the same metric name %r: %s %.255r is sent as %r. "
                    "Rename one of them.",
                    *(*owner, *source, metric, *source, name),
                )
        if name not in used:
            self._used[source] = (*used, name)
        return name

    def _take(self, source: Source, name: str, metrics: Metrics) -> tuple[str, Source] | None:
        """Take the names of all metrics; if another source has one of them, return that metric and that source."""
        stored = _all_stored(name, metrics)
        for owner_of in (self._owners.get, self._owners.setdefault):
            for key, suffix in stored.items():
                if (owner := owner_of(key, source)) != source:
                    return name + suffix, owner
        return None

    def _others(self, source: Source, wanted: str, owner: Source) -> Iterator[str]:
        """Yield names to try instead of one that another source owns."""
        if owner[0] != source[0] and (word := _KINDS[source[0]][0]):
            wanted += word
            yield wanted
        for number in count(self._numbers.get(wanted, 2)):
            self._numbers[wanted] = number  # thousands of names may have one form, and lower numbers are in use
            yield f"{wanted}_{number}"


#: The metric names of this process, for all exporters: a source has the same name in each of them.
NAMES = MetricNames()
NAMES.reserve("training.step")
NAMES.reserve("training.goodput", unit="1", monotonic=False)
NAMES.reserve("training.time", unit="s", kind="counter")  # of each process with a ledger


def wait_metrics(key: str) -> list[tuple[str, str, str]]:
    """Return name, unit and description of each metric of a wait counter: time, number, in progress, the longest."""
    name = NAMES.of("wait counter", key)
    found = _WAITS.items()
    return [(f"{name}{end}", unit, describe("wait counter", key, name, text)) for (end, unit, _), text in found]


def with_sent_names(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes under the names that are sent."""
    return {attribute_name(name): value for name, value in attributes.items()}
