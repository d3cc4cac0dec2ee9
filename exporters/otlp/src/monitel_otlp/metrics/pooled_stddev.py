"""The standard deviation of samples that are known by parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def pooled_stddev(mean: float, parts: Iterable[tuple[int, float, float]]) -> float:
    """Of all samples as a population, by the law of total variance; infinite where squares overflow.

    Args:
        mean: Of all samples.
        parts: How many samples each part has, their mean, and their standard deviation.

    Example:
        >>> from monitel_otlp.metrics.pooled_stddev import pooled_stddev
        >>> pooled_stddev(2.0, [(2, 1.0, 0.0), (2, 3.0, 0.0)])
        1.0
    """
    samples, squares = 0, 0.0
    for count, own_mean, stddev in parts:
        samples += count
        apart = own_mean - mean
        squares += count * (stddev * stddev + apart * apart)  # not **, which raises where it overflows
    return math.sqrt(squares / samples)
