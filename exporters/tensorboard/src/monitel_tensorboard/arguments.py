"""The folder of a run, and the checks of the constructors' arguments."""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime
from itertools import count
from pathlib import Path

from monitel.process.launcher import launch_attributes
from monitel_tensorboard.event_file import claim
from monitel_tensorboard.process import logger

_DAY = 86_400.0


def local_dir(log_dir: object, comment: str = "") -> str:
    """Return ``log_dir`` as an absolute path, so that a later ``os.chdir`` has no effect; a new one by default."""
    if log_dir is None or log_dir == "":
        log_dir = Path("runs", f"{datetime.now().astimezone():%b%d_%H-%M-%S}_{socket.gethostname()}{comment}")
    if not isinstance(log_dir, (str, os.PathLike)):
        raise TypeError(f"log_dir must be a str or a path, got {type(log_dir).__qualname__}: {log_dir!r:.80}")
    path = os.fsdecode(log_dir)
    if "://" in path:
        raise ValueError(f"log_dir must be a local folder, got {path!r}; mount it, or copy the files later")
    return str(Path(path).absolute())


def run_dir(log_dir: str, *, resumed: bool) -> str:
    """Return the folder of this rank of a run in ``log_dir``: a new one for each run that is not resumed.

    Rank 0 writes to the folder itself, and each other rank to a folder in it. If an earlier run has event files there,
    the run is in ``run-2``, ``run-3`` and so on.
    """
    launch = launch_attributes()
    rank = int(launch.get("training.rank", launch.get("training.local_rank", 0)))
    world_size = int(launch.get("training.world_size", 1))
    for number in count(1):
        run = Path(log_dir, f"run-{number}") if number > 1 else Path(log_dir)
        folder = run / f"rank-{rank}" if rank else run
        if resumed or claim(folder, run, world_size):
            break
    if number > 1:
        logger.info("%s has the event files of another run: writing to %s", log_dir, folder)
    return str(folder)


def max_queue(value: object) -> int:
    """Return ``value`` if it is a number of points."""
    if not isinstance(value, int) or value < 1:
        raise _error(value)(f"max_queue must be an int of at least 1, got {value!r:.80}")
    return value


def suffix(value: object) -> str:
    """Return ``value`` if it can be the end of a file's name."""
    if not isinstance(value, str) or not re.fullmatch("[^/\\0\ud800-\udfff]{0,100}", value):
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"filename_suffix must be a text of at most 100 characters without '/', got {value!r:.80}")
    return value


def seconds(what: str, value: object) -> float:
    """Return ``value`` if it is an interval in seconds."""
    if not isinstance(value, (int, float)) or not 0 < value <= _DAY:
        raise _error(value)(f"{what} must be more than 0 and at most {_DAY:.0f} seconds, got {value!r:.80}")
    return float(value)


def _error(value: object) -> type[Exception]:
    return ValueError if isinstance(value, (int, float)) else TypeError
