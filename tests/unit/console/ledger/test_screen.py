"""Widths, characters and colours of the streams that reports are printed to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.ledger.screen import Screen, columns_of, cut, pad

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that runs the tests may have set them."""
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """A terminal of 100 columns."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size((100, 24)))
    other, descriptor = os.openpty()
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        yield stream
    os.close(other)


def test_terminal_has_colours_and_its_width(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last column stays free; lines are no longer than 80 columns; COLUMNS takes precedence."""
    assert Screen(80, terminal=True, colours=True, encoding="utf-8") == Screen.of(terminal)
    for columns, width in (("41", 40), ("0", 80), ("1", 20), ("-5", 80), ("²", 80), (10 * "9", 80), ("40x", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        assert width == Screen.of(terminal).width, columns
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size((0, 0)))
    assert 80 == Screen.of(terminal).width


def test_no_color_removes_the_colours_only(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable is not set."""
    monkeypatch.setenv("NO_COLOR", "")
    assert Screen.of(terminal).colours
    monkeypatch.setenv("NO_COLOR", "1")
    assert (True, False) == (Screen.of(terminal).terminal, Screen.of(terminal).colours)


@pytest.mark.parametrize("value", ["dumb", None])
def test_dumb_terminal_is_not_a_terminal(terminal: TextIO, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """A terminal that cannot do anything, or an unknown one, gets plain lines."""
    monkeypatch.delenv("TERM")
    if value is not None:
        monkeypatch.setenv("TERM", value)
    assert (False, False) == (Screen.of(terminal).terminal, Screen.of(terminal).colours)


@given(st.text(st.characters(codec=None)), st.sampled_from(["utf-8", "ascii", "latin-1", "cp437", "", "unknown"]))
def test_printable_text_has_no_control_characters(text: str, encoding: str) -> None:
    """Text from outside can be encoded, and moves neither the cursor nor the direction of writing."""
    shown = Screen(encoding=encoding).printable(text)
    assert shown.isprintable()
    shown.encode(encoding if encoding not in {"", "unknown"} else "ascii")


@given(st.text(st.characters(exclude_categories=["C", "Z"])), st.integers(2, 30))
def test_padded_text_has_the_columns_it_should(text: str, columns: int) -> None:
    """A wide character takes two columns, and a combining one none."""
    assert columns_of(cut(text, columns)) <= columns
    assert columns == columns_of(pad(text, columns))
    if columns_of(text) <= columns:
        assert text == cut(text, columns)


def test_columns_of_characters() -> None:
    """ASCII, wide and combining characters have their known widths."""
    assert [1, 2, 1, 6] == [columns_of(each) for each in ("a", "日", "e\u0301", "日本語")]
    assert "日本.. " == pad("日本語語", 7)
