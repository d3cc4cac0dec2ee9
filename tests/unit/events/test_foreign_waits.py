"""Waits that another library counts, such as torch, whose totals are read together with those of this process."""

import monitel
from monitel import WaitReading
from monitel.wait_counter import set_foreign_waits


def test_longest_foreign_wait() -> None:
    """A new maximum and an only wait of all readings are known; otherwise the key is omitted, as one of monitel."""
    maxima, own = monitel.WaitMaxima(), monitel.WaitCounter("test_foreign_waits.own").key
    table: list[tuple[list[WaitReading], dict[str, float]]] = [
        ([WaitReading(1, 5.0, 5.0, 0), WaitReading(2, 6.0, 5.0, 0), WaitReading(4, 9.0, 5.0, 0)], {"elsewhere": 5.0}),
        ([WaitReading(4, 9.0, 5.0, 0)], {}),
        ([WaitReading(5, 10.0, 5.0, 0), WaitReading(6, 12.0, 5.0, 0)], {"elsewhere": 2.0}),
        ([WaitReading(7, 13.0, 5.0, 0), WaitReading(9, 20.0, 5.0, 0)], {}),
        ([WaitReading(11, 23.0, 5.0, 0), WaitReading(12, 24.0, 5.0, 0)], {}),
        ([WaitReading(14, 28.0, 5.0, 0), WaitReading(15, 35.0, 7.0, 0)], {"elsewhere": 7.0}),
    ]
    for readings, longest in table:
        for reading in readings:
            set_foreign_waits({"elsewhere": reading, own: reading})
        assert longest == maxima.read()
    assert ({"elsewhere": 7.0}, 0) == (monitel.WaitMaxima().read(), monitel.wait_counters()[own].max)
