"""The places where the records of processes are: the settings of the black box, and the folders of spools."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from monitel.blackbox.folder import box_root
from monitel.variables import BOOLEAN, FOLDER, Variable, at_least, read_variables

#: Bytes of items that the box of a process may hold, without a ``black_box_size``.
BOX_SIZE = 16 << 20
#: The least ``black_box_size``, in bytes.
LEAST_BOX_SIZE = 64 << 10
#: The variables of the arguments of :func:`box_settings`.
BOX_CHOICES: dict[str, Variable] = {
    "black_box": BOOLEAN,
    "black_box_dir": FOLDER,
    "black_box_size": at_least(LEAST_BOX_SIZE, "a number of bytes"),
}


@dataclass(frozen=True)
class BoxSettings:
    """The effective settings of the black box."""

    enabled: bool = True
    folder: Path | None = None  # that holds the box of each process; None to choose one in memory
    size: int = BOX_SIZE  # bytes of items that the box of one process may hold

    @property
    def root(self) -> Path | None:
        root = box_root(self.folder) if self.enabled else None
        return root if root is not None and (self.folder or root.parent.is_dir()) else None


def box_settings(
    black_box: bool = True, black_box_dir: str | os.PathLike[str] | None = None, black_box_size: int = BOX_SIZE
) -> BoxSettings:
    """Return the settings for the arguments of ``configure()`` that concern the black box."""
    folder = None if black_box_dir is None else Path(black_box_dir).absolute()
    return BoxSettings(black_box, folder, black_box_size)


def given_folder(name: str) -> Path | None:
    """Return the folder that the variable of an argument gives, such as ``"black_box_dir"``; None without one."""
    return read_variables({name: FOLDER}, {name: None}).get(name)


def spool_root() -> Path:
    """Return the folder that holds the spools, and the ledgers of runs, where no ``spool_dir`` is an argument."""
    return given_folder("spool_dir") or default_root()


def default_root() -> Path:
    """Return the folder that holds the spools without a ``spool_dir``."""
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given) / "monitel"
    try:
        return Path.home() / ".local" / "state" / "monitel"
    except RuntimeError:  # in a container: the user has no name, and HOME is not set
        return Path("monitel-runs")


def runs_dir() -> Path:
    """Return the folder that holds the runs of :func:`monitel.start`: MONITEL_RUNS_DIR, or ``monitel-runs``."""
    return given_folder("runs_dir") or Path("monitel-runs")


def existing_runs_dir() -> list[Path]:
    """Return the folder that holds the runs of :func:`monitel.start`, if there is one."""
    path = runs_dir()
    return [path.resolve()] if os.path.isdir(path) else []  # noqa: PTH112  of another user: no error
