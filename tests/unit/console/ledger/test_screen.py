"""Widths, characters and colours of the streams that reports are printed to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitel.console.ledger.screen import Screen, columns_of, cut, pad


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
