"""The rows of the test of hidden late ranks: delays of known ranks in known stages, and rows without a delay."""

from __future__ import annotations

from dataclasses import dataclass

# Seconds of each stage in a step of every rank. Most of a step is pauses, so that eight ranks fit on two cores.
PAUSES = {"data": 0.012, "forward": 0.030, "backward": 0.050, "optimizer": 0.010, "other": 0.008}
STEP = sum(PAUSES.values())
CYCLES = 20  # measured in a row
TENTH = 10


@dataclass(frozen=True)
class Delay:
    """A delay of one rank in one stage."""

    stage: str
    rank: int
    share: float  # the delay as a share of a step
    every: int = 1  # 1 for a delay in every step, 10 for one step of ten

    @property
    def mean(self) -> float:
        """Mean delay of a cycle in seconds."""
        return self.share * STEP / self.every

    def in_cycle(self, cycle: int) -> float:
        """Return the delay of a cycle in seconds; cycles count from 1, and are 0 or less before the measurement."""
        if self.every > 1 and cycle % self.every != self.every // 2:
            return 0.0
        return self.share * STEP

    def __str__(self) -> str:
        often = "" if self.every == 1 else f" in one step of {self.every}"
        return f"rank {self.rank}, {self.stage}, {self.share:.0%}{often}"


@dataclass(frozen=True)
class Row:
    """A measurement of one job."""

    ranks: int  # number of ranks
    delays: tuple[Delay, ...] = ()  # all delays
    hidden: tuple[Delay, ...] = ()  # those that cannot be named, because the median rank is as late

    @property
    def cycles(self) -> int:
        return CYCLES if not self.delays or any(each.every > 1 for each in self.delays) else CYCLES // 2

    def delay(self, rank: int, stage: str) -> float:
        """Return the mean delay of a rank in a stage in seconds."""
        return sum(each.mean for each in self.delays if (each.rank, each.stage) == (rank, stage))

    def __str__(self) -> str:
        return "; ".join(map(str, self.delays)) or "no delay"


def _rows() -> tuple[Row, ...]:
    always = {
        2: (("data", 0, 0.5), ("forward", 1, 0.2), ("backward", 0, 0.1), ("optimizer", 1, 0.3), ("other", 0, 0.05)),
        8: (("data", 7, 0.1), ("forward", 6, 0.3), ("backward", 5, 0.05), ("optimizer", 1, 0.5), ("other", 0, 0.2)),
    }
    seldom = {
        2: (("forward", 0, 0.5), ("other", 1, 0.4)),
        8: (("data", 3, 0.4), ("optimizer", 7, 0.5), ("backward", 4, 0.4)),
    }
    two = {
        2: ((Delay("data", 1, 0.2), Delay("backward", 1, 0.3)),),
        8: (
            (Delay("backward", 6, 0.4), Delay("data", 2, 0.2)),
            (Delay("other", 5, 0.3), Delay("other", 1, 0.3)),
            (Delay("forward", 3, 0.5, TENTH), Delay("optimizer", 0, 0.1)),
        ),
    }
    larger, smaller = Delay("backward", 1, 0.4), Delay("data", 0, 0.2)
    rows = [Row(2, (larger, smaller), hidden=(smaller,))]
    for ranks, delays in always.items():
        rows.append(Row(ranks))
        rows += [Row(ranks, (Delay(*each),)) for each in delays]
        rows += [Row(ranks, (Delay(*each, TENTH),)) for each in seldom[ranks]]
        rows += [Row(ranks, each) for each in two[ranks]]
    return tuple(rows)


ROWS = _rows()
