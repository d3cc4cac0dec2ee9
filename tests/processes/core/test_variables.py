"""Environment variables of arguments: values, precedence, wrong values and contradictions."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel import variables
from monitel.variables import BOOLEAN, Variable, name_of_variable, one_of, read_variables, reads_variables

TOKEN = "sesame-4711"


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


@pytest.mark.parametrize("yes", ["true", "1", "yes", "on", "TRUE", "On", " yes "])
@pytest.mark.parametrize("no", ["false", "0", "no", "off", "False", "OFF", "\tno"])
def test_booleans_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch, yes: str, no: str) -> None:
    """White space around the value is ignored."""
    monkeypatch.setenv("MONITEL_STEPS", no)
    assert train()[0] is False
    monkeypatch.setenv("MONITEL_STEPS", yes)
    assert train()[0] is True


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_empty_variable_is_not_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, empty: str
) -> None:
    """The default is used, without a warning."""
    monkeypatch.setenv("MONITEL_AMOUNT", empty)
    assert train() == (True, "all", None, None, None, None)
    assert [] == caplog.records


def test_argument_overrides_its_variable(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """So does an argument that equals the default, and None. The variable is not read, even if its value is wrong."""
    monkeypatch.setenv("MONITEL_STEPS", "no")
    monkeypatch.setenv("MONITEL_RANKS", "zero")
    monkeypatch.setenv("MONITEL_AMOUNT", "many")
    assert train(steps=True, ranks="all", amount=None) == train.__wrapped__()  # type: ignore[attr-defined]
    assert [] == caplog.records


def test_argument_with_a_standard_variable_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """MONITEL_ENDPOINT does not exist."""
    monkeypatch.setenv("MONITEL_ENDPOINT", "http://localhost:4318")
    assert None is train()[5]


@pytest.mark.parametrize(
    ("name", "value", "expected", "default"),
    [
        ("STEPS", "maybe", "true or false, got 'maybe'", "True"),
        ("RANKS", "1", "all or zero, got '1'", "'all'"),
        ("AMOUNT", "-1", "a positive number, got '-1'", "the default"),
        ("AMOUNT", "nan", "a positive number, got 'nan'", "the default"),
        ("AMOUNT", "32\nsamples", r"a positive number, got '32\nsamples'", "the default"),
        ("STEPS", f"http://user:{TOKEN}@host", "true or false, got 'http://***@host'", "True"),
        ("STEPS", f"hf_{TOKEN}", "true or false, got '***'", "True"),
    ],
)
def test_wrong_value_is_one_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    name: str,
    value: str,
    expected: str,
    default: str,
) -> None:
    """The warning names the variable, the value without secrets, the accepted values and the value that is used."""
    usual = train()
    monkeypatch.setenv(f"MONITEL_{name}", value)
    for _ in range(3):
        assert usual == train()
    (record,) = caplog.records
    assert ("monitel", logging.WARNING) == (record.name, record.levelno)
    assert f"MONITEL_{name}: expected {expected}; using {default}" == record.getMessage()
    assert TOKEN not in caplog.text


def test_long_value_is_shortened(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The warning stays readable."""
    monkeypatch.setenv("MONITEL_STEPS", "x" * 10_000)
    assert train()[0] is True
    assert f"got '{80 * 'x'}'; using True" in caplog.text


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


def test_contradictory_arguments_still_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables do not hide an error of the caller."""
    monkeypatch.setenv("MONITEL_RANKS", "zero")
    with pytest.raises(ValueError, match="contradict"):
        train(steps=False, amount=1.0)


def test_signature_and_documentation_stay() -> None:
    """Types and defaults are those of the function."""
    assert inspect.signature(train) == inspect.signature(inspect.unwrap(train))
    assert inspect.signature(train).parameters["steps"].default is True
    assert (train.__doc__ or "").startswith("Return the arguments")


@given(st.dictionaries(st.sampled_from([*CHOICES]), st.text(st.characters(exclude_characters="\0", codec="utf-8"))))
def test_no_text_raises(values: dict[str, str]) -> None:
    """Whatever the variables hold, the function runs, with arguments that do not contradict each other."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name_of_variable(name), value)
        assert 6 == len(train())
        found = read_variables(CHOICES, dict.fromkeys(CHOICES))
    assert set(found) <= set(values)
