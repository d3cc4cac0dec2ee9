"""torch.monitor with monitel inside."""

from __future__ import annotations

from torch import monitor

import monitel

_NAMES = (
    *("Aggregation", "VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN"),
    *("Stat", "Event", "data_value_t", "STAT_EVENT"),
    *("EventHandlerHandle", "register_event_handler", "unregister_event_handler", "log_event"),
    *("TensorboardEventHandler", "_WaitCounter", "_WaitCounterTracker"),
)
_theirs: dict[str, object] = {}


class Replacement:
    """What :func:`monitel.torch.replace` returns; leaving ``with replacement:`` restores torch's names."""

    def restore(self) -> None:
        """Put torch's own names back; a second time does nothing."""
        while _theirs:
            name, value = _theirs.popitem()
            setattr(monitor, name, value)

    def __enter__(self) -> Replacement:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.restore()


def replace() -> Replacement:
    """Put monitel's names into the module ``torch.monitor``, so that code written for it runs unchanged on monitel.

    Call it before that code is imported: what has bound a name by ``from torch.monitor import Stat`` keeps torch's. A
    second call changes nothing.

    Example:
        >>> import monitel.torch
        >>> from torch import monitor
        >>> with monitel.torch.replace():
        ...     monitor.Stat is monitel.Stat
        True
    """
    if not _theirs:
        for name in _NAMES:
            if hasattr(monitor, name):
                _theirs[name] = getattr(monitor, name)
                setattr(monitor, name, getattr(monitel, name))
    return Replacement()
