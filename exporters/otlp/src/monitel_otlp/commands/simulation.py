"""The parameters of a simulated job, the times of its stages, and the report of each rank."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

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


NAMED_STATS = 3  # loss, step.time, gradient.norm; the others are layer.gradient.norm, one per layer
STEPS_PER_WINDOW = 10  # if no rank is late
_LATE_SHARE = 0.3  # the default delay, as a share of a step


@dataclass(frozen=True)
class Simulation:
    """A simulated job and its destination.

    Args:
        ranks: Number of processes.
        stats: Stats of each rank besides those of the stages, at least :data:`NAMED_STATS`.
        windows: Windows of each Stat.
        window: Length of a window in seconds, a multiple of 1 ms. A window really takes this long.
        seed: Makes the samples, the times, the late rank and the rank with a NaN reproducible.
        endpoint: Base URL, as for :func:`monitel_otlp.configure`.
        headers: Sent with each request.
        protocol: OTLP protocol, as for :func:`monitel_otlp.configure`.
        distributions: Form in which the HISTOGRAM of the step times is exported; None: they have no HISTOGRAM.
        late: The delays; None: the seed determines one.

    Raises:
        ValueError: A delay is for a rank that does not exist, or so long that a window could be without a step.
    """

    ranks: int
    stats: int
    windows: int
    window: float
    seed: int
    endpoint: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    protocol: str | None = None
    distributions: str | None = None
    late: tuple[Lateness, ...] | None = None

    def __post_init__(self) -> None:
        """Check the delays."""
        for each in self.late or ():
            if each.rank >= self.ranks:
                raise ValueError(f"there is no rank {each.rank} to be late: the ranks are 0 to {self.ranks - 1}")
        if (delay := sum(each.seconds for each in self.late or ())) > self.window / 2:
            raise ValueError(
                f"the delays must be at most half a window together ({self.window / 2:g} s), got {delay:g} s"
            )

    @property
    def step(self) -> float:
        """Duration of a usual step in seconds."""
        return self.window / STEPS_PER_WINDOW

    @property
    def delays(self) -> tuple[Lateness, ...]:
        """The delays of the job."""
        return self._draw()[2] if self.late is None else self.late

    @property
    def nan_rank(self) -> int:
        """The rank that records one loss of NaN. It is not the drawn late rank, unless there is only one rank."""
        return self._draw()[0]

    @property
    def nan_window(self) -> int:
        """The index of the window with the NaN."""
        return self._draw()[1]

    def stage_times(self, rank: int) -> Iterator[dict[str, int]]:
        """Yield the nanoseconds of each stage of a rank, step by step, without end."""
        return stage_times(self.seed, self.ranks, self.step, self.delays, rank)

    def _draw(self) -> tuple[int, int, tuple[Lateness, ...]]:
        rng = random.Random(self.seed)  # noqa: S311  a draw, not a secret
        late, nan = rng.sample(range(self.ranks), 2) if self.ranks > 1 else (0, 0)
        nan_window = rng.randrange(self.windows)
        return nan, nan_window, (Lateness(rng.choice([*SHARES]), late, _LATE_SHARE * self.step),)


@dataclass(frozen=True)
class Report:
    """The outcome of one rank.

    Attributes:
        rank: Its rank.
        windows: Windows that it closed.
        numbers: Numbers that it logged.
        events: Events that it logged, calls of :func:`monitel.log` included.
        exported: Windows, numbers and events that the backend acknowledged.
        dropped: Lost items by reason.
        spooled: Items on disk.
        complete: True if every item was acknowledged, or is on disk because no endpoint is set.
        spool_root: The folder that holds the spools of all ranks.
        cpu: CPU time of its telemetry threads, seconds.
        stderr: Its output on stderr. It is captured, because all ranks would write at once.
    """

    rank: int
    windows: int
    numbers: int
    events: int
    exported: int
    dropped: dict[str, int]
    spooled: int
    complete: bool
    spool_root: Path
    cpu: float
    stderr: str
