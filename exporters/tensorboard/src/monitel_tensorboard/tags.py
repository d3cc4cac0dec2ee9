"""What the charts are called, and where their points stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import monitel

if TYPE_CHECKING:
    from monitel import Event


def tag(event: Event, key: str) -> str:
    """Name the chart of one item of ``event.data``.

    A Stat's number keeps its name, with the Stat's attributes behind it: ``loss.mean{split=val}``. An item of
    another event is ``<event>/<key>``, so that TensorBoard groups by event.
    """
    if event.name != monitel.STAT_EVENT:
        return f"{event.name}/{key}"
    if event.window is None or not event.window.attributes:
        return key
    attributes = sorted(event.window.attributes.items())
    return f"{key}{{{','.join(f'{name}={_plain(value)}' for name, value in attributes)}}}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
