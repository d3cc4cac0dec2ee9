"""What a Stat reports of a window."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn


class Aggregation(Enum):
    """What a :class:`monitel.Stat` reports of the samples of one window.

    The members are also names of the module: ``monitel.MEAN is monitel.Aggregation.MEAN``. Names and numbers
    are torch's (``torch/csrc/monitor/python_init.cpp``); unlike there ``VALUE`` works and the type is a real
    :class:`enum.Enum`. ``HISTOGRAM`` and ``STDDEV`` are monitel's own, with numbers that torch has not, and are
    collected only where they are asked for.

    Raises:
        ValueError: ``Aggregation(99)``, a number that no member has.
        TypeError: ``Aggregation("SUM")``; look a name up with ``Aggregation["SUM"]``.

    Example:
        >>> from monitel import Aggregation
        >>> Aggregation.SUM, int(Aggregation.SUM), Aggregation["SUM"] is Aggregation(4)
        (<Aggregation.SUM: 4>, 4, True)
    """

    VALUE = 0  #: the last sample
    MEAN = 2  #: sum / count
    COUNT = 3  #: how many samples, as a float
    SUM = 4  #: the samples added up, from first to last
    MAX = 5  #: the largest sample
    MIN = 6  #: the smallest sample
    HISTOGRAM = 100  #: how the samples are distributed, with quantiles
    STDDEV = 101  #: how far they are from their mean: the root of the mean square (population, not sample)

    def __init__(self, value: Any) -> None:  # noqa: ARG002  the enum keeps it
        self._suffix = self._name_.lower()

    @property
    def suffix(self) -> str:
        """The last part of a metric's name: ``"mean"`` in ``loss.mean``."""
        return self._suffix

    __hash__ = object.__hash__  # enum's is written in Python, and members are looked up at each window

    def __index__(self) -> int:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        allowed = ", ".join(f"{member.value} ({member.name})" for member in cls)
        error = ValueError if hasattr(value, "__index__") else TypeError
        raise error(f"Aggregation() takes one of {allowed}, got {value!r}")


VALUE, MEAN, COUNT, SUM, MAX, MIN, HISTOGRAM, STDDEV = Aggregation
TORCHS = (VALUE, MEAN, COUNT, SUM, MAX, MIN)  # which cost nothing beside the call of add()
