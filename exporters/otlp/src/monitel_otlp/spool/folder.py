"""A folder that is held open by descriptor. Links are not followed, and files of other users are not touched."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from monitel.blackbox.folder import FolderError

if TYPE_CHECKING:
    from pathlib import Path

_DIR_FD = {each.__name__ for each in os.supports_dir_fd}  # by name: eventlet replaces os.open()
#: True if this platform has what a folder needs: descriptors of folders, and locks that end with a process. Windows has
#: neither.
AVAILABLE = "open" in _DIR_FD and hasattr(os, "O_DIRECTORY") and find_spec("fcntl") is not None
UNAVAILABLE = "this platform has neither descriptors of folders nor locks of files as POSIX has them"

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if AVAILABLE else 0
#: O_NONBLOCK: a FIFO must not block open().
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK if AVAILABLE else 0
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


SpoolError = FolderError


class Folder:
    """An open folder. All operations are relative to its descriptor, so a renamed parent has no effect.

    Args:
        path: Path of the folder, for messages.
        descriptor: Open descriptor, which this object closes.
        owner: User id of the owner of the folder.
    """

    def __init__(self, path: Path, descriptor: int, owner: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._status = os.fstat(descriptor)
        self._owner = owner

    @classmethod
    def open(cls, path: Path, *, foreign: bool = False, probe: bool = True) -> Folder:
        """Open an existing folder.

        Args:
            path: The folder. Its parents may be symbolic links, the folder itself must not be one.
            foreign: Accept a folder that belongs to another user, or that other users can write to.
            probe: If it seems to be such a folder, make a file in it, and remove it: some file systems report the owner
                and the permissions of all files so. Otherwise such a folder is refused, and nothing is written.

        Raises:
            SpoolError: The folder is missing, a symbolic link, or unsafe, or the platform does not have what it needs.
            OSError: The folder cannot be read.
        """
        check_platform()
        try:
            descriptor = os.open(path, FOLDER_FLAGS)
        except FileNotFoundError:
            raise SpoolError(f"there is no folder {str(path)!r}") from None
        except OSError as error:
            if path.is_symlink():
                raise SpoolError(f"{str(path)!r} is a symbolic link: give the folder that it points to") from None
            if error.errno == errno.ENOTDIR:
                raise SpoolError(f"{str(path)!r} is not a folder") from None
            raise
        return cls._checked(path, descriptor, foreign=foreign, probe=probe)

    @classmethod
    def _checked(cls, path: Path, descriptor: int, *, foreign: bool, probe: bool = True) -> Folder:
        """Return a folder for a descriptor, which is closed if the folder is unsafe."""
        try:
            status = os.fstat(descriptor)
            folder = cls(path, descriptor, status.st_uid)
            if not foreign:
                folder._check(status, probe=probe)
        except BaseException:
            os.close(descriptor)
            raise
        return folder

    def _check(self, status: os.stat_result, *, probe: bool) -> None:
        own, open_to_others = status.st_uid == os.geteuid(), bool(status.st_mode & _OTHERS_WRITE)
        if own and not open_to_others:
            return
        # Some file systems report another owner for every file (NFS with root_squash), or permissions for all users
        # (CIFS, FAT, mounts of virtual machines). A new file reveals that.
        made = self._probe() if probe else None
        if not own and (made is None or made.st_uid != status.st_uid):
            raise SpoolError(
                f"{str(self.path)!r} belongs to another user (id {status.st_uid}): run as that user, or use --foreign "
                "if you trust its content"
            )
        if open_to_others and (made is None or not made.st_mode & _OTHERS):
            raise SpoolError(
                f"other users can write to {str(self.path)!r}: run chmod go-w on it, or use --foreign if you trust its "
                "content"
            )

    def _probe(self) -> os.stat_result | None:
        name = f"probe-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            descriptor = os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=self._descriptor)
        except OSError:
            return None
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)
            self.unlink(name)

    def open_file(self, name: str, flags: int) -> int:
        """Open a regular file without other hard links that belongs to the owner of the folder or to this user.

        Args:
            name: Name in this folder.
            flags: Flags of :func:`os.open`. A new file can be read and written only by its owner.

        Returns:
            The descriptor.

        Raises:
            OSError: The file cannot be opened, is a link or a device, or belongs to another user.
        """
        path = str(self.path / name)
        try:
            descriptor = os.open(name, flags | _FILE_FLAGS, 0o600, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PermissionError(errno.EPERM, "symbolic links are not followed", path) from None
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
        status = os.fstat(descriptor)
        refusal = None
        if not stat.S_ISREG(status.st_mode):
            refusal = "not a regular file"
        elif status.st_uid not in {self._owner, os.geteuid()}:
            refusal = f"belongs to another user (id {status.st_uid})"
        elif status.st_nlink > 1:
            refusal = "has a second name (hard link)"
        if refusal is not None:
            os.close(descriptor)
            raise PermissionError(errno.EPERM, refusal, path)
        return descriptor

    def read(self, name: str, limit: int = -1) -> bytes:
        """Read a file, or its first ``limit`` bytes.

        Raises:
            OSError: As in :meth:`open_file`.
        """
        with os.fdopen(self.open_file(name, os.O_RDONLY), "rb") as file:
            return file.read(limit)

    def write_new(self, name: str, content: bytes) -> None:
        """Write a new file. If that fails, the file is removed.

        Raises:
            OSError: The file exists, or the write failed.
        """
        descriptor = self.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_at(descriptor, content, 0)
        except BaseException:
            self.unlink(name)
            raise
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename an entry, which replaces a file of the new name. A symbolic link is renamed itself.

        Raises:
            OSError: There is no such entry, or the folder cannot be written.
        """
        os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def names(self) -> list[str]:
        """Return the names of all entries of the folder."""
        return os.listdir(self._descriptor)  # noqa: PTH208  a descriptor is not a path

    def status(self, name: str) -> os.stat_result:
        """Return the status of an entry, without following a symbolic link."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def subfolder(self, name: str, *, create: bool) -> Folder:
        """Open a folder in this folder, with the same checks.

        Raises:
            SpoolError: It is a link, is not a folder, or belongs to another user.
            FileNotFoundError: It does not exist, and ``create`` is False.
        """
        path = self.path / name
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._descriptor)
        try:
            descriptor = os.open(name, FOLDER_FLAGS, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise SpoolError(f"{str(path)!r} is not a folder, or a symbolic link: remove it") from None
            raise
        status = os.fstat(descriptor)
        if status.st_uid not in {self._owner, os.geteuid()}:
            os.close(descriptor)
            raise SpoolError(f"{str(path)!r} belongs to another user (id {status.st_uid}): remove it")
        return Folder(path, descriptor, status.st_uid)

    def restrict(self) -> None:
        """Give access to the folder to its owner, and to nobody else, whatever the umask was.

        Raises:
            OSError: The folder belongs to another user.
        """
        os.fchmod(self._descriptor, 0o700)

    def space(self) -> os.statvfs_result:
        """Return the size and the free space of the file system.

        Raises:
            OSError: The file system does not report it.
        """
        return os.fstatvfs(self._descriptor)

    def is_same(self, other: Folder) -> bool:
        """Return True if both are the same folder, open or not."""
        return os.path.samestat(self._status, other._status)

    def unlink(self, name: str) -> None:
        """Remove a file. Errors are ignored."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_subfolder(self, name: str) -> None:
        """Remove a folder in this folder if it is empty. Errors are ignored."""
        with suppress(OSError):
            os.rmdir(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Close the descriptor, unless the application has closed it and uses its number. Idempotent."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._status):
                os.close(self._descriptor)
        self._descriptor = -1


def make_folder(path: Path) -> list[Path]:
    """Make a folder with access only for its owner, and its missing parents, which other users cannot write to.

    Returns:
        The new folders, outermost first.

    Raises:
        SpoolError: The platform does not have what a :class:`Folder` needs.
        OSError: A folder cannot be made. The others were removed.
    """
    check_platform()
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    made: list[Path] = []
    try:
        for each in reversed(missing):
            try:
                each.mkdir(0o700 if each is path else 0o755)
            except FileExistsError:
                continue  # made by another process; Folder.open() checks it
            made.append(each)
    except OSError:
        remove_folders(made)
        raise
    return made


def check_platform() -> None:
    """Check that this platform has what a :class:`Folder` needs.

    Raises:
        SpoolError: It has not.
    """
    if not AVAILABLE:
        raise SpoolError(f"there are no spools, black boxes and stored ledgers here: {UNAVAILABLE}")


def remove_folders(made: list[Path]) -> None:
    """Remove empty folders, innermost first. Errors are ignored."""
    for each in reversed(made):
        with suppress(OSError):
            each.rmdir()


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of the content at an offset.

    Raises:
        OSError: At most a part was written.
    """
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
