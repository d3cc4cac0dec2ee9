"""Aggregation: torch's names and numbers, as a real enum."""

from __future__ import annotations

import copy
import operator
import pickle
from enum import Enum
from typing import Any

import pytest

import monitel
from monitel import Aggregation

TORCHS_NUMBERS = {"VALUE": 0, "MEAN": 2, "COUNT": 3, "SUM": 4, "MAX": 5, "MIN": 6}
NUMBERS = {**TORCHS_NUMBERS, "HISTOGRAM": 100, "STDDEV": 101}


def test_names_and_numbers_are_torchs() -> None:
    """The members have torch's order and numbers; monitel's extensions follow, with other numbers."""
    assert list(TORCHS_NUMBERS) == [member.name for member in monitel.aggregation.TORCHS]
    assert list(NUMBERS.items()) == [(member.name, member.value) for member in Aggregation]
    assert list(NUMBERS) == list(Aggregation.__members__)


def test_is_a_real_enum() -> None:
    """Row "Aggregation": a real enum.Enum, with int(), where torch has a pybind type."""
    assert issubclass(Aggregation, Enum)
    assert list(NUMBERS.values()) == [int(member) for member in Aggregation]


@pytest.mark.parametrize(("name", "number"), NUMBERS.items())
def test_member(name: str, number: int) -> None:
    """A member is the same object by name, by number and in the package; it is true, and prints as in torch."""
    member = getattr(monitel, name)
    assert member is Aggregation[name]
    assert member is Aggregation(number)
    assert member is Aggregation(value=number)
    assert number == int(member) == member.__index__()
    assert float(number) == float(member)
    assert list(range(200))[member] == number
    assert bool(member)
    texts = (f"<Aggregation.{name}: {number}>", f"Aggregation.{name}", f"Aggregation.{name}")
    assert texts == (repr(member), str(member), f"{member}")
    assert name.lower() == member.suffix


def test_numpy_number() -> None:
    """A NumPy integer selects a member, as an int does."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    assert Aggregation(numpy.int64(4)) is Aggregation.SUM
    with pytest.raises(ValueError, match="got np"):
        Aggregation(numpy.int64(99))


@pytest.mark.parametrize("number", [1, 7, 99, -1, True, 2**40])
def test_unknown_number(number: int) -> None:
    """Row "Aggregation": Aggregation(99) is a ValueError that lists the allowed numbers; torch accepts it."""
    with pytest.raises(ValueError, match=r"takes one of 0 \(VALUE\), 2 \(MEAN\), .*, got ") as caught:
        Aggregation(number)
    assert str(caught.value).endswith(f"got {number!r}")


@pytest.mark.parametrize("given", ["SUM", "", b"4", None, 4.5, float("nan"), object()])
def test_value_of_another_type(given: object) -> None:
    """Anything but a number is a TypeError, as in torch."""
    with pytest.raises(TypeError, match="takes one of"):
        Aggregation(given)


def test_no_argument() -> None:
    """Aggregation() is a TypeError."""
    with pytest.raises(TypeError):
        Aggregation()  # type: ignore[call-arg]  # that is the point


def test_member_is_not_a_number() -> None:
    """As in torch a member does not equal its number, has no order, and does not combine."""
    number: Any = 4
    assert number != Aggregation.SUM
    assert Aggregation.SUM != number
    assert number not in {Aggregation.SUM: 1}
    member: Any = Aggregation.SUM
    operators: list[Any] = [operator.lt, operator.or_, operator.add]
    for combine in operators:
        for other in (5, Aggregation.MAX):
            with pytest.raises(TypeError):
                combine(member, other)


@pytest.mark.parametrize("attribute", ["name", "value", "suffix"])
def test_is_read_only(attribute: str) -> None:
    """Name, value and suffix cannot be set."""
    with pytest.raises(AttributeError):
        setattr(Aggregation.SUM, attribute, "x")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_gives_the_member(protocol: int) -> None:
    """Every protocol gives the member itself; torch aborts on protocols 0 and 1."""
    for member in Aggregation:
        assert member is pickle.loads(pickle.dumps(member, protocol))


def test_copy_gives_the_member() -> None:
    """A copy is the same object."""
    for member in Aggregation:
        assert member is copy.copy(member)
        assert member is copy.deepcopy(member)
