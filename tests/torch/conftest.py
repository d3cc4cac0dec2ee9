"""Fixture for the tests of torch: a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.testing import ManualClock


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Provide a clock that moves only by advance()."""
    with monitel.testing.ManualClock() as clock:
        yield clock
