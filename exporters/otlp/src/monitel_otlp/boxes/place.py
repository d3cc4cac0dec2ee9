"""The folder that holds the black boxes of a user, and the folder of a new box."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from monitel_otlp.boxes.box_lock import BoxLock, acquire
from monitel_otlp.boxes.layout import LOCK
from monitel_otlp.config.mounts import file_system_of
from monitel_otlp.spool.folder import AVAILABLE, FOLDER_FLAGS, UNAVAILABLE, Folder, make_folder
from monitel_otlp.spool.lock import this_process

_log = logging.getLogger("monitel.otlp")

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the folder in it is checked

#: File systems in memory, in which boxes are made without being asked.
_MEMORY = frozenset({"tmpfs", "ramfs"})
#: Further file systems that a given folder may be on. Those of a network, or of a program (FUSE), could block the
#: training loop, because events are written in the thread that emits them.
_LOCAL_DISK = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2"),
        *("overlay", "aufs"),
    }
)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class PlaceError(Exception):
    """Raised if there is no place for a black box. The message gives the reason."""


@dataclass(frozen=True)
class Root:
    """A folder for the boxes of this user.

    Attributes:
        path: Its path.
        folder: The open folder; if it does not exist yet, the nearest existing folder above it.
        file_system: The type of its file system, e.g. ``"tmpfs"``.
    """

    path: Path
    folder: Folder
    file_system: str

    @property
    def is_memory(self) -> bool:
        """True for a file system in memory, whose writes do not wait for a disk."""
        return self.file_system in _MEMORY


@dataclass(frozen=True)
class NewBox:
    """A new box.

    Attributes:
        folder: The open folder.
        lock: Its lock, which this process holds.
    """

    folder: Folder
    lock: BoxLock


def choose_root(given: Path | None, *, create: bool = True) -> Root:
    """Return the first usable folder for the boxes of this user.

    Args:
        given: The folder, in memory or on a local disk; None for a folder in memory, see :func:`automatic_roots`.
        create: Make the folder if it is missing.

    Raises:
        PlaceError: There is none.
    """
    if not AVAILABLE:
        raise PlaceError(UNAVAILABLE)
    if given is not None:
        return _usable(given, given=True, create=create)
    reasons = []
    for path in automatic_roots():
        try:
            return _usable(path, given=False, create=create)
        except PlaceError as error:
            reasons.append(str(error))
    raise PlaceError("; ".join(reasons))


def automatic_roots() -> list[Path]:
    """Return the folders that are considered without a given one, in order of preference. They may be missing."""
    if not AVAILABLE:
        return []
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return [parent / _own_name() for parent in (_SHARED_MEMORY, runtime) if parent.is_absolute()]


def _own_name() -> str:
    return f"monitel-{os.geteuid()}"


def open_root(path: Path, *, given: bool) -> Root:
    """Open an existing folder that holds boxes.

    Args:
        path: The folder.
        given: It is not one of :func:`automatic_roots`.

    Raises:
        FileNotFoundError: There is no such folder.
        PlaceError: It must not be used: it is a link, it belongs to another user, others can write to it, or its file
            system is not local.
    """
    if not AVAILABLE:
        raise PlaceError(UNAVAILABLE)
    try:
        descriptor = os.open(path, FOLDER_FLAGS)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise PlaceError(_why_not_opened(path, error)) from None
    try:
        return Root(path, Folder(path, descriptor, os.geteuid()), _check(path, descriptor, given=given))
    except BaseException:
        os.close(descriptor)
        raise


def new_box(root: Root) -> NewBox:
    """Make the folder of a new box. It gets its final name when it is locked, so nobody finds it unlocked.

    Its name is the process id, the start time of the process in ticks since the boot, and a random number.

    Raises:
        OSError: The folder or the lock cannot be made.
    """
    process = this_process()
    name = f"{process.pid}-{process.start}-{token_hex(3)}"
    hidden = f".{name}"
    folder = root.folder.subfolder(hidden, create=True)
    lock = None
    try:
        folder.restrict()
        lock = acquire(folder)
        root.folder.rename(hidden, name)
    except BaseException:
        if lock is not None:
            lock.release()
        folder.unlink(LOCK)
        folder.close()
        root.folder.remove_subfolder(hidden)
        raise
    folder.path = root.path / name
    return NewBox(folder, lock)


def remove_box(root: Folder, name: str) -> bool:
    """Remove a box with all its files. A process that removes its own box calls this before it releases the lock.

    The box is hidden first: if this process is killed, a collector finishes the removal, and delivers nothing of it.

    Args:
        root: The folder that holds the box.
        name: Its name.

    Returns:
        True if nothing is left.
    """
    hidden = name if name.startswith(".") else f".{name}"
    try:
        if hidden != name:
            root.rename(name, hidden)
        folder = root.subfolder(hidden, create=False)
    except FileNotFoundError:
        return True
    except Exception:
        _log.debug("a black box could not be removed", exc_info=True)
        return False
    try:
        for each in sorted(folder.names(), key=LOCK.__eq__):  # the lock comes last
            folder.unlink(each)
    except OSError:
        return False
    finally:
        folder.close()
    root.remove_subfolder(hidden)
    return hidden not in root.names()


def _usable(path: Path, *, given: bool, create: bool) -> Root:
    """Return the folder, if it can be used.

    Raises:
        PlaceError: It cannot. The message gives the reason.
    """
    made = False
    try:
        if not given:
            _check_parent(path.parent)
        if create and not os.path.lexists(path):
            made = path in make_folder(path)
        root = open_root(path, given=given)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not create:
            return _future_root(path, given=given)
        raise PlaceError(f"{str(path)!r} cannot be made: {_reason(error)}") from None
    if made:
        root.folder.restrict()  # the umask may have taken too much
    return root


def _future_root(path: Path, *, given: bool) -> Root:
    """Return a folder that could be made, judged by the nearest existing one.

    Raises:
        PlaceError: It cannot be made.
    """
    above = next((each for each in path.parents if os.path.isdir(each)), Path("/"))  # noqa: PTH112  it never raises
    try:
        descriptor = os.open(above, FOLDER_FLAGS & ~os.O_NOFOLLOW)
    except OSError as error:
        raise PlaceError(f"{str(path)!r} cannot be made: {_reason(error)}") from None
    root = Root(path, Folder(above, descriptor, os.geteuid()), file_system_of(above, descriptor))
    try:
        _check_file_system(path, root.file_system, given=given)
        if not os.access(above, os.W_OK | os.X_OK):
            raise PlaceError(f"{str(path)!r} cannot be made: {str(above)!r} cannot be written")
    except BaseException:
        root.folder.close()
        raise
    return root


def _check_parent(parent: Path) -> None:
    """Check that no other user can replace a folder in the parent folder of an automatic root."""
    try:
        status = parent.stat()
    except OSError as error:
        raise PlaceError(f"{str(parent)!r} cannot be used: {_reason(error)}") from None
    private = status.st_uid in {0, os.geteuid()} and not status.st_mode & _OTHERS_WRITE
    if not private and not status.st_mode & stat.S_ISVTX:
        raise PlaceError(f"other users can replace folders in {str(parent)!r}")


def _check(path: Path, descriptor: int, *, given: bool) -> str:
    """Check an open folder, and return the type of its file system."""
    status = os.fstat(descriptor)
    advice = f"give a folder to which only you can write, such as {str(path / _own_name())!r}"
    if status.st_uid != os.geteuid():
        raise PlaceError(f"{str(path)!r} belongs to another user (id {status.st_uid}){f': {advice}' if given else ''}")
    if given and status.st_mode & _OTHERS_WRITE:
        raise PlaceError(f"other users can write to {str(path)!r}: {advice}")
    if not given and status.st_mode & _OTHERS:
        raise PlaceError(f"other users have access to {str(path)!r}: run chmod 700 on it, or remove it")
    file_system = file_system_of(path, descriptor)
    _check_file_system(path, file_system, given=given)
    return file_system


def _check_file_system(path: Path, file_system: str, *, given: bool) -> None:
    if file_system in _MEMORY or (given and file_system in _LOCAL_DISK):
        return
    if given:
        raise PlaceError(
            f"{str(path)!r} is on a file system of the type {file_system}: give a folder in memory, such as one in "
            f"{str(_SHARED_MEMORY)!r}, or on a local disk"
        )
    raise PlaceError(f"{str(path)!r} is not in memory, but on a file system of the type {file_system}")


def _why_not_opened(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return f"{str(path)!r} is a symbolic link, or not a folder: remove it"
    return f"{str(path)!r} cannot be opened: {_reason(error)}"


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
