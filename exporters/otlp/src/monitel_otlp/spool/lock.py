"""One process at a time in a spool folder: flock where it works, else a file whose name identifies its process."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitel_otlp.spool.folder import Folder, SpoolError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "lock"
_WITHOUT_FLOCK = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
_ATTEMPTS = 10  # another process may remove the file between open() and flock()


class _Owner(NamedTuple):
    """A process, told from any other on any machine, as the name of a file.

    Attributes:
        host: Host name.
        boot: Boot id of the machine; empty where the system has none.
        namespace: Process id namespace; empty where the system has none.
        pid: Process id.
        start: When the process started, in ticks since the boot; 0 where it cannot be found out.
    """

    host: str
    boot: str
    namespace: str
    pid: str
    start: str

    @property
    def file_name(self) -> str:
        return "-".join((_NAME, *self))

    def has_ended(self, viewer: _Owner) -> bool:
        """Return whether the process has certainly ended, as seen from another process."""
        if self.boot != viewer.boot:
            return self.host == viewer.host  # the machine was restarted since
        if self.namespace != viewer.namespace or (not self.boot and self.host != viewer.host):
            return False  # its process id means nothing here
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
        descriptor: Open descriptor with the flock; None where the file itself is the lock.
    """

    def __init__(self, folder: Folder, name: str, descriptor: int | None) -> None:
        self._folder = folder
        self._name = name
        self._descriptor = descriptor

    def release(self, *, remove: bool) -> None:
        """Let another process have the folder.

        Args:
            remove: Remove the lock file too, because the folder is to go.
        """
        if remove or self._descriptor is None:
            self._folder.unlink(self._name)
        if remove and self._descriptor is None:
            self._folder.unlink(_NAME)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor: in a forked child, whose parent keeps the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def acquire(folder: Folder) -> FolderLock:
    """Lock a folder.

    Raises:
        SpoolError: Another process has it, or the lock file is a link or somebody else's.
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
            pass  # whoever had the lock has removed it
        except OSError as error:
            os.close(descriptor)
            if error.errno in _WITHOUT_FLOCK:
                return _acquire_by_name(folder)
            raise
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise SpoolError(f"{str(folder.path)!r} is in use: its process is running, or another replay is")


def _acquire_by_name(folder: Folder) -> FolderLock:
    """Make a file that identifies this process, and look for those of others: whoever sees a live one gives up."""
    own = _this_process()
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


def _owners(folder: Folder) -> Iterator[_Owner]:
    for name in folder.names():
        parts = name.split("-")
        if parts[0] == _NAME and len(parts) == 1 + len(_Owner._fields) and parts[4].isdecimal():
            yield _Owner(*parts[1:])


def _this_process() -> _Owner:
    namespace = boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = str(Path("/proc/self/ns/pid").readlink())
    pid = str(os.getpid())
    return _Owner(
        re.sub(r"[^A-Za-z0-9.]", "_", os.uname().nodename),
        re.sub(r"\W", "", boot),
        re.sub(r"\D", "", namespace),
        pid,
        _start_time(pid) or "0",
    )


def _start_time(pid: str) -> str | None:
    """Return when a process started, in ticks since the boot; None if it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = line.rpartition(")")[2].split()  # a command's name may hold anything
    except (OSError, ValueError):
        return None
    return None if state in {"Z", "X"} else fields[18]


def lock_support(folder: Path) -> str:
    """Describe how spool folders below a folder are locked, for people.

    Args:
        folder: A folder that exists; a file is made in it and removed.
    """
    name = f".monitel-lock-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"unknown ({error.strerror})"
    place = Folder(folder, opened, os.geteuid())
    try:
        place.write_new(name, b"")
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
        place.unlink(name)
        place.close()
    return "flock"
