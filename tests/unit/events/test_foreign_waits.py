"""Waits that another library counts, such as torch, whose totals are read together with those of this process."""

import monitel
from monitel import WaitReading
from monitel.wait_counter import set_foreign_waits


def test_longest_foreign_wait() -> None:
    """A new maximum and an only wait are known; otherwise the key is omitted."""
    maxima = monitel.WaitMaxima()
    table: list[tuple[WaitReading, dict[str, float]]] = [
        (WaitReading(3, 8.0, 5.0, 0), {"elsewhere": 5.0}),
        (WaitReading(3, 8.0, 5.0, 0), {}),
        (WaitReading(4, 9.0, 5.0, 0), {"elsewhere": 1.0}),
        (WaitReading(6, 12.0, 5.0, 0), {}),
        (WaitReading(9, 30.0, 7.0, 0), {"elsewhere": 7.0}),
    ]
    for reading, longest in table:
        set_foreign_waits({"elsewhere": reading})
        assert longest == maxima.read()
    assert {"elsewhere": 7.0} == monitel.WaitMaxima().read()
