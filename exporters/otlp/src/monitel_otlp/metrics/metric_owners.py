"""Owners of metric names: Stats, logged numbers, counters and the step."""

from __future__ import annotations

import logging

_log = logging.getLogger("monitel.otlp")


class MetricOwners:
    """The kind of each metric name in use. Logs a warning, once per name, if two kinds use the same name.

    Both metrics are sent even so: a backend such as Prometheus may tell them apart by their type.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._shared: set[str] = set()

    def add(self, kind: str, *metrics: str) -> None:
        """Add the metric names of one kind, such as ``"counter"``."""
        for metric in metrics:
            key = metric.lower()  # the specification ignores case
            first = self._kinds.setdefault(key, kind)
            if first != kind and key not in self._shared:
                self._shared.add(key)
                _log.warning("a %s and a %s have the same metric name %r: rename one", first, kind, metric)
