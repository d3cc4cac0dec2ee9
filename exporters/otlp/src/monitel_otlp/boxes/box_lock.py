"""Locks of black boxes, by which other processes see that a process runs, and collectors exclude each other.

A POSIX lock belongs to a process: a forked child does not inherit it, and it ends with the process, or if the process
calls exec. It also ends when the process closes any descriptor of the lock file. Therefore a process never opens the
lock file of a box that it has locked.
"""

from __future__ import annotations

import os
import re
import struct
from enum import Enum
from typing import TYPE_CHECKING

from monitel.fork import register_at_fork
from monitel.os_threads import RLock
from monitel_otlp.boxes.layout import COLLECTED, CORRUPT, LOCK
from monitel_otlp.spool.folder import AVAILABLE
from monitel_otlp.spool.lock import this_process

if AVAILABLE:  # without it there are no boxes
    import fcntl

if TYPE_CHECKING:
    from monitel_otlp.spool.folder import Folder
    from monitel_otlp.spool.lock import Owner

#: The name of a box, possibly hidden (being made, or being removed), collected or set aside.
NAME = re.compile(
    r"(?P<hidden>\.?)(?P<pid>[0-9]{1,10})-(?P<start>[0-9]{1,20})-[0-9a-f]{6}"
    rf"(?P<suffix>{re.escape(COLLECTED)}|{re.escape(CORRUPT)})?"
)

_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, process id
_ALIVE, _CLAIMED = 0, 1  # bytes of the lock file
_OWN, _BOTH = 1, 2  # numbers of bytes that the process of the box and a collector lock

_Identity = tuple[int, int, int]  # process id, device and inode of a lock file

#: The lock files of this process, with the number of locked bytes. It closes no other descriptor of them.
_held: dict[_Identity, int] = {}
_opening = RLock()  # held while a lock file is open that is not in _held


def _renew() -> None:
    global _opening
    _opening = RLock()  # another thread of the parent may hold the inherited one


register_at_fork(after_in_child=_renew)


class State(Enum):
    """The state of a box, as its lock shows it."""

    ALIVE = "alive"  #: The process that made it runs.
    CLAIMED = "claimed"  #: A process collects it.
    DEAD = "dead"  #: The process that made it has ended, or has called exec.


class BoxLock:
    """The lock of a box, held by this process until :meth:`release`. Made by :func:`acquire` and :func:`claim`."""

    def __init__(self, folder: Folder, descriptor: int, identity: _Identity, length: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._identity = identity
        self._length = length

    def keep(self) -> bool:
        """Renew the lock, and return True if the box still belongs to this process.

        Code of the application can end the lock unknowingly: by closing all descriptors, or by reading the lock file
        like any file. The second is repaired here, if no other process has taken the box meanwhile. To be called before
        each cut; it takes a few microseconds.

        Returns:
            False if the lock or the box is lost, and in a forked child. Then no descriptor of the box may be used any
            more, because the numbers may belong to files of the application.
        """
        if not self._is_open():
            return False
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._length, _ALIVE)
            return _has_its_name(self._folder) and _inode(self._folder) == self._identity[1:]
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock. Idempotent."""
        with _opening:
            if self._is_open(any_process=True):
                os.close(self._descriptor)
            self._descriptor = -1
            _held.pop(self._identity, None)

    def _is_open(self, *, any_process: bool = False) -> bool:
        """Return True if the descriptor is still that of the lock file: the application may have closed all."""
        if self._descriptor < 0 or not (any_process or self._identity[0] == os.getpid()):
            return False
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity[1:]


def acquire(folder: Folder) -> BoxLock:
    """Lock a new box, while this process runs.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The lock file cannot be written.
    """
    return _lock(folder, _OWN)


def claim(folder: Folder) -> BoxLock | None:
    """Lock the box of an ended process, to collect it. Two collectors never hold the lock of one box.

    Returns:
        The lock; None if the process runs, if another collector holds the lock, or if the box has been renamed or
        removed since ``folder`` was opened.

    Raises:
        OSError: The lock file cannot be opened.
    """
    if state(folder) is not State.DEAD:
        return None
    try:
        lock = _lock(folder, _BOTH)
    except (BlockingIOError, FileNotFoundError):
        return None
    if lock.keep():
        return lock
    lock.release()
    return None


def _lock(folder: Folder, length: int) -> BoxLock:
    with _opening:
        try:
            if (os.getpid(), *_inode(folder)) in _held:
                raise BlockingIOError("this process holds the lock")
        except FileNotFoundError:
            pass
        descriptor = folder.open_file(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            status = os.fstat(descriptor)
            identity = (os.getpid(), status.st_dev, status.st_ino)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, _ALIVE)
        except BaseException:
            os.close(descriptor)
            raise
        _held[identity] = length
        return BoxLock(folder, descriptor, identity, length)


def is_alive(folder: Folder) -> bool:
    """Return True if the process that made a box runs; it may be in another process id namespace.

    Args:
        folder: The box.

    Raises:
        OSError: The lock file is a link, is not a regular file, or belongs to another user.
    """
    return state(folder) is State.ALIVE


def state(folder: Folder) -> State:
    """Return the state of a box.

    Without a lock file, for instance because a cleaner of the system removed it, the process runs if one with the
    process id and the start time in the name of the box runs.

    Raises:
        OSError: As in :func:`is_alive`.
    """
    with _opening:
        try:
            if length := _held.get((os.getpid(), *_inode(folder))):
                return State.ALIVE if length == _OWN else State.CLAIMED
            descriptor = folder.open_file(LOCK, os.O_RDONLY)
        except FileNotFoundError:
            return _state_by_name(folder.path.name)
        try:
            if _is_locked(descriptor, _CLAIMED):
                return State.CLAIMED
            return State.ALIVE if _is_locked(descriptor, _ALIVE) else State.DEAD
        finally:
            os.close(descriptor)


def has_called_exec(owner: Owner) -> bool:
    """Return True if the process of a box whose state is ``DEAD`` still runs: it has called exec.

    Args:
        owner: The identity of the process, from the header of the box.
    """
    return owner.is_running(this_process())


def _state_by_name(name: str) -> State:
    found = NAME.fullmatch(name)
    viewer = this_process()
    if found and viewer._replace(pid=found["pid"], start=found["start"]).is_running(viewer):
        return State.ALIVE
    return State.DEAD


def _is_locked(descriptor: int, byte: int) -> bool:
    """Return True if another process has locked a byte of the file. The process id may be that of another namespace."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    found: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
    return found != fcntl.F_UNLCK


def _inode(folder: Folder) -> tuple[int, int]:
    status = folder.status(LOCK)
    return status.st_dev, status.st_ino


def _has_its_name(folder: Folder) -> bool:
    """Return True if the folder has not been renamed or removed."""
    return os.path.samestat(folder.status("."), os.lstat(folder.path))
