"""Conversion of a run's configuration to a table and to hyperparameters."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NamedTuple

from monitel_tensorboard.point import Hyperparameters, Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from monitel import RunConfig

_TAG = "run.config"
_HYPERPARAMETERS_TAG = "_hparams_/session_start_info"  # TensorBoard's


class LoggedConfig(NamedTuple):
    """A configuration in the queue; the writer's thread converts it to points."""

    event: RunConfig

    @property
    def size(self) -> int:
        """Number of points: the table and the hyperparameters."""
        return 2

    def points(self) -> Iterator[Point]:
        """Yield the table for the text tab, and the hyperparameters for the tab of that name."""
        walltime = self.event.timestamp.timestamp()
        values = dict(_flat(self.event.config, ""))
        yield Point(_TAG, _table(values), 0, walltime)
        yield Point(_HYPERPARAMETERS_TAG, Hyperparameters(values), 0, walltime)


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str | bool | float]]:
    """Yield each value with its dotted name. None, lists, empty dicts, and floats that are not finite become JSON."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
            yield f"{prefix}{key}", value
        else:
            yield f"{prefix}{key}", json.dumps(value)


def _table(values: Mapping[str, str | bool | float]) -> str:
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| name | value |", "|---|---|", *rows])


def _cell(value: str | bool | float) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.split()).replace("|", "\\|")
