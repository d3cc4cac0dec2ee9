"""Fixtures of the ledger's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.ledger.books import Book

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture
def book(monitel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Book:
    """Activities with a clock of the test; those of decorated functions count there too."""
    book = Book(monitel)
    monkeypatch.setattr(monitel.activities, "_activity", book.activity)
    return book
