"""For every test of the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from monitel import wait_counter

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_wait_counters() -> Iterator[None]:
    """Forget the keys that a test has counted waits under: exporters report all that the process knows."""
    yield
    wait_counter._waits.clear()
