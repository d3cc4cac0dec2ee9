"""Names and units of every metric that monitel defines, by the rules of the semantic conventions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.unit.promises.reference_tables import code, kind_of, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "metrics-and-events.md"
THEIRS = ("process.", "system.memory.", "system.disk.", "system.network.")  # of OpenTelemetry's instrumentor

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z0-9]+(_[a-z0-9]+)*)+")
_UNIT_IN_NAME = re.compile(
    r"(?:[._]|^)(?:total|ratio|percent|s|ms|us|ns|seconds?|milliseconds?|bytes?|watts?|celsius)(?:[._]|$)"
)
_ANNOTATION = re.compile(r"\{[a-z]+\}")
_UNITS = {"s", "By", "W", "Cel", "1"}
_SECONDS = {"duration", "time"}
_RATIOS = {"utilization", "mfu", "goodput"}
_RATES = {"rate"}  # amounts per second of wall time, logged as numbers without unit


def violations(name: str, kind: str, unit: str) -> list[str]:
    """Return the rules that a metric breaks; its kind is gauge, sum or histogram."""
    *_, last = name.split(".")
    is_ratio = unit == "1"
    rules = {
        "lower case words, separated by dots": _NAME.fullmatch(name),
        "no unit and no total in the name": not _UNIT_IN_NAME.search(name),
        "a unit of the conventions, or one thing in braces": unit in _UNITS or _ANNOTATION.fullmatch(unit),
        "the thing in braces is singular": not unit.endswith("s}") or unit.endswith("ss}"),
        "durations in seconds": last not in _SECONDS or unit == "s",
        "ratios have the unit 1": is_ratio == (last in _RATIOS),
        "ratios are gauges": not is_ratio or kind == "gauge",
        "a plural only for things that are counted": not last.endswith("s") or unit == f"{{{last[:-1]}}}",
        "a sum counts things, time or bytes": kind == "gauge" or unit in {"s", "By"} or _ANNOTATION.fullmatch(unit),
    }
    if last in _RATES and not unit:
        rules.pop("a unit of the conventions, or one thing in braces")
    return [rule for rule, kept in rules.items() if not kept]


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield name, kind and unit of each metric in the tables of monitel's metrics."""
    for rows in tables(PAGE, "name", "kind, unit"):
        for names, described, *_ in rows:
            unit = re.match(r"[a-z -]+, `([^`]+)`", described)
            yield from ((name, kind_of(described)[0], unit[1] if unit else "") for name in code(names))
    for rows in tables(PAGE, "Stat", "unit", under="torch sources"):
        yield from ((code(row[0])[0], "histogram", code(row[1])[0]) for row in rows)


def test_documented_metrics_follow_the_conventions() -> None:
    """Each metric of the reference has a name and a unit by the rules of the semantic conventions."""
    metrics = [each for each in documented() if not each[0].startswith(THEIRS)]
    assert len(metrics) > 30
    assert {} == {name: broken for name, kind, unit in metrics if (broken := violations(name, kind, unit))}


def test_rules_find_a_wrong_metric() -> None:
    """Each of these breaks a rule."""
    wrong = [
        *(("training.step_total", "sum", "{step}"), ("training.time_ms", "gauge", "s")),
        *(("hw.gpu.utilization", "gauge", "%"), ("training.samples", "sum", "{samples}")),
        *(("monitel.windows", "gauge", "{value}"), ("Training.Loss", "gauge", "1")),
    ]
    assert [] == [each for each in wrong if not violations(*each)]
