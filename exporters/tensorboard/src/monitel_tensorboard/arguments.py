"""The checks of the constructors' arguments."""

from __future__ import annotations

import os
from pathlib import Path

_DAY = 86_400.0


def local_dir(log_dir: object) -> str:
    """Return ``log_dir`` as an absolute path, so that a later ``os.chdir`` has no effect."""
    if not isinstance(log_dir, (str, os.PathLike)):
        raise TypeError(f"log_dir must be a str or a path, got {type(log_dir).__qualname__}: {log_dir!r:.80}")
    path = os.fsdecode(log_dir)
    if "://" in path:
        raise ValueError(f"log_dir must be a local folder, got {path!r}; mount it, or copy the files later")
    return str(Path(path).absolute())


def length(what: str, value: object) -> int:
    """Return ``value`` if it is a number of points."""
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an int, got {type(value).__qualname__}: {value!r:.80}")
    if value < 1:
        raise ValueError(f"{what} must be at least 1, got {value}")
    return value


def seconds(what: str, value: object) -> float:
    """Return ``value`` if it is an interval in seconds."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, got {type(value).__qualname__}: {value!r:.80}")
    if not 0 < value <= _DAY:
        raise ValueError(f"{what} must be more than 0 and at most {_DAY:.0f} seconds, got {value}")
    return float(value)
