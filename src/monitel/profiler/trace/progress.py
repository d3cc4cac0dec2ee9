"""How far a long piece of work is: a line on the terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_Item = TypeVar("_Item")
_EVERY = 1 << 14  # items between two looks at the clock
_PATIENCE = 1.0  # seconds before the first line, and between two


def with_progress(items: Iterable[_Item], total: int, what: str) -> Iterator[_Item]:
    """Pass ``items`` on; where it takes more than a second and standard error is a terminal, say how far it is."""
    said = time.monotonic()
    shown = False
    for done, item in enumerate(items):
        if done % _EVERY == 0 and done and time.monotonic() - said >= _PATIENCE and sys.stderr.isatty():
            said, shown = time.monotonic(), True
            sys.stderr.write(f"\r{what}: {done:,} of {total:,} ({done / total:.0%})")
            sys.stderr.flush()
        yield item
    if shown:
        sys.stderr.write(f"\r{what}: {total:,} of {total:,} (100%)\n")
