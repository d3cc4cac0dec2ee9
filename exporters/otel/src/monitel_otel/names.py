"""From a Stat's name to a metric's name that every OpenTelemetry backend takes."""

from __future__ import annotations

import logging
import re

_log = logging.getLogger("monitel.otel")

_REFUSED = re.compile(r"[^A-Za-z0-9_./-]")
_LONGEST = 255 - len(".nonfinite")  # room for what is appended


def metric_name(name: str) -> str:
    """``name`` by OpenTelemetry's rule (metrics API, instrument name syntax).

    What the rule refuses becomes ``_``; a name that does not begin with a letter gets ``stat_`` before it.

    Example:
        >>> from monitel_otel import metric_name
        >>> metric_name("train.loss"), metric_name("step time"), metric_name("1st")
        ('train.loss', 'step_time', 'stat_1st')
    """
    cleaned = _REFUSED.sub("_", name)
    if not cleaned[:1].isalpha():
        cleaned = f"stat_{cleaned}"
    return cleaned[:_LONGEST]


class MetricNames:
    """The names of one exporter: tells once when two Stats' names become one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._owners: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The metric name for a Stat's name."""
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = metric_name(name)
            owner = self._owners.setdefault(known.lower(), name)  # names differ by more than case, says the spec
            if owner != name:
                _log.warning("Stats %r and %r have the same metric name %r: rename one", owner, name, known)
        return known


def describe(name: str, description: str) -> str:
    """A metric's description: the user's, and the Stat's own name where the metric could not have it."""
    if metric_name(name) == name:
        return description
    return f"{description} (Stat {name!r})" if description else f"Stat {name!r}"
