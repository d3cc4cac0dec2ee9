"""Shares in percent that add up to 100, and durations in words."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.ledger.shares import apportion, duration, first_parts, parts_of

SECOND = 10**9


@given(st.lists(st.integers(0, 10**20), max_size=70), st.integers(0, 200))
def test_apportioned_numbers_add_up_and_are_exact_shares_rounded(parts: list[int], total: int) -> None:
    """The sum is the total, and each number differs from the exact share by less than one."""
    shares = apportion(parts, total)
    whole = sum(parts)
    assert (total if whole else 0) == sum(shares)
    for part, share in zip(parts, shares, strict=True):
        assert abs(Fraction(part * total, whole or 1) - share) < 1


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 10**18), max_size=70))
def test_parts_are_step_and_then_the_losses_by_size(activities: dict[str, int]) -> None:
    """Each activity with time is a part; all parts have 100 % together."""
    parts = parts_of(activities)
    assert {name: time for name, time in activities.items() if time} == {part.name: part.time_ns for part in parts}
    assert sum(part.percent for part in parts) == (100 if parts else 0)
    losses = [part.time_ns for part in parts if part.name != "step"]
    assert sorted(losses, reverse=True) == losses
    assert "step" not in [part.name for part in parts[1:]]


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 10**18), min_size=1, max_size=70), st.integers(1, 6))
def test_first_parts_still_add_up_to_100(activities: dict[str, int], limit: int) -> None:
    """The parts beyond the limit are one sum, and no shown part has 0 %."""
    parts = parts_of(activities)
    shown = first_parts(parts, limit)
    assert len(shown) <= limit
    assert 0 not in [part.percent for part in shown]
    assert sum(part.percent for part in shown) == (100 if parts else 0)
    assert [part.name for part in parts[: len(shown) - 1]] == [part.name for part in shown[:-1]]


def test_activities_of_the_same_length_have_a_fixed_order() -> None:
    """The order is that of the documentation, then the names."""
    activities = dict.fromkeys(["zeta", "alpha", "lost", "down", "data", "startup", "step"], 7)
    assert ["step", "startup", "data", "down", "lost", "alpha", "zeta"] == [part.name for part in parts_of(activities)]


def test_share_below_one_percent_is_not_rounded_up() -> None:
    """The larger parts take what is missing to 100 %, unless their shares are exact."""
    assert [38, 62, 0] == [part.percent for part in parts_of({"step": 374, "data": 621, "other": 5})]
    assert ["99 %", "1 %", "<1 %"] == [part.share for part in parts_of({"step": 9820, "data": 91, "other": 89})]
    assert ["98 %", "1 %", "1 %", "<1 %"] == [
        part.share for part in parts_of({"step": 980, "data": 8, "init": 7, "other": 5})
    ]


def test_share_below_one_percent_is_not_zero() -> None:
    """Time that rounds to 0 % is shown as less than 1 %."""
    assert ["100 %", "<1 %"] == [part.share for part in parts_of({"step": 999, "data": 1})]


@pytest.mark.parametrize(
    ("time_ns", "words"),
    [
        (-1, "0 ms"),
        (0, "0 ms"),
        (1, "<1 ms"),
        (10**6, "1 ms"),
        (99_999_999, "99 ms"),
        (SECOND // 10, "0.1 s"),
        (8 * SECOND // 10, "0.8 s"),
        (9_949_999_999, "9.9 s"),
        (9_950_000_000, "10 s"),
        (41 * SECOND, "41 s"),
        (59 * SECOND + SECOND // 2, "1 min"),
        (100 * SECOND, "1 min 40 s"),
        (3600 * SECOND - 1, "1 h"),
        (7980 * SECOND, "2 h 13 min"),
        (7199 * SECOND, "2 h"),
        (86_400 * SECOND, "1 d"),
        (400 * 86_400 * SECOND + 7200 * SECOND, "400 d 2 h"),
    ],
)
def test_duration_has_two_units_at_most(time_ns: int, words: str) -> None:
    """Durations are rounded to the smaller unit."""
    assert words == duration(time_ns)
