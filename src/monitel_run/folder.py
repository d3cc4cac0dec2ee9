"""The folder of a run: private, in memory. The processes of the run announce themselves in it, and put their reports.

A process announces itself by a line in a FIFO: its id, its start time, and its rank. Without a reader, because
``monitel run`` was killed, nothing happens.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress

#: The variable that names the folder.
VARIABLE = "MONITEL_RUN_FOLDER"
#: The variable with which a recorded process marks itself for the processes that it starts.
PROCESS = "MONITEL_RUN_PROCESS"
#: An announcement: process id, start time in ticks since the boot, and rank as the launcher has set it.
LINE = re.compile(r"(\d{1,10})-(\d{1,20}) ([0-9]{0,9}|child)", re.ASCII)
#: In the place of the rank, of a process that another recorded process has started, such as a forked child.
CHILD = "child"
#: The announcement of a child of multiprocessing that is not recorded.
UNRECORDED = "unrecorded"
#: The index of the start time in :func:`kernel_fields`.
START = 19

_FIFO = "processes"
_NAME = re.compile(r"-run-\d+-\d+-")


def kernel_fields(pid: int | str) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name of the program; none if the system does not show them."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode().split()
    return []


def start_time(pid: int | str) -> str:
    """Return the start time of a process in ticks since the boot; ``"0"`` if the system does not show it."""
    fields = kernel_fields(pid)
    return fields[START] if fields else "0"


def identify() -> str:
    """Return the id and the start time of this process: it stays the same process when it calls ``exec``."""
    return f"{os.getpid()}-{start_time('self')}"


def announce(process: str, rank: str) -> None:
    """Announce this process to ``monitel run``, if it runs. Never raises, and never blocks."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:  # started by ``opentelemetry-instrument``
        return
    with suppress(OSError, ValueError):
        descriptor = os.open(os.path.join(folder, _FIFO), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, f"{process} {rank}\n".encode())
        finally:
            os.close(descriptor)


def announce_child() -> None:
    """Announce this process, which an exporter records, unless it has announced itself."""
    if VARIABLE in os.environ and os.environ.get(PROCESS, "").partition(" ")[0] != (process := identify()):
        announce(process, CHILD)


def is_run_folder(path: str) -> bool:
    """Return True if a path is the folder of a run of this user on this machine."""
    try:
        folder = os.stat(path, follow_symlinks=False)
        fifo = os.stat(os.path.join(path, _FIFO), follow_symlinks=False)
    except (OSError, ValueError):
        return False
    own = folder.st_uid == fifo.st_uid == os.geteuid()
    return own and os.path.isabs(path) and stat.S_ISDIR(folder.st_mode) and stat.S_ISFIFO(fifo.st_mode)


def is_running(path: str) -> bool:
    """Return True if a path is the folder of a run whose ``monitel run`` still runs on this machine."""
    return is_run_folder(path) and not _is_abandoned(os.path.join(path, _FIFO))


def make_run_folder() -> tuple[str, int]:
    """Make the folder of a run beside the folder of the black boxes, or where temporary files are.

    Return its path, and a descriptor from which the announcements are read. While it is open, the folder is in use.
    """
    boxes = os.environ.get("MONITEL_BLACK_BOX_DIR", "").rstrip(os.sep) or f"/dev/shm/monitel-{os.geteuid()}"  # noqa: S108
    parent, name = os.path.split(os.path.abspath(boxes))
    prefix = f"{name}-run-{identify()}-"
    try:
        path = f"{parent}{os.sep}{prefix}{os.urandom(4).hex()}"
        os.mkdir(path, 0o700)
    except OSError:
        import tempfile  # late: it is rarely needed

        path = tempfile.mkdtemp(prefix=prefix)
    fifo = os.path.join(path, _FIFO)
    try:
        os.mkfifo(f"{fifo}.new", 0o600)
        descriptor = os.open(f"{fifo}.new", os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.rename(f"{fifo}.new", fifo)  # with a reader: without one the run counts as killed
    except BaseException:
        remove_run_folder(path)
        raise
    return path, descriptor


def remove_run_folder(path: str) -> None:
    """Remove the folder of a run."""
    import shutil  # late: it takes as long as the rest

    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned(path: str) -> None:
    """Remove the folders of runs that were killed, beside the folder of this run."""
    with suppress(OSError), os.scandir(os.path.dirname(path)) as entries:
        for entry in entries:
            if _NAME.search(entry.name) and entry.path != path and is_run_folder(entry.path):
                with suppress(OSError):
                    if _is_abandoned(os.path.join(entry.path, _FIFO)):
                        remove_run_folder(entry.path)


def _is_abandoned(fifo: str) -> bool:
    """Return True if nobody reads the announcements."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False
