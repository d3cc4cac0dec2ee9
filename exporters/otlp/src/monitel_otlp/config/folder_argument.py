"""Arguments that name a folder."""

from __future__ import annotations

import os
from pathlib import Path


def folder_path(argument: str, value: object) -> Path:
    """Return an argument that names a folder, which may be new, as a path.

    Args:
        argument: Name of the argument, for the message.
        value: Its value.

    Raises:
        TypeError: Not a path.
        ValueError: The path, or a part of it, is a file, or it contains a null character.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{argument} must be a path, got {type(value).__qualname__}")
    path = Path(value)
    if "\0" in str(path):
        raise ValueError(f"{argument} must not contain a null character, got {str(path)!r}")
    for part in (path, *path.parents):
        if os.path.isfile(part):  # noqa: PTH113  Path's own raises where it may not look
            raise ValueError(f"{argument} must be a folder, or a new path, got {str(path)!r}: {str(part)!r} is a file")
    return path
