"""Private folders, held open by descriptor: links are not followed, and files of other users are not touched.

Also files as memory, safe from an application that closes all descriptors and opens others of the same numbers.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakSet

if find_spec("fcntl") is not None:
    import fcntl
if find_spec("mmap") is not None:  # WebAssembly has none
    from mmap import mmap

_DIR_FD = {each.__name__ for each in os.supports_dir_fd}  # by name: eventlet replaces os.open()
#: True if this platform has what records need: descriptors of folders, locks of open files, files with reserved space.
AVAILABLE = "open" in _DIR_FD and hasattr(os, "O_DIRECTORY") and hasattr(os, "posix_fallocate")
AVAILABLE = AVAILABLE and find_spec("fcntl") is not None and hasattr(fcntl, "F_OFD_SETLK")
UNAVAILABLE = "this platform has neither descriptors of folders nor locks of open files as Linux has them"

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if AVAILABLE else 0
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK if AVAILABLE else 0  # a FIFO must not block open()
_OTHERS_WRITE, _OTHERS = stat.S_IWGRP | stat.S_IWOTH, stat.S_IRWXG | stat.S_IRWXO
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, process id
_LOCK = "lock"
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the folder in it is checked
_MEMORY = {"tmpfs", "ramfs"}  # a disk, a network or a program (FUSE) would block the threads that record


class FolderError(Exception):
    """Raised for a folder that cannot be used. The message contains advice."""


class MissingFolderError(FolderError, FileNotFoundError):
    """Raised if there is no folder, such as one that another process has removed meanwhile."""


def check_platform() -> None:
    """Raise a :class:`FolderError` if there are no records on this platform."""
    if not AVAILABLE:
        raise FolderError(f"there are no spools, black boxes and stored ledgers here: {UNAVAILABLE}")


class Folder:
    """An open folder. All operations are relative to its descriptor, so a renamed parent has no effect."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self._status = os.fstat(descriptor)
        self._lock: tuple[int, os.stat_result | None] = -1, None

    @classmethod
    def open(cls, path: Path, *, check: bool = True, probe: bool = True) -> Folder:
        """Open a folder of this user to which nobody else can write; without a check any folder.

        Some file systems report another owner for every file (NFS with root_squash), or permissions for all users
        (CIFS, FAT, mounts of virtual machines): a new file reveals that, unless nothing may be written (``probe``).
        """
        check_platform()
        try:
            descriptor = os.open(path, _FOLDER_FLAGS)
        except FileNotFoundError:
            raise MissingFolderError(f"there is no folder {str(path)!r}") from None
        except OSError as error:
            if path.is_symlink():
                raise FolderError(f"{str(path)!r} is a symbolic link: give the folder that it points to") from None
            if error.errno == errno.ENOTDIR:
                raise FolderError(f"{str(path)!r} is not a folder") from None
            raise
        folder = cls(path, descriptor)
        try:
            if check:
                folder._check(probe=probe)
        except BaseException:
            folder.close()
            raise
        return folder

    def _check(self, *, probe: bool) -> None:
        status = self._status
        own, open_to_others = status.st_uid == os.geteuid(), bool(status.st_mode & _OTHERS_WRITE)
        if own and not open_to_others:
            return
        made = self._probe() if probe else None
        if not own and (made is None or made.st_uid != status.st_uid):
            words = f"{str(self.path)!r} belongs to another user (id {status.st_uid})"
            raise FolderError(f"{words}: run as that user, or give a folder of this one")
        if open_to_others and (made is None or not made.st_mode & _OTHERS):
            raise FolderError(f"other users can write to {str(self.path)!r}: run chmod go-w on it")

    def _probe(self) -> os.stat_result | None:
        name = f"probe-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            self.write_new(name, b"")
            return self.status(name)
        except OSError:
            return None
        finally:
            self.unlink(name)

    def open_file(self, name: str, flags: int) -> int:
        """Return the descriptor of a file of the folder's owner or of this user. A new file is only for its owner.

        Links are not followed, and files of others are refused, with an OSError.
        """
        path = str(self.path / name)
        try:
            descriptor = os.open(name, flags | _FILE_FLAGS, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PermissionError(errno.EPERM, "symbolic links are not followed", path) from None
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
        owner = os.fstat(descriptor).st_uid
        if owner not in {self._status.st_uid, os.geteuid()}:
            os.close(descriptor)
            raise PermissionError(errno.EPERM, f"belongs to another user (id {owner})", path)
        return descriptor

    def read(self, name: str, limit: int = -1) -> bytes:
        with os.fdopen(self.open_file(name, os.O_RDONLY), "rb") as file:
            return file.read(limit)

    def write(self, name: str, content: bytes, offset: int, *, flags: int = 0) -> None:
        """Write into a file, which is made if it is missing. If an error is raised, a part may be written."""
        descriptor = self.open_file(name, os.O_WRONLY | os.O_CREAT | flags)
        try:
            write_at(descriptor, content, offset)
        finally:
            os.close(descriptor)

    def write_new(self, name: str, content: bytes) -> None:
        """Write a new file, or none if an error is raised."""
        try:
            self.write(name, content, 0, flags=os.O_EXCL)
        except FileExistsError:
            raise
        except BaseException:
            self.unlink(name)
            raise

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file as a whole. If that fails, the previous one is still there. Only one process may do so."""
        new = f"{name}.new"
        self.unlink(new)  # from a process that was killed
        self.write_new(new, content)
        self.rename(new, name)

    def rename(self, old: str, new: str) -> None:
        """Rename an entry, which replaces a file of the new name. A symbolic link is renamed itself."""
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)  # noqa: PTH208  a descriptor is not a path

    def status(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def has(self, name: str) -> bool:
        with suppress(OSError):
            return bool(self.status(name))
        return False

    def space(self) -> os.statvfs_result:
        return os.fstatvfs(self.descriptor)

    def is_there(self) -> bool:
        """Return True unless the folder was removed, renamed or replaced, or its descriptor was closed."""
        with suppress(OSError):
            return _is_open(self.descriptor, self._status) and os.path.samestat(self._status, os.lstat(self.path))
        return False

    def is_held(self) -> bool:
        """Return True if the folder is there with the lock, which is taken again if a cleaner has removed it."""
        descriptor, status = self._lock
        with suppress(OSError, FolderError):
            if not self.is_there() or status is None:
                return False
            if self.has(_LOCK) and os.path.samestat(status, self.status(_LOCK)):
                return True
            if self.lock():
                os.close(descriptor)
                return True
        return False

    def remove(self) -> None:
        """Remove the folder with its files, the lock last. An OSError is raised if something is left.

        It gets a hidden name first: if this process is killed meanwhile, nobody takes the rest for a record.
        """
        if not self.path.name.startswith("."):
            if not self.is_there():
                return
            self.path = self.path.rename(self.path.with_name(f".{self.path.name}"))
        for name in sorted(self.names(), key=_LOCK.__eq__):
            self.unlink(name)
        with suppress(FileNotFoundError):
            while True:
                try:
                    self.path.rmdir()
                except OSError:
                    if self.names() != [_LOCK]:  # which a collector makes that has opened the folder before
                        raise
                    os.unlink(_LOCK, dir_fd=self.descriptor)
                else:
                    return

    def lock(self) -> bool:
        """Take the lock, until the folder is closed, or this process ends or calls exec; False if somebody has it.

        It belongs to the open file, not to the process: a forked child closes its copy without releasing it, and a
        child that C code forks without calling Python keeps it until it ends. False, too, if the folder was removed or
        renamed. A :class:`FolderError` is raised if the file system has no such locks.
        """
        try:
            descriptor, taken = self.open_file(_LOCK, os.O_RDWR | os.O_CREAT), False
        except FileNotFoundError:  # it was removed
            return False
        try:
            _ask(descriptor, fcntl.F_OFD_SETLK)
            taken = os.fstat(descriptor).st_nlink > 0 and self.is_there()
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            words = f"the file system of {str(self.path)!r} has no locks: give a folder on a local disk"
            raise FolderError(words) from None
        finally:
            if not taken:
                os.close(descriptor)
        if taken:
            self._lock = descriptor, os.fstat(descriptor)
        return taken

    def is_locked(self) -> bool:
        """Return True if a process holds the lock, this one included. Nothing is changed."""
        try:
            descriptor = self.open_file(_LOCK, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return bool(_ask(descriptor, fcntl.F_OFD_GETLK) != fcntl.F_UNLCK)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the folder and its lock, unless the application has closed and reused the descriptors. Idempotent."""
        for descriptor, status in ((self.descriptor, self._status), self._lock):
            if status is not None and _is_open(descriptor, status):
                os.close(descriptor)
        self.descriptor, self._lock = -1, (-1, None)


def _ask(descriptor: int, command: int) -> int:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    return int(_FLOCK.unpack(fcntl.fcntl(descriptor, command, asked))[0])


def make_folder(path: Path) -> bool:
    """Make a folder only for its owner, and its missing parents, which others cannot write to; False if it is there."""
    check_platform()
    with suppress(FileExistsError):  # perhaps made by another process; Folder.open() checks it
        for each in reversed(path.parents):
            if not each.exists():
                with suppress(FileExistsError):
                    each.mkdir(0o755)
        path.mkdir(0o700)
        path.chmod(0o700)  # whatever the umask is
        return True
    return False


def make_shown(path: Path, fill: Callable[[Folder], object]) -> Folder:
    """Make a folder under a hidden name, lock and fill it, and give it its name: readers never see it half made."""
    hidden, locked = path.with_name(f".{path.name}"), False
    make_folder(hidden)
    folder = Folder.open(hidden)
    try:
        if not (locked := folder.lock()):
            raise FolderError(f"another process has locked {str(hidden)!r}")
        fill(folder)
        folder.path = hidden.rename(path)
    except BaseException:
        with suppress(OSError):
            if locked:
                folder.remove()
        folder.close()
        raise
    return folder


def write_at(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    """Write all of the content at an offset. If an error is raised, a part may be written."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def map_file(descriptor: int, size: int) -> Any:
    """Return a file as memory. Its space must be reserved: writing to a page without space ends the process."""
    if sys.version_info >= (3, 13):
        return mmap(descriptor, size, trackfd=False)
    mapping = mmap(descriptor, size)
    _mappings.add(mapping)
    return mapping


_mappings = WeakSet[Any]()  # each closes its copy of the descriptor when it is freed
_kept: list[Any] = []


def keep_mappings() -> None:
    """Free no mapping any more, if the application has closed their descriptors, which may be its own by now."""
    _kept.extend(_mappings)


def box_root(given: Path | None = None) -> Path | None:
    """Return the folder that holds boxes: the given one, or that of this user. It may be missing."""
    return given or (_SHARED_MEMORY / f"monitel-{os.geteuid()}" if AVAILABLE else None)


def open_root(given: Path | None = None) -> Folder:
    """Open the folder that holds the boxes of this user, which is in memory. It is made if it is missing.

    If that is not possible, a :class:`FolderError` gives the reason.
    """
    check_platform()
    path = box_root(given)
    assert path is not None
    try:
        made = not os.path.lexists(path) and make_folder(path)
        folder = Folder.open(path, probe=False)
    except FolderError as error:
        raise FolderError(f"{error} (MONITEL_BLACK_BOX_DIR)") from None
    except OSError as error:
        raise FolderError(f"{str(path)!r} cannot be made: {error.strerror}") from None
    if (kind := _file_system_of(folder)) not in _MEMORY:
        folder.close()
        with suppress(OSError):
            if made:
                path.rmdir()
        advice = f"give a folder in memory, such as one in {str(_SHARED_MEMORY)!r}"
        raise FolderError(f"{str(path)!r} is on a file system of the type {kind}: {advice}")
    return folder


def _file_system_of(folder: Folder) -> str:
    """Return the type of the file system of a folder; ``"unknown"`` if the system does not report it."""
    with suppress(OSError):
        number = os.fstat(folder.descriptor).st_dev
        known = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        place = rf"^\d+ \d+ {os.major(number)}:{os.minor(number)} .*? - (\S+) "
        if found := re.search(place, known, re.MULTILINE):
            return found[1]
    return "unknown"


def _is_open(descriptor: int, status: os.stat_result) -> bool:
    """Return False if the application has closed a descriptor, even if its number is in use again."""
    try:
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False
