"""Replacement of the names in ``torch.monitor`` by monitel's."""

from __future__ import annotations

from torch import monitor

import monitel

_NAMES = (
    *("Aggregation", "VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN"),
    *("Stat", "Event", "data_value_t", "STAT_EVENT"),
    *("EventHandlerHandle", "register_event_handler", "unregister_event_handler", "log_event"),
    *("TensorboardEventHandler", "_WaitCounter", "_WaitCounterTracker"),
)
_originals: dict[str, object] = {}


class Replacement:
    """The result of :func:`monitel.torch.replace`; leaving ``with replacement:`` restores torch's names."""

    def restore(self) -> None:
        """Restore torch's names. Idempotent."""
        while _originals:
            name, value = _originals.popitem()
            setattr(monitor, name, value)

    def __enter__(self) -> Replacement:  # noqa: PYI034  typing.Self requires Python 3.11
        return self

    def __exit__(self, *_exception: object) -> None:
        self.restore()


def replace() -> Replacement:
    """Replace the names in the module ``torch.monitor`` by monitel's, so that code written for it runs on monitel.

    Call it before that code is imported: a module that has already run ``from torch.monitor import Stat`` keeps torch's
    Stat. Idempotent.

    Example:
        >>> import monitel.torch
        >>> from torch import monitor
        >>> with monitel.torch.replace():
        ...     monitor.Stat is monitel.Stat
        True
    """
    if not _originals:
        for name in _NAMES:
            if hasattr(monitor, name):
                _originals[name] = getattr(monitor, name)
                setattr(monitor, name, getattr(monitel, name))
    return Replacement()
