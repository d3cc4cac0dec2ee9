"""Units of the numbers that monitel logs itself, because ``monitel.log()`` takes numbers without units."""

from __future__ import annotations

_UNITS = {"training.mfu": "1"}


def unit_of_number(name: str) -> str:
    """Return the unit of a logged number: ``"1"`` for the ratio ``training.mfu``, else the empty text.

    Example:
        >>> from monitel_otel import unit_of_number
        >>> unit_of_number("training.mfu"), unit_of_number("loss")
        ('1', '')
    """
    return _UNITS.get(name, "")
