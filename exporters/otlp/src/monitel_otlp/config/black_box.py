"""Settings of the black box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitel_otlp.config.folder_argument import folder_path

if TYPE_CHECKING:
    from pathlib import Path

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
    black_box: object = True, black_box_dir: object = None, black_box_size: object = BOX_SIZE
) -> BoxSettings:
    """Check the arguments of ``configure()`` that concern the black box.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: The folder is a file, or the size is below 64 KiB.
    """
    if not isinstance(black_box, bool):
        raise TypeError(f"black_box must be True or False, got {black_box!r:.80}")
    folder = None if black_box_dir is None else folder_path("black_box_dir", black_box_dir).absolute()
    return BoxSettings(black_box, folder, check_box_size(black_box_size))


def check_box_size(size: object) -> int:
    """Return the ``black_box_size`` argument.

    Raises:
        TypeError: Not an int.
        ValueError: Below 64 KiB.
    """
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"black_box_size must be an int, got {type(size).__qualname__}: {size!r:.80}")
    if size < LEAST_BOX_SIZE:
        raise ValueError(f"black_box_size must be at least {LEAST_BOX_SIZE} bytes, got {size}")
    return size
