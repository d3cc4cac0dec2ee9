"""Sources of wait counters, such as torch: readings of others that are read together with those of this process."""

from collections.abc import Iterator

import pytest

import monitel
from monitel import WaitReading, wait_counter, wait_counters


@pytest.fixture
def theirs() -> Iterator[dict[str, WaitReading]]:
    readings: dict[str, WaitReading] = {}

    def source() -> dict[str, WaitReading]:
        return readings

    wait_counter.add_source(source)
    yield readings
    wait_counter.remove_source(source)


def test_longest_wait_of_a_source(theirs: dict[str, WaitReading]) -> None:
    """The longest wait is known if it is a new maximum or was the only wait; otherwise it is omitted."""
    maxima = monitel.WaitMaxima()
    table: list[tuple[WaitReading, dict[str, float]]] = [
        (WaitReading(3, 8.0, 5.0, 0), {"elsewhere": 5.0}),
        (WaitReading(3, 8.0, 5.0, 0), {}),
        (WaitReading(4, 9.0, 5.0, 0), {"elsewhere": 1.0}),
        (WaitReading(6, 12.0, 5.0, 0), {}),
        (WaitReading(9, 30.0, 7.0, 0), {"elsewhere": 7.0}),
    ]
    for reading, longest in table:
        theirs["elsewhere"] = reading
        assert longest == maxima.read()


def test_last_readings_of_a_removed_source_are_kept() -> None:
    """Totals do not fall for an exporter that reads later; waits in flight are forgotten."""
    gone = {"gone": WaitReading(2, 3.0, 2.0, 1)}

    def source() -> dict[str, WaitReading]:
        return gone

    wait_counter.add_source(source)
    maxima = monitel.WaitMaxima()
    assert 2.0 == maxima.read()["gone"]
    gone["gone"] = WaitReading(3, 4.0, 2.0, 1)
    wait_counter.remove_source(source)
    gone["gone"] = WaitReading(9, 9.0, 9.0, 9)
    wait_counter.remove_source(source)
    assert WaitReading(3, 4.0, 2.0, 0) == wait_counters()["gone"]
    assert [1.0, None] == [maxima.read().get("gone"), maxima.read().get("gone")]
