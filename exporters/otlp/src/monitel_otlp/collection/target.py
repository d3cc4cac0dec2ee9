"""Place of the spool that a box becomes: its unfinished name, its final name, and the note of both in the box."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitel_otlp.boxes.layout import BoxError, pack, read_file, unpack
from monitel_otlp.config.settings import mark_of
from monitel_otlp.spool.discovery import UNFINISHED
from monitel_otlp.spool.folder import make_folder, remove_folders
from monitel_otlp.spool.lock import this_process

if TYPE_CHECKING:
    from monitel_otlp.black_box.contents import Header
    from monitel_otlp.spool.folder import Folder

NOTE = "target"
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_NAMES = 10  # final names that are tried


class Target(NamedTuple):
    """The spool that a box becomes.

    Attributes:
        folder: The folder that holds it.
        name: Its name. It sorts after the spool of the dead process, and ends with the same mark.
        device: Device of the folder; 0 if it is unknown.
        inode: Inode of the folder; 0 if it is unknown.
    """

    folder: str
    name: str
    device: int = 0
    inode: int = 0

    @property
    def final(self) -> Path:
        """The finished spool."""
        return Path(self.folder, self.name)

    def finish(self) -> Path | None:
        """Give the spool its final name, or one with a number if there is another folder, and return it.

        Returns:
            None if there is no unfinished spool: an earlier collector has renamed it, or nothing was left.

        Raises:
            OSError: It cannot be renamed.
        """
        mark = mark_of(self.name)
        body = self.name.removesuffix(mark)
        for number in range(1, _NAMES + 1):
            final = self.final if number == 1 else Path(self.folder, f"{body}-{number}{mark}")
            try:
                self.unfinished.rename(final)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in _TAKEN or number == _NAMES:
                    raise
            else:
                return final
        return None

    @property
    def unfinished(self) -> Path:
        """The spool while it is written. It is hidden from :func:`monitel_otlp.spool.discovery.find_spools`."""
        return Path(self.folder, f".{self.name}{UNFINISHED}")

    def is_here(self) -> bool:
        """Return True if the folder exists, and is not another folder with this path, as in another container."""
        try:
            status = Path(self.folder).stat()
        except OSError:
            return False
        return not self.inode or (status.st_dev, status.st_ino) == (self.device, self.inode)


def target_of(header: Header, box: str, fallback: Path | None = None) -> Target:
    """Return the spool for a box.

    Args:
        header: The header of the box.
        box: The name of the box.
        fallback: The folder that holds the spool if that of the dead process does not exist, and cannot be made, for
            this process. None: the folder of the dead process in any case.
    """
    own = Path(header.spool_dir)
    name = f"{own.name}-box{box.rpartition('-')[2]}{mark_of(own.name)}"
    if fallback is None or own.parent.is_dir() or _make_parent(own, header):
        return Target(str(own.parent), name)
    return Target(str(fallback.absolute()), name)


def _make_parent(own: Path, header: Header) -> bool:
    """Make the folder that holds a spool; return False if that is impossible, or it is a path of another container."""
    viewer = this_process()
    if (header.owner.host, header.owner.namespace) != (viewer.host, viewer.namespace):
        return False
    try:
        remove_folders(make_folder(own)[-1:])
    except OSError:
        return False
    return True


def read_note(box: Folder) -> Target | None:
    """Return the target that an earlier collector has noted; None if there is no complete note."""
    try:
        return Target(*unpack(read_file(box, NOTE), NOTE))
    except (OSError, BoxError, TypeError):
        return None


def write_note(box: Folder, target: Target) -> None:
    """Note the target, whose folder exists, in a box.

    Raises:
        OSError: There is no room for it.
    """
    status = Path(target.folder).stat()
    box.unlink(NOTE)
    box.write_new(NOTE, pack(tuple(target._replace(device=status.st_dev, inode=status.st_ino))))
