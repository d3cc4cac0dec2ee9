"""What a training step does, and how much of it is done in a second."""

from __future__ import annotations

import math

from monitel.aggregation import COUNT, MAX, MEAN, MIN, SUM
from monitel.torch.own_stat import OwnStat


class Work:
    """Rates from the numbers that the user gave for one step of this process.

    Stats: ``training.samples.rate`` and ``training.tokens.rate``, a second; ``training.mfu``, the share of the
    device's peak that the model's floating point operations take (model FLOPs utilisation).

    Args:
        window_size: Of the Stats, seconds.
        samples: Samples in a step.
        tokens: Tokens in a step.
        flops: Floating point operations of the model in a step.
        peak_flops: Operations a second that the device could do.

    Raises:
        ValueError: A number that is not positive and finite; flops without peak_flops, or the other way round.
    """

    def __init__(
        self,
        window_size: float,
        *,
        samples: float | None,
        tokens: float | None,
        flops: float | None,
        peak_flops: float | None,
    ) -> None:
        given = {
            "samples_per_step": samples,
            "tokens_per_step": tokens,
            "flops_per_step": flops,
            "peak_flops": peak_flops,
        }
        for name, number in given.items():
            if number is not None and not (number > 0 and math.isfinite(number)):
                raise ValueError(f"{name} must be a positive number, got {number!r}")
        if (flops is None) != (peak_flops is None):
            raise ValueError("flops_per_step and peak_flops go together: utilisation is the one in the other")
        rates: list[tuple[OwnStat, float]] = []
        if samples is not None:
            rates.append((_rate("training.samples.rate", "{sample}/s", "Samples a second", window_size), samples))
        if tokens is not None:
            rates.append((_rate("training.tokens.rate", "{token}/s", "Tokens a second", window_size), tokens))
        if flops is not None and peak_flops is not None:
            utilisation = _rate("training.mfu", "", "Model FLOPs utilisation, of 1", window_size)
            rates.append((utilisation, flops / peak_flops))
        self._rates = rates

    def __bool__(self) -> bool:
        return bool(self._rates)

    def done_in(self, seconds: float) -> None:
        """Take a step that took so long."""
        for stat, a_step in self._rates:
            stat.add(a_step / seconds)

    @property
    def stats(self) -> list[OwnStat]:
        """The Stats of the rates."""
        return [stat for stat, _a_step in self._rates]


def duration_stat(name: str, description: str, window_size: float) -> OwnStat:
    """A Stat of seconds that something takes."""
    return OwnStat(name, [MEAN, COUNT, SUM, MAX, MIN], window_size, unit="s", description=description, monotonic=True)


def _rate(name: str, unit: str, description: str, window_size: float) -> OwnStat:
    return OwnStat(name, [MEAN, MAX, MIN], window_size, unit=unit, description=description)
