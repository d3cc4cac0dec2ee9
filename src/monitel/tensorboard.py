"""torch's event handler for TensorBoard, for any writer that has ``add_scalar``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel.event import STAT_EVENT

if TYPE_CHECKING:
    from monitel.event import Event


class TensorboardEventHandler:
    """Writes the values of Stat events as scalars, exactly as torch's handler (torch/monitor/__init__.py).

    As in torch, no ``global_step`` is passed, so that each point is at step 0, where TensorBoard shows the last one
    by default; ``monitel_tensorboard.install(log_dir)`` writes real steps, and does not need torch.

    Args:
        writer: Any object with ``add_scalar(tag, value, walltime=...)``.

    Example:
        >>> import monitel
        >>> from torch.utils.tensorboard import SummaryWriter  # doctest: +SKIP
        >>> monitel.register_event_handler(monitel.TensorboardEventHandler(SummaryWriter("log_dir")))
        ... # doctest: +SKIP
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __call__(self, event: Event) -> None:
        """Write one scalar for each value, at the time of the event."""
        if event.name == STAT_EVENT:
            for key, value in event.data.items():
                self._writer.add_scalar(key, value, walltime=event.timestamp.timestamp())
