"""A file that is there as a whole or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """Write a text file beside ``path`` and put it in its place at the end; compressed where it ends with ``.gz``.

    What was there stays until then, and for good if the block raises.

    Raises:
        FileNotFoundError: The folder is not there.
    """
    target = target_of(path)
    if target.exists() and not target.is_file():  # a pipe or /dev/null is written to, not replaced
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
    """The path, if it can be written to later.

    Raises:
        FileNotFoundError: The folder is not there.
    """
    target = Path(os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder to write to", str(target.parent))
    return target


def _open(path: Path, mode: str, target: Path) -> IO[str]:
    if target.name.endswith(".gz"):
        import gzip  # here, because most traces do without

        return cast("IO[str]", gzip.open(path, mode, compresslevel=6, encoding="utf-8"))
    return cast("IO[str]", path.open(mode.replace("t", ""), encoding="utf-8"))
