"""Metric names that every OpenTelemetry backend accepts, derived from the names of Stats."""

from __future__ import annotations

import logging
import re

_log = logging.getLogger("monitel.otel")

_INVALID = re.compile(r"[^A-Za-z0-9_./-]")
_LONGEST = 255 - len(".nonfinite")  # leaves room for a suffix


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
    """The metric names of one exporter. Logs a warning, once, if two names become the same.

    Args:
        noun: What the names belong to, for the warning.
    """

    def __init__(self, noun: str = "Stats") -> None:
        self._noun = noun
        self._names: dict[str, str] = {}
        self._owners: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the metric name for a Stat's name."""
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = metric_name(name)
            owner = self._owners.setdefault(known.lower(), name)  # the specification ignores case
            if owner != name:
                _log.warning("%s %r and %r have the same metric name %r: rename one", self._noun, owner, name, known)
        return known


def describe(name: str, description: str) -> str:
    """Return a metric's description: that of the Stat, and the Stat's name if the metric has another one."""
    if metric_name(name) == name:
        return description
    return f"{description} (Stat {name!r})" if description else f"Stat {name!r}"
