"""Environment variables of arguments that require each other: contradictions are warnings, and no text raises."""

from __future__ import annotations

import math
from typing import Any

import pytest

from monitel import variables
from monitel.variables import BOOLEAN, Variable, name_of_variable, one_of, reads_variables


def number(text: str) -> float:
    """Return a positive number."""
    if not 0 < float(text) < math.inf:
        raise ValueError(text)
    return float(text)


NUMBER = Variable(number, "a positive number")
CHOICES: dict[str, Variable | str] = {
    "steps": BOOLEAN,
    "ranks": one_of(["all", "zero"]),
    "amount": NUMBER._replace(requires=("steps",)),
    "flops": NUMBER._replace(requires=("peak",)),
    "peak": NUMBER._replace(requires=("flops",)),
    "endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
}


@reads_variables(CHOICES)
def train(
    *,
    steps: bool = True,
    ranks: str = "all",
    amount: float | None = None,
    flops: float | None = None,
    peak: float | None = None,
    endpoint: str | None = None,
) -> tuple[bool, str, float | None, float | None, float | None, str | None]:
    """Return the arguments; raise for a contradiction, as an instrumented function does."""
    if (amount is not None and not steps) or (flops is None) != (peak is None):
        raise ValueError("the arguments contradict each other")
    return steps, ranks, amount, flops, peak, endpoint


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without the variables, and as if no warning had been logged."""
    monkeypatch.setattr(variables, "_warned", set())
    for name in CHOICES:
        monkeypatch.delenv(name_of_variable(name), raising=False)


@pytest.mark.parametrize(
    ("given", "values", "problem", "used"),
    [
        ({}, {"STEPS": "off", "AMOUNT": "3"}, "AMOUNT: amount requires steps, which is False, got '3'", (False, None)),
        ({}, {"FLOPS": "1e9"}, "FLOPS: flops requires peak, which is None, got '1e9'", (True, None)),
        ({}, {"PEAK": "1e12"}, "PEAK: peak requires flops, which is None, got '1e12'", (True, None)),
        ({}, {"FLOPS": "1e9", "PEAK": "fast"}, "PEAK: expected a positive number, got 'fast'", (True, None)),
        ({"amount": 9.0}, {"STEPS": "off"}, "STEPS: amount requires steps, which is False, got 'off'", (True, 9.0)),
        ({"steps": False}, {"AMOUNT": "3"}, "AMOUNT: amount requires steps, which is False, got '3'", (False, None)),
    ],
)
def test_contradiction_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    given: dict[str, Any],
    values: dict[str, str],
    problem: str,
    used: tuple[bool, float | None],
) -> None:
    """The contradicting variable is not used; arguments that the caller has given are."""
    for name, value in values.items():
        monkeypatch.setenv(f"MONITEL_{name}", value)
    steps, _, amount, flops, peak, _ = train(**given)
    assert (*used, None, None) == (steps, amount, flops, peak)
    assert f"MONITEL_{problem}; using " in caplog.records[0].getMessage()


def test_pair_of_variables_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Two arguments that require each other may come from variables, or one of them from the caller."""
    monkeypatch.setenv("MONITEL_FLOPS", "1e9")
    assert (1e9, 1e12) == train(peak=1e12)[3:5]
    monkeypatch.setenv("MONITEL_PEAK", "2e12")
    assert (1e9, 2e12) == train()[3:5]
    assert [] == caplog.records
