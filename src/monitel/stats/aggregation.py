"""Aggregations: the numbers that a Stat reports for a window."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn


class Aggregation(Enum):
    """A number, or a distribution, that a :class:`monitel.Stat` reports for the samples of one window.

    The members are also names of the package: ``monitel.MEAN is monitel.Aggregation.MEAN``. Names and values are those
    of torch (``torch/csrc/monitor/python_init.cpp``); unlike in torch, ``VALUE`` works and the type is a real
    :class:`enum.Enum`. ``HISTOGRAM`` and ``STDDEV`` are monitel extensions, with values that torch does not use, and
    are collected only if they are requested.

    Raises:
        ValueError: A number that is not a member's value, as in ``Aggregation(99)``.
        TypeError: Not a number, as in ``Aggregation("SUM")``; use ``Aggregation["SUM"]`` for a name.

    Example:
        >>> from monitel import Aggregation
        >>> Aggregation.SUM, int(Aggregation.SUM), Aggregation["SUM"] is Aggregation(4)
        (<Aggregation.SUM: 4>, 4, True)
    """

    VALUE = 0  #: the last sample
    MEAN = 2  #: sum / count
    COUNT = 3  #: number of samples, as a float
    SUM = 4  #: sum of the samples, added from first to last
    MAX = 5  #: the largest sample
    MIN = 6  #: the smallest sample
    HISTOGRAM = 100  #: distribution of the samples, with quantiles
    STDDEV = 101  #: standard deviation of the samples (population, not sample)

    def __init__(self, value: Any) -> None:  # noqa: ARG002  the enum keeps it
        self._suffix = self._name_.lower()

    @property
    def suffix(self) -> str:
        """The last part of a metric's name: ``"mean"`` in ``loss.mean``."""
        return self._suffix

    __hash__ = object.__hash__  # that of Enum is written in Python, and members are looked up for each window

    def __index__(self) -> int:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        allowed = ", ".join(f"{member.value} ({member.name})" for member in cls)
        error = ValueError if hasattr(value, "__index__") else TypeError
        raise error(f"Aggregation() takes one of {allowed}, got {value!r}")


VALUE, MEAN, COUNT, SUM, MAX, MIN, HISTOGRAM, STDDEV = Aggregation
TORCHS = (VALUE, MEAN, COUNT, SUM, MAX, MIN)  # collected for every Stat, at no additional cost
