"""Stage times of a simulated synchronous job: each rank computes those of all ranks from the seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The stages that a rank spends on its work, in their order, with their shares of a step.
SHARES = {"optimizer": 0.1, "other": 0.05, "data": 0.1, "forward": 0.25, "backward": 0.5}
#: The stage in which a rank waits for the others. A job of one rank does not have it.
SYNC = "sync"
_NOISE = 0.05  # of each stage
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LATE = re.compile(rf"({'|'.join(SHARES)}):(\d+):(\d+(?:\.\d+)?)({'|'.join(_SECONDS)})(?:/([1-9]\d*))?", re.ASCII)


@dataclass(frozen=True)
class Lateness:
    """A stage of a rank that takes longer than on the other ranks.

    Args:
        stage: A key of :data:`SHARES`.
        rank: The rank.
        seconds: The delay.
        every: The delay is in one step of so many.
    """

    stage: str
    rank: int
    seconds: float
    every: int = 1

    @classmethod
    def parse(cls, text: str) -> Lateness:
        """Return the lateness that ``STAGE:RANK:DELAY`` describes, such as ``data:2:30ms`` or ``data:2:0.3s/10``.

        Raises:
            ValueError: The text has another form.
        """
        if not (found := _LATE.fullmatch(text)):
            stages = ", ".join(SHARES)
            raise ValueError(f"expected STAGE:RANK:DELAY such as data:2:30ms, with a stage of {stages}; got {text!r}")
        stage, rank, delay, unit, every = found.groups()
        return cls(stage, int(rank), float(delay) * _SECONDS[unit], int(every or 1))

    def __str__(self) -> str:
        step = "a step" if self.every == 1 else f"in one step of {self.every}"
        return f"rank {self.rank}: {self.stage}, {self.seconds * 1e3:.4g} ms {step}"


def stage_times(seed: int, ranks: int, step: float, late: Sequence[Lateness], rank: int) -> Iterator[dict[str, int]]:
    """Yield the time of each stage of one rank, step by step, without end.

    Each step begins on all ranks when the slowest one has ended the previous step: the others wait for it.

    Args:
        seed: The same one on all ranks.
        ranks: Number of ranks.
        step: Duration of a usual step in seconds.
        late: The delays.
        rank: The rank.

    Returns:
        Nanoseconds by stage, in the order of the stages. Their sum is the same on all ranks.
    """
    rng = random.Random(f"{seed} stages")  # noqa: S311  times, not secrets
    low, high = (1e9 * step * (1 + noise) for noise in (-_NOISE, _NOISE))
    for number in count(1):
        work = [[round(share * rng.uniform(low, high)) for share in SHARES.values()] for _ in range(ranks)]
        for each in late:
            if number % each.every == 0:
                work[each.rank][[*SHARES].index(each.stage)] += round(1e9 * each.seconds)
        times = dict(zip(SHARES, work[rank], strict=True))
        if ranks > 1:
            times[SYNC] = max(map(sum, work)) - sum(work[rank])
        yield times
