"""The parameters of a simulated job, and the report of each rank."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SLOWDOWN = 2.5  # factor of the slow rank's step times
NAMED_STATS = 3  # loss, step.time, gradient.norm; the others are layer.gradient.norm, one per layer


@dataclass(frozen=True)
class Simulation:
    """A simulated job and its destination.

    Args:
        ranks: Number of processes.
        stats: Stats of each rank, at least :data:`NAMED_STATS`.
        windows: Windows of each Stat.
        window: Length of a window in seconds, a multiple of 1 ms. A window really takes this long.
        seed: Makes the samples, the slow rank and the rank with a NaN reproducible.
        endpoint: Base URL, as for :func:`monitel_otlp.configure`.
        headers: Sent with each request.
        protocol: OTLP protocol, as for :func:`monitel_otlp.configure`.
        distributions: Form in which the HISTOGRAM of the step times is exported; None: they have no HISTOGRAM.
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

    @property
    def slow_rank(self) -> int:
        """The rank whose steps take :data:`SLOWDOWN` times as long."""
        return self._draw()[0]

    @property
    def nan_rank(self) -> int:
        """The rank that records one loss of NaN. It is not the slow rank, unless there is only one rank."""
        return self._draw()[1]

    @property
    def nan_window(self) -> int:
        """The index of the window with the NaN."""
        return self._draw()[2]

    def _draw(self) -> tuple[int, int, int]:
        rng = random.Random(self.seed)  # noqa: S311  a draw, not a secret
        slow, nan = rng.sample(range(self.ranks), 2) if self.ranks > 1 else (0, 0)
        return slow, nan, rng.randrange(self.windows)


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
