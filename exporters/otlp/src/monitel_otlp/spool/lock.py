"""Lock of a spool folder: flock, or on file systems without it a file whose name identifies the process."""

from __future__ import annotations

import errno
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitel_otlp.spool.folder import AVAILABLE, FOLDER_FLAGS, UNAVAILABLE, Folder, SpoolError

if AVAILABLE:  # without it no folder is opened that could be locked
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "lock"
_WITHOUT_FLOCK = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
_EXITING = 0x4  # flag of a process that has released its locks, or is about to
_ATTEMPTS = 10  # another process may remove the file between open() and flock()


class Owner(NamedTuple):
    """The identity of a process, unique among all machines.

    Attributes:
        host: Host name.
        boot: Boot id of the machine; empty if the system has none.
        namespace: Process id namespace; empty if the system has none.
        pid: Process id.
        start: Start time of the process, in ticks since the boot; 0 if it is unknown.
    """

    host: str
    boot: str
    namespace: str
    pid: str
    start: str

    @property
    def file_name(self) -> str:
        """The name of the file by which the process locks a folder."""
        return "-".join((_NAME, *self))

    def is_running(self, viewer: Owner) -> bool:
        """Return True if the process certainly runs, from the view of another process."""
        same = self.boot == viewer.boot and self.namespace == viewer.namespace
        return same and bool(self.boot) and _start_time(self.pid) == self.start

    def has_ended(self, viewer: Owner) -> bool:
        """Return True if the process has certainly ended, from the view of another process."""
        if self.boot != viewer.boot:
            return self.host == viewer.host  # the machine has been restarted
        if self.namespace != viewer.namespace or (not self.boot and self.host != viewer.host):
            return False  # the process id is unknown here
        if self.boot:
            return _start_time(self.pid) != self.start
        try:
            os.kill(int(self.pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


class FolderLock:
    """A lock that is held until :meth:`release`.

    Args:
        folder: The locked folder.
        name: Name of the lock file in it.
        descriptor: Open descriptor with the flock; None if the file itself is the lock.
    """

    def __init__(self, folder: Folder, name: str, descriptor: int | None) -> None:
        self._folder = folder
        self._name = name
        self._descriptor = descriptor

    def release(self, *, remove: bool) -> None:
        """Release the lock.

        Args:
            remove: Remove the lock file as well, because the folder will be removed.
        """
        if remove or self._descriptor is None:
            self._folder.unlink(self._name)
        if remove and self._descriptor is None:
            self._folder.unlink(_NAME)
        if self._descriptor is not None:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor without unlocking. For a forked child, whose parent keeps the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def acquire(folder: Folder) -> FolderLock:
    """Lock a folder.

    Raises:
        SpoolError: Another process holds the lock, or the lock file is a link or belongs to another user.
        OSError: The lock file cannot be written.
    """
    for _ in range(_ATTEMPTS):
        try:
            descriptor = folder.open_file(_NAME, os.O_RDWR | os.O_CREAT)
        except PermissionError as error:
            raise SpoolError(f"{error.filename!r} cannot be used as a lock: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == folder.status(_NAME).st_ino:
                return FolderLock(folder, _NAME, descriptor)
        except BlockingIOError:
            os.close(descriptor)
            break
        except FileNotFoundError:
            pass  # the previous holder has removed the file
        except OSError as error:
            os.close(descriptor)
            if error.errno in _WITHOUT_FLOCK:
                return _acquire_by_name(folder)
            raise
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise SpoolError(f"{str(folder.path)!r} is in use by a running process or by another replay")


def _acquire_by_name(folder: Folder) -> FolderLock:
    """Make a file that identifies this process, and check the files of other processes.

    A process that finds the file of another live process does not get the lock.
    """
    own = this_process()
    try:
        folder.write_new(own.file_name, b"")
    except FileExistsError:
        raise SpoolError(f"{str(folder.path)!r} is in use by this process") from None
    lock = FolderLock(folder, own.file_name, None)
    try:
        for other in _owners(folder):
            if other == own:
                continue
            if not other.has_ended(own):
                raise SpoolError(
                    f"{str(folder.path)!r} is in use by process {other.pid} on {other.host}; if that process has "
                    f"ended, remove {other.file_name} from the folder"
                )
            folder.unlink(other.file_name)
    except BaseException:
        lock.release(remove=False)
        raise
    return lock


def _owners(folder: Folder) -> Iterator[Owner]:
    for name in folder.names():
        parts = name.split("-")
        if parts[0] == _NAME and len(parts) == 1 + len(Owner._fields) and parts[4].isdecimal():
            yield Owner(*parts[1:])


def this_process() -> Owner:
    """Return the identity of this process."""
    namespace = boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = str(Path("/proc/self/ns/pid").readlink())
    pid = str(os.getpid())
    return Owner(
        re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname()),
        re.sub(r"\W", "", boot),
        re.sub(r"\D", "", namespace),
        pid,
        _start_time(pid) or "0",
    )


def _start_time(pid: str) -> str | None:
    """Return the start time of a process, in ticks since the boot; None if the process has ended, or is ending."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = line.rpartition(")")[2].split()  # the command name may contain any character
    except (OSError, ValueError):
        return None
    return None if state in {"Z", "X"} or int(fields[5]) & _EXITING else fields[18]


def lock_support(folder: Path) -> str:
    """Return a description of the kind of lock that works in a folder, for a report.

    Args:
        folder: An existing folder. A file is made in it, and removed.
    """
    if not AVAILABLE:
        return f"none ({UNAVAILABLE})"
    name = f".monitel-lock-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        opened = os.open(folder, FOLDER_FLAGS & ~os.O_NOFOLLOW)
    except OSError as error:
        return f"unknown ({error.strerror})"
    probed = Folder(folder, opened, os.geteuid())
    try:
        probed.write_new(name, b"")
        file = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=opened)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in _WITHOUT_FLOCK:
            return "lock files (this file system does not support flock)"
        return f"unknown ({error.strerror})"
    finally:
        probed.unlink(name)
        probed.close()
    return "flock"
