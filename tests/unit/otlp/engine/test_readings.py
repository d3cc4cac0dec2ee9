"""Readings in a record that cannot be sent."""

from __future__ import annotations

import pytest

from monitel.blackbox.record import READING, Item
from monitel_otlp.metrics.readings import ReadingsEncoder


@pytest.mark.parametrize("content", [b"", b"\xff"])
def test_damaged_reading_is_counted_as_lost(content: bytes) -> None:
    """A reading without metrics, or one that cannot be decoded, does not block those that follow."""
    encoded = ReadingsEncoder(b"").encode([Item(1, 1, READING, (content, 3, 1))])
    assert (encoded.body, encoded.lost) == (b"", 1)
