"""Names, kinds and units of metrics: in one scope, over all requests of a process, and as Prometheus stores them."""

import re
from collections.abc import Iterable
from typing import Any

from tests.support.validity.envelope import OWN, Scoped
from tests.support.validity.rules import Findings

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,254}")
_ANNOTATION = re.compile(r"(?:1|\{[\x21-\x7a|~]+\})?")  # a counter may have no unit
_PREFIXED = {"s", "By", "bit", "m", "g", "W", "J", "V", "A", "Hz", "K", "Pa", "N", "C", "F", "Ohm", "lm", "lx"}
_PREFIXES = ("", *("Ki", "Mi", "Gi", "Ti"), *"numkMGT")
_ATOMS = {"", "1", "%", "min", "h", "d", "wk", "mo", "a", "Cel", "[degF]"} | {
    prefix + unit for unit in _PREFIXED for prefix in _PREFIXES
}
_PROMETHEUS_UNITS = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "min": "minutes",
    "h": "hours",
    "d": "days",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "%": "percent",
    "W": "watts",
    "J": "joules",
    "Cel": "celsius",
    "Hz": "hertz",
    "V": "volts",
    "A": "amperes",
}


class Names:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._meanings: dict[tuple[bytes, str, str], tuple[object, ...]] = {}
        self._stored: dict[tuple[bytes, str], tuple[str, str]] = {}

    def check(self, scoped: Scoped) -> None:
        seen: set[str] = set()
        for number, metric in enumerate(scoped.records):
            path = f"{scoped.path}[{number}] {metric.name}"
            self._findings.check(metric.name.lower() not in seen, "metric.twice", path)
            seen.add(metric.name.lower())
            key = (scoped.resource, scoped.scope, metric.name)
            meaning = meaning_of(metric)
            kept = self._meanings.get(key)
            if kept is None:
                self._meanings[key] = meaning
                self._first(scoped, metric, path)
            else:
                self._findings.check(kept == meaning, "metric.changed", path, f"{meaning}, earlier {kept}")

    def _first(self, scoped: Scoped, metric: Any, path: str) -> None:
        findings = self._findings
        findings.check(_NAME.fullmatch(metric.name), "metric.name", path, repr(metric.name))
        if scoped.scope == OWN:
            findings.check(not metric.name.endswith(".total"), "metric.total", path)
            findings.check(is_unit(metric.unit), "metric.unit", path, repr(metric.unit))
            if metric.name.endswith(".count") and metric.WhichOneof("data") == "sum":
                findings.check(_ANNOTATION.fullmatch(metric.unit), "metric.count.unit", path, repr(metric.unit))
        for name in prometheus_names(metric):
            source = (scoped.scope, metric.name)
            kept = self._stored.setdefault((scoped.resource, name), source)
            findings.check(kept == source, "metric.prometheus", path, f"{name}: {source[1]} and {kept[1]}")


def meaning_of(metric: Any) -> tuple[object, ...]:
    """Return what must stay the same for one name: kind, unit, temporality, monotonicity."""
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind) if kind else None
    temporality = getattr(data, "aggregation_temporality", None)
    return kind, metric.unit, temporality, getattr(data, "is_monotonic", None)


def is_unit(unit: str) -> bool:
    """Return True for products and quotients of UCUM's units and annotations, as far as telemetry uses them."""
    if len(unit) > 63:
        return False
    parts = re.split(r"[/.]", re.sub(r"\{[\x21-\x7a|~]*\}", "1", unit))
    return all(part in _ATOMS or part.rstrip("0123456789") in _ATOMS for part in parts)


def prometheus_names(metric: Any) -> list[str]:
    """Return the names under which Prometheus stores a metric, in lower case, without repeated underscores.

    A histogram with explicit bounds is stored as three series.
    """
    kind = metric.WhichOneof("data")
    words = _words(metric.name)
    counts = kind == "sum" and metric.sum.is_monotonic
    for unit, joint in zip(re.sub(r"\{.*?\}", "", metric.unit).split("/"), ([], ["per"]), strict=False):
        written = _words(_PROMETHEUS_UNITS.get(unit, unit if unit != "1" else ""))
        if written and not set(written) <= set(words):
            words += joint + written
    if counts:
        words = [*(word for word in words if word != "total"), "total"]
    if kind == "gauge" and metric.unit == "1":
        words = [*(word for word in words if word != "ratio"), "ratio"]
    name = "_".join(words)
    return [f"{name}_{part}" for part in ("bucket", "count", "sum")] if kind == "histogram" else [name]


def stored_names(messages: Iterable[Any]) -> set[str]:
    scopes = [scope for each in messages for resource in each.resource_metrics for scope in resource.scope_metrics]
    return {name for scope in scopes for metric in scope.metrics for name in prometheus_names(metric)}


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
