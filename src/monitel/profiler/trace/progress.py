"""Progress of long work, as a line on the terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_Item = TypeVar("_Item")
_EVERY = 1 << 14  # items between two readings of the clock
_INTERVAL = 1.0  # seconds before the first update, and between updates


def with_progress(items: Iterable[_Item], total: int, label: str) -> Iterator[_Item]:
    """Yield ``items``; after a second, show the progress if standard error is a terminal."""
    updated = time.monotonic()
    shown = False
    for done, item in enumerate(items):
        if done % _EVERY == 0 and done and time.monotonic() - updated >= _INTERVAL and sys.stderr.isatty():
            updated, shown = time.monotonic(), True
            sys.stderr.write(f"\r{label}: {done:,} of {total:,} ({done / total:.0%})")
            sys.stderr.flush()
        yield item
    if shown:
        sys.stderr.write(f"\r{label}: {total:,} of {total:,} (100%)\n")
