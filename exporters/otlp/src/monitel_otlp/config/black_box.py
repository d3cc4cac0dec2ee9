"""Settings of the black box."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

#: Bytes that the box of a process may use, without a ``black_box_size``.
BOX_SIZE = 4 << 20
#: The least ``black_box_size``, in bytes.
LEAST_BOX_SIZE = 64 << 10


@dataclass(frozen=True)
class BoxSettings:
    """The effective settings of the black box.

    Attributes:
        enabled: False if no box is made.
        folder: The folder that holds the box of each process; None to choose one in memory.
        size: Bytes that the box of one process may use.
    """

    enabled: bool = True
    folder: Path | None = None
    size: int = BOX_SIZE


#: No black box.
OFF = BoxSettings(enabled=False)


def box_settings(
    black_box: bool = True, black_box_dir: str | PathLike[str] | None = None, black_box_size: int = BOX_SIZE
) -> BoxSettings:
    """Return the settings for the arguments of ``configure()`` that concern the black box."""
    folder = None if black_box_dir is None else Path(black_box_dir).absolute()
    return BoxSettings(black_box, folder, black_box_size)
