"""The stored form of a run's history: JSON, with a version."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from monitel.activities import ACTIVITIES
from monitel.console.ledger.history import MARKS, Attempt, Earlier, History
from monitel.console.stored_json import boolean, optional_whole, text, whole, wholes
from monitel.training_time import DOWN, LOST

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
LIMIT_BYTES = 1 << 20

_NAME_LIMIT = 200  # characters of the name of an activity
_NAMES = 256  # activities of a run, at most: attempts may have different ones
_KEPT = {*ACTIVITIES, DOWN, LOST}


class StoredError(ValueError):
    """Raised for content that is not a history of this version."""


def encode(history: History) -> bytes:
    """Return the content of the file of a run."""
    earlier, attempt = history.earlier, history.attempt
    stored = {
        "version": VERSION,
        "run": history.run,
        "earlier": {
            "attempts": earlier.attempts,
            "activities": _shortened(earlier.activities),
            "line": earlier.line,
        },
        "attempt": {
            "name": attempt.name,
            "activities": _shortened(attempt.activities),
            "last_ns": attempt.last_ns,
            "boot": attempt.boot,
            "boot_ns": attempt.boot_ns,
            "ended": attempt.ended,
            "begin": attempt.begin,
            "marks": attempt.marks,
            "down_ns": attempt.down_ns,
            "overlap_ns": attempt.overlap_ns,
        },
    }
    return json.dumps(stored, separators=(",", ":")).encode()


def decode(content: bytes) -> History:
    """Return the history in a file.

    Raises:
        StoredError: The content is damaged, or has another version.
    """
    if len(content) > LIMIT_BYTES:
        raise StoredError(f"has more than {LIMIT_BYTES} bytes")
    try:
        stored = json.loads(content)
    except (ValueError, RecursionError):
        raise StoredError("is not JSON") from None
    try:
        version = stored["version"]
        if type(version) is int and version > VERSION:
            raise StoredError(f"has version {version}, which a newer monitel has written")
        if type(version) is not int or version != VERSION:
            raise StoredError("has an unknown version")
        return History(text(stored["run"]), _earlier(stored["earlier"]), _attempt(stored["attempt"]))
    except StoredError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise StoredError("is not a ledger") from None


def _earlier(stored: Any) -> Earlier:
    found = Earlier(whole(stored["attempts"]), wholes(stored["activities"], _NAMES), _marks(stored["line"]))
    if found.line and not 0 <= found.line[-1][1] <= found.activities.get("step", 0):
        raise StoredError("is not a ledger")
    return found


def _attempt(stored: Any) -> Attempt:
    found = Attempt(
        name=text(stored["name"]),
        activities=wholes(stored["activities"], _NAMES),
        last_ns=whole(stored["last_ns"]),
        boot=text(stored["boot"]),
        boot_ns=whole(stored["boot_ns"]),
        ended=boolean(stored["ended"]),
        begin=optional_whole(stored["begin"]),
        marks=_marks(stored["marks"]),
        down_ns=whole(stored["down_ns"]),
        overlap_ns=whole(stored["overlap_ns"]),
    )
    if found.overlap_ns > sum(found.activities.values()):
        raise StoredError("is not a ledger")
    return found


def _marks(stored: Any) -> tuple[tuple[int, int], ...]:
    found = tuple((whole(step), whole(before_ns)) for step, before_ns in stored)
    rises = all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(found))
    if len(found) > MARKS or not rises:
        raise StoredError("is not a ledger")
    return found


def _shortened(activities: Mapping[str, int]) -> dict[str, int]:
    """Return activities with names of limited length and number. Beyond that, the shortest ones count as ``other``."""
    found: dict[str, int] = {}
    for name, duration_ns in activities.items():
        short = name[:_NAME_LIMIT]
        found[short] = found.get(short, 0) + duration_ns
    if len(found) > _NAMES:
        found["other"] = found.get("other", 0)
        own = sorted(found.keys() - _KEPT, key=lambda name: found[name])
        for name in own[: len(found) - _NAMES]:
            found["other"] += found.pop(name)
    return found
