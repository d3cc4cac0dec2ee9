"""Descriptors, safe from an application that closes all of them and opens others of the same numbers."""

from __future__ import annotations

import os
from contextlib import suppress

_HIGH = 900  # the lowest number: those of the application's files are hardly ever that high


def keep_high(descriptor: int) -> int:
    """Return another number for a descriptor, as high as the limit of open files permits, and close the first one."""
    with suppress(ImportError, OSError):  # Windows has no fcntl; or the limit is lower
        from fcntl import F_DUPFD_CLOEXEC, fcntl

        kept = fcntl(descriptor, F_DUPFD_CLOEXEC, _HIGH)
        os.close(descriptor)
        return kept
    return descriptor
