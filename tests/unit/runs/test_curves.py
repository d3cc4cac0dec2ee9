"""Curves: few points for any number of numbers, resumed runs, and their file."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from monitel.runs.curves import STEP_TIME, Curve, Curves, Point, read_curves
from monitel.runs.stored import StoredError


def series(name: str = "loss", **attributes: Any) -> Any:
    return SimpleNamespace(title=name, plain_attributes=attributes, definition=SimpleNamespace(unit=""))


def stored(curves: Curves) -> list[Curve]:
    curves.take()
    return read_curves(b"".join(curves.encode()))


def curves_of(*numbers: tuple[int | None, float]) -> Curves:
    """Return the curve of a loss with these steps and values."""
    curves, loss = Curves(), series()
    curves.new.extend((loss, step, value, "") for step, value in numbers)
    curves.take()
    return curves


def curve(*numbers: tuple[int | None, float]) -> Curve:
    return stored(curves_of(*numbers))[0]


def steps(found: Curve) -> list[int]:
    return [each.step for each in found.points]


def test_long_curve_has_few_points_with_all_numbers() -> None:
    """The means are those of all numbers, and no extreme is lost."""
    curves, loss = Curves(), series(split="train")
    for start in range(0, 200_000, 50_000):
        curves.new.extend((loss, step, float(step == 777), "") for step in range(start, start + 50_000))
        curves.take()
    (found,) = stored(curves)
    assert ("loss", (("split", "train"),), 0.0) == (found.name, found.attributes, found.last)
    assert 1000 <= len(found.points) <= 2001
    assert 199_999 == found.points[-1].step
    assert 1.0 == max(each.largest for each in found.points)
    stride = steps(found)[1] - steps(found)[0]
    assert 1 == pytest.approx(sum(each.mean for each in found.points) * stride, rel=0.01)


EPOCH = [(step, 1.0) for step in range(1, 5)]


@pytest.mark.parametrize(
    ("numbers", "expected", "replaced", "not_finite"),
    [
        ([(1, 1.0), (2, 2.0), (5, 5.0)], [1, 2, 5], 0, 0),
        ([(None, 1.0), (None, 2.0)], [1, 2], 0, 0),
        ([(1, 1.0), (2, 2.0), (3, 3.0), (2, 9.0), (3, 9.0)], [1, 2, 3], 2, 0),  # resumed at step 2
        ([(10, 1.0), (11, 1.0), (1, 1.0)], [1], 2, 0),
        ([*EPOCH, *EPOCH, *EPOCH], [1, 2, 3, 4], 8, 0),
        ([(1, math.nan), (2, 1.0), (3, math.inf), (4, -math.inf), (5, 4.0), (6, math.nan)], [2, 5], 0, 4),
        ([(7, 1.0), (7, 3.0)], [7], 0, 0),
    ],
)
def test_steps_of_points(
    numbers: list[tuple[int | None, float]], expected: list[int], replaced: int, not_finite: int
) -> None:
    """In order; what a resumed run, or a second epoch, makes again replaces what there was; only finite numbers count.

    The numbers that have no point are counted, and the last one is kept as it is.
    """
    found = curve(*numbers)
    assert (expected, replaced, not_finite) == (steps(found), found.replaced, found.not_finite)
    assert repr(numbers[-1][1]) == repr(found.last)
    assert Point(7, 2.0, 1.0, 3.0) in found.points or 7 not in expected


def test_next_attempt_goes_on() -> None:
    """With the points of the one before up to its own first step, however often the file is read."""
    first = curves_of(*((step, 1.0) for step in range(10)))
    second = curves_of(*((step, 2.0) for step in range(5, 8)))
    second.go_on(b"".join(first.encode()))
    second.go_on(b"".join(second.encode()))
    (found,) = stored(second)
    assert [(0, 1.0), (4, 1.0), (5, 2.0), (7, 2.0)] == [
        (each.step, each.mean) for each in found.points if each.step in {0, 4, 5, 7}
    ]
    assert [*range(8)] == steps(found)


def test_time_of_steps() -> None:
    """A step time is the mean of the steps between two looks; a look without a step gives none."""
    curves = Curves()
    for made, spent_s in ((10, 1), (20, 2), (20, 9), (30, 11)):
        curves.note_steps(made, spent_s * 10**9, made)
    (found,) = stored(curves)
    assert (STEP_TIME, "s", 0.9) == (found.name, found.unit, found.last)
    assert [(20, 0.1), (30, 0.9)] == [(each.step, each.mean) for each in found.points]


def test_losses_and_step_time_have_room_among_many_curves() -> None:
    """Sixty curves include each loss, and the step time is one more; the last of the other numbers have no curve."""
    curves = Curves()
    curves.new.extend((series(f"layer {number}"), 1, 1.0, "") for number in range(1000))
    curves.new.extend((series("train/loss"), 1, 1.0, end) for end in ("", ".mean"))
    curves.take()
    for made in (1, 2):
        curves.note_steps(made, made * 10**9, made)
    assert ["train/loss", "train/loss.mean", STEP_TIME] == [each.name for each in stored(curves)[58:]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is damaged"),
        (b"[1]", "is damaged"),
        (b'[2,"of a later form"]', "has another version than 1"),
        (b'[1,"loss",[],"",1,1,1,0,0,[[1,2],[0.5,NaN]]]', "is damaged"),
    ],
)
def test_damaged_file(content: bytes, words: str) -> None:
    with pytest.raises(StoredError, match=words):
        read_curves(content)
