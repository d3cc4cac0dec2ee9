"""A run with known numbers, and its curves."""

from typing import Any

from tests.unit.console.made_processes import START, S

from monitel.console.runs import Run
from monitel.runs.curves import Curve, Point
from monitel.runs.history import RunTime

#: A text that leaves its place in a page, if that does not escape it.
HOSTILE = (
    "</title></style></svg>\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\x00\x1b[2J\ud800\u202e\r\n"
)
TIMES = {"startup": 10 * S, "step": 78 * S, "data": 10 * S, "my <own>": 2 * S}


def made_run(activities: dict[str, int] | None = None, **fields: Any) -> Run:
    time = RunTime(
        "run-7", TIMES if activities is None else activities, 2, START + 100 * S, "completed", last_step=1200
    )
    return Run(time, **{"outcome": "completed", **fields})


def curve(name: str, *values: float, last: float | None = None, unit: str = "", **attributes: Any) -> Curve:
    points = tuple(Point(step, each, each, each) for step, each in enumerate(values, 1))
    return Curve(name, tuple(attributes.items()), unit, points, values[-1] if last is None else last)
