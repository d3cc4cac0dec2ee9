"""The settings of the black box: where it is made, and its size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.folder import automatic_roots
from monitel.variables import BOOLEAN, Variable, at_least, folder

if TYPE_CHECKING:
    import os

#: Bytes that the box of a process may use, without a ``black_box_size``.
BOX_SIZE = 16 << 20
#: The least ``black_box_size``, in bytes.
LEAST_BOX_SIZE = 64 << 10
#: The variables of the arguments of :func:`box_settings`.
BOX_CHOICES: dict[str, Variable | str] = {
    "black_box": BOOLEAN,
    "black_box_dir": folder("black_box_dir"),
    "black_box_size": at_least(LEAST_BOX_SIZE, "a number of bytes"),
}


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

    @property
    def root(self) -> Path | None:
        """The folder in which the box is made; None for no box."""
        if not self.enabled or self.folder is not None:
            return self.folder if self.enabled else None
        return next((root for root in automatic_roots() if root.parent.is_dir()), None)


def box_settings(
    black_box: bool = True, black_box_dir: str | os.PathLike[str] | None = None, black_box_size: int = BOX_SIZE
) -> BoxSettings:
    """Return the settings for the arguments of ``configure()`` that concern the black box."""
    folder = None if black_box_dir is None else Path(black_box_dir).absolute()
    return BoxSettings(black_box, folder, black_box_size)
