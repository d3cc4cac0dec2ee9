"""Atomic writing of a file: it is complete or does not exist."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """Write a text file under a temporary name, and rename it to ``path`` at the end.

    Until then, and if the block raises, an existing file is unchanged. The file is compressed if the path ends with
    ``.gz``. A path that is not a regular file, such as a pipe or ``/dev/null``, is written to directly.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    target = target_of(path)
    if target.exists() and not target.is_file():
        with _open(target, "wt", target) as file:
            yield file
        return
    beside = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        with _open(beside, "xt", target) as file:
            yield file
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` as a Path after checking that its folder exists.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    target = Path(os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder to write to", str(target.parent))
    return target


def _open(path: Path, mode: str, target: Path) -> IO[str]:
    if target.name.endswith(".gz"):
        import gzip  # here, because most traces do not need it

        return cast("IO[str]", gzip.open(path, mode, compresslevel=6, encoding="utf-8"))
    return cast("IO[str]", path.open(mode.replace("t", ""), encoding="utf-8"))
