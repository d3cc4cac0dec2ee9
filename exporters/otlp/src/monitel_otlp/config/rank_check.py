"""A check that the rank of the telemetry is the rank of torch.distributed."""

from __future__ import annotations

import logging

from monitel_otlp.config.launcher import distributed_rank

_log = logging.getLogger("monitel.otlp")


class RankCheck:
    """Logs a warning, once, if torch.distributed is initialized with another rank than the telemetry has.

    A process that calls ``configure()`` before its launcher sets the variables has no rank, or that of its parent.

    Args:
        rank: ``training.rank`` of the telemetry; None if it has none.

    Attributes:
        member: Rank and world size in torch.distributed, even after its end; None if it was not initialized.
    """

    def __init__(self, rank: object) -> None:
        self._rank = rank
        self.member: tuple[int, int] | None = None

    def check(self) -> None:
        """Compare the ranks if torch.distributed is initialized. Never raises, and never waits for other ranks."""
        if self.member is not None or (member := distributed_rank()) is None:
            return
        self.member = rank, world_size = member
        if str(self._rank) != str(rank):  # OTEL_RESOURCE_ATTRIBUTES holds text
            _log.warning(
                "torch.distributed reports rank %d of %d, but the telemetry of this process has %s: call configure() "
                "after init_process_group(), or start the ranks with torchrun",
                rank,
                world_size,
                "no training.rank" if self._rank is None else f"training.rank={self._rank!s:.40}",
            )
