"""Arrivals at a backend: the numbers, counters and ends of trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.receiver import Receiver

_WORK = ("training.step", "training.steps", "training.samples", "training.tokens")


def numbers(receiver: Receiver) -> list[tuple[int, dict[str, float]]]:
    """Return the step and the numbers of each call of monitel.log."""
    return [(record.attributes["training.step"], record.body) for record in receiver.records("run.log")]


def totals(receiver: Receiver) -> dict[str, float]:
    """Return the last values of the counters and of the step."""
    found = {name: receiver.values(name) for name in _WORK}
    return {name: values[-1] for name, values in found.items() if values}


def totals_of_processes(receiver: Receiver) -> list[dict[str, float]]:
    """Return the last values of the counters and of the step, of each process."""
    found: dict[str, dict[str, float]] = {}
    for point in receiver.all_points():
        if point.metric in _WORK:
            found.setdefault(point.resource["service.instance.id"], {})[point.metric] = point.value
    return list(found.values())


def status(receiver: Receiver) -> list[str]:
    """Return how the runs ended."""
    return [record.attributes["run.status"] for record in receiver.records("run.ended")]
