"""Metrics that are not values of the training: those of monitel, its wait counters, the process and the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel_otel.names import WAITS, stored_names

if TYPE_CHECKING:
    from collections.abc import Iterable

_OWN = "monitel_"  # beginning of the names of monitel's metrics
_ACTIVE = "_wait_active"  # every wait counter has this metric, and a Stat cannot have it
_SUMS = {
    "training.time": "s",
    **dict.fromkeys(("process.cpu.time", "system.cpu.time"), "s"),
    **dict.fromkeys(("process.disk.io", "system.disk.io", "system.network.io"), "By"),
}
_OTHERS = {
    **dict.fromkeys(("training.goodput", "hw.gpu.utilization"), "1"),
    **dict.fromkeys(("process.thread.count", "process.open_file_descriptor.count"), ""),
    **dict.fromkeys(("process.memory.usage", "system.memory.usage"), "By"),
    **dict.fromkeys(("hw.gpu.memory.usage", "hw.gpu.memory.limit"), "By"),
    "hw.power": "W",
    "hw.temperature": "Cel",
}
_KNOWN = {
    *(each for name, unit in _SUMS.items() for each in stored_names(name, unit, monotonic=True)),
    *(each for name, unit in _OTHERS.items() for each in stored_names(name, unit, monotonic=False)),
}


def internal_metrics(names: Iterable[str]) -> set[str]:
    """Return the metrics that are not values of the training.

    Args:
        names: Names of all metrics of a run, as monitel sends them or as Prometheus stores them. A wait counter is
            recognized by its metric ``<key>.wait.active``.

    Example:
        >>> sorted(internal_metrics(["loss", "process.cpu.time", "process.reward", "monitel.windows"]))
        ['monitel.windows', 'process.cpu.time']
    """
    words = {name: stored_names(name, "", monotonic=False)[0] for name in names}
    keys = {each.removesuffix(_ACTIVE) for each in words.values() if each.endswith(_ACTIVE)}
    waits = {
        stored
        for key in keys
        for suffix, (unit, monotonic) in WAITS.items()
        for stored in stored_names(f"{key}{suffix}", unit, monotonic=monotonic)
    }
    return {name for name, each in words.items() if each.startswith(_OWN) or each in _KNOWN or each in waits}
