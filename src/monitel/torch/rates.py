"""Rates of work: samples and tokens per second, and model FLOPs utilization."""

from __future__ import annotations

from monitel.aggregation import MAX, MEAN, MIN
from monitel.torch.guarded_stat import GuardedStat


class Rates:
    """Rates computed from the user's numbers for one training step of this process.

    Stats: ``training.samples.rate`` and ``training.tokens.rate``, per second; ``training.mfu``, the model's floating
    point operations as a share of the device's peak (model FLOPs utilization).

    Args:
        window_size: Window size of the Stats in seconds.
        samples: Samples per step.
        tokens: Tokens per step.
        flops: Floating point operations of the model per step.
        peak_flops: Peak operations per second of the device. Required with ``flops``.
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
        rates: list[tuple[GuardedStat, float]] = []
        if samples is not None:
            rates.append((_rate("training.samples.rate", "{sample}/s", "Samples per second", window_size), samples))
        if tokens is not None:
            rates.append((_rate("training.tokens.rate", "{token}/s", "Tokens per second", window_size), tokens))
        if flops is not None and peak_flops is not None:
            utilization = _rate("training.mfu", "", "Model FLOPs utilization, from 0 to 1", window_size)
            rates.append((utilization, flops / peak_flops))
        self._rates = rates

    def __bool__(self) -> bool:
        return bool(self._rates)

    def record_step(self, seconds: float) -> None:
        """Record a step of this duration."""
        for stat, per_step in self._rates:
            stat.add(per_step / seconds)

    @property
    def stats(self) -> list[GuardedStat]:
        """The Stats of the rates."""
        return [stat for stat, _per_step in self._rates]


def _rate(name: str, unit: str, description: str, window_size: float) -> GuardedStat:
    return GuardedStat(name, [MEAN, MAX, MIN], window_size, unit=unit, description=description)
