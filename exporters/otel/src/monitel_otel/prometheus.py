"""Names under which Prometheus stores metrics."""

from __future__ import annotations

import re

_SEPARATORS = re.compile(r"[^a-z0-9]+")
_ANNOTATION = re.compile(r"\{[^}]*\}")
_PREFIXES = {"k": "kilo", "M": "mega", "G": "giga", "T": "tera", "Ki": "kibi", "Mi": "mebi", "Gi": "gibi", "Ti": "tebi"}
_UNITS = {
    **{f"{short}By": f"{prefix}bytes" for short, prefix in _PREFIXES.items()},
    "By": "bytes",
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "g": "grams",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
    "1": "",
}
_PER = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


def stored_names(metric: str, unit: str, *, monotonic: bool) -> list[str]:
    """Return the names of a metric in lower case, with ``_`` for all separators: without and with what Prometheus adds.

    Prometheus adds the unit in words, ``total`` to a monotonic sum, and ``ratio`` to another metric with the unit 1,
    each unless the name has it. A backend may be configured to add no unit. The first name has no additions.

    Args:
        metric: The metric name.
        unit: Its UCUM unit.
        monotonic: True for a monotonic sum.

    Example:
        >>> from monitel_otel.prometheus import stored_names
        >>> stored_names("disk.read", "By", monotonic=True)
        ['disk_read', 'disk_read_total', 'disk_read_bytes_total']
    """
    words = _words(metric)
    last = "total" if monotonic else "ratio" if unit == "1" else ""
    found = (words, _with(words, last), _with([*words, *_added(unit, words)], last))
    return list(dict.fromkeys("_".join(each) for each in found))


def _added(unit: str, words: list[str]) -> list[str]:
    """Return the words of a unit that a name does not have yet."""
    main, _, per = _ANNOTATION.sub("", unit).partition("/")
    added = _words(_UNITS.get(main, main))
    if set(added) <= set(words):
        added = []
    divisor = _words(_PER.get(per, per))
    return added if set(divisor) <= set(words) else [*added, "per", *divisor]


def _with(words: list[str], last: str) -> list[str]:
    return [*(word for word in words if word != last), last] if last else words


def _words(text: str) -> list[str]:
    return [word for word in _SEPARATORS.split(text.lower()) if word]
