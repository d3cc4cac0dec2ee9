"""Schedules, compared with a model that goes through the steps one by one."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel.profiler import ProfilerAction, schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE, WARMUP, RECORD, SAVE = list(ProfilerAction)[:4]


def played(*, wait: int, warmup: int, active: int, repeat: int, skip_first: int, skip_first_wait: int) -> Iterator[Any]:
    """Yield the actions as the documentation describes them, cycle after cycle, without arithmetic."""
    yield from [NONE] * skip_first
    cycles = itertools.count() if repeat == 0 else range(repeat)
    for cycle in cycles:
        if not (cycle == 0 and skip_first_wait):
            yield from [NONE] * wait
        yield from [WARMUP] * warmup
        yield from [RECORD] * (active - 1)
        yield SAVE
    yield from itertools.repeat(NONE)


def made(**arguments: int) -> Any:
    """Return a schedule without the warning about a missing warmup."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return schedule(**arguments)


def test_every_small_schedule() -> None:
    """All 2,592 schedules of small numbers agree with the model for 40 steps each."""
    seen = 0
    for wait, warmup, active, repeat, skip_first, skip_first_wait in itertools.product(
        range(4), range(3), range(1, 4), range(3), range(4), (0, 1, 3, -2, 5, 10)
    ):
        arguments = {
            "wait": wait,
            "warmup": warmup,
            "active": active,
            "repeat": repeat,
            "skip_first": skip_first,
            "skip_first_wait": skip_first_wait,
        }
        plan = made(**arguments)
        assert list(itertools.islice(played(**arguments), 40)) == [plan(step) for step in range(40)], arguments
        seen += 1
    assert 2592 == seen


@given(
    st.fixed_dictionaries(
        {
            "wait": st.integers(0, 30),
            "warmup": st.integers(0, 30),
            "active": st.integers(1, 30),
            "repeat": st.integers(0, 9),
            "skip_first": st.integers(0, 50),
            "skip_first_wait": st.integers(0, 2),
        }
    )
)
def test_larger_schedules(arguments: dict[str, int]) -> None:
    """Random larger schedules agree with the model for 300 steps each."""
    plan = made(**arguments)
    assert list(itertools.islice(played(**arguments), 300)) == [plan(step) for step in range(300)]


@pytest.mark.parametrize(
    ("arguments", "letters"),
    [
        ({"wait": 1, "warmup": 1, "active": 2}, "NWRSNWRS"),
        ({"wait": 1, "warmup": 1, "active": 2, "repeat": 1}, "NWRSNNNN"),
        ({"wait": 5, "warmup": 1, "active": 2, "skip_first": 2}, "NNNNNNNWRS"),
        ({"wait": 5, "warmup": 1, "active": 2, "skip_first": 2, "skip_first_wait": 1}, "NNWRSNNNNNWRS"),
        ({"wait": 0, "warmup": 0, "active": 1}, "SSSS"),
    ],
)
def test_documented_schedules(arguments: dict[str, int], letters: str) -> None:
    """The examples of the documentation, with the actions that torch 2.13 returns."""
    initials = {NONE: "N", WARMUP: "W", RECORD: "R", SAVE: "S"}
    plan = made(**arguments)
    assert letters == "".join(initials[plan(step)] for step in range(len(letters)))


@pytest.mark.parametrize(
    "wrong", [{"wait": -1}, {"warmup": -1}, {"active": 0}, {"active": -1}, {"repeat": -1}, {"skip_first": -1}]
)
def test_invalid_schedules(wrong: dict[str, int]) -> None:
    """A negative number, or no recorded step, is an AssertionError that shows all numbers, as in torch."""
    with pytest.raises(AssertionError, match=r"Invalid profiler schedule arguments\. Got wait=.* \(need >= 0\)"):
        schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})


def test_negative_step() -> None:
    """A negative step is an AssertionError."""
    with pytest.raises(AssertionError, match=r"Step must be non-negative\. Got -1\."):
        schedule(wait=1, warmup=1, active=1)(-1)


def test_missing_warmup_warns() -> None:
    """A schedule without warmup warns at the caller's line."""
    with pytest.warns(UserWarning, match="won't be using warmup") as caught:
        schedule(wait=1, warmup=0, active=1)
    assert __file__ == caught[0].filename


def test_arguments_are_keyword_only() -> None:
    """Positional arguments are refused."""
    anything: Any = schedule
    with pytest.raises(TypeError):
        anything(1, 1, 1)
