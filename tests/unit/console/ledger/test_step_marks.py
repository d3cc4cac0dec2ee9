"""Marks of steps: exact, bounded, and in ascending order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import monitel
from monitel.step import advance, first_step
from monitel_otlp.ledger import step_marks
from monitel_otlp.ledger.step_marks import StepMarks

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that lets nanoseconds in steps pass."""
    monkeypatch.setattr("monitel.step._first", None)
    spent = 0
    monkeypatch.setattr(step_marks, "total_ns", lambda _: spent)

    def spend(nanoseconds: int) -> None:
        nonlocal spent
        spent += nanoseconds

    monkeypatch.setattr("monitel.step._watcher", None)
    return spend


def test_only_the_users_step_begins_an_attempt(spend: Callable[[int], None]) -> None:
    """Steps that a source has counted are forgotten when the user sets the step at which the run resumes."""
    begun: list[int | None] = []
    marks = StepMarks(lambda: begun.append(first_step()))
    marks.install()
    advance(1)
    spend(10)
    assert ([], None) == (begun, first_step())
    monitel.set_step(700)
    monitel.set_step(701)
    assert [700] == begun
    assert ((700, 10), (701, 10)) == marks.snapshot()
    marks.uninstall()
    advance(900)
    assert 701 == marks.snapshot()[-1][0]
