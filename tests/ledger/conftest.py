"""Fixtures of the ledger's tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.ledger.books import Book

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


@pytest.fixture
def book(monitel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Book:
    """Activities with a clock of the test; those of decorated functions count there too."""
    book = Book(monitel)
    monkeypatch.setattr(monitel.activities, "_activity", book.activity)
    return book


@pytest.fixture
def fast_switches() -> Iterator[None]:
    """Let threads alternate every 10 us."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
