"""The context page: step, waits and heartbeat of a process, in a file that others can read after it was killed.

The file has 8192 bytes: the training step and when it was set, the waits in progress (at most 48), the time of the last
:func:`beat`, and the times of all steps so far, as counters. While a page is open, every :func:`monitel.set_step` and
every wait of a :class:`monitel.WaitCounter` writes to it, in any thread; without a system call if it is mapped. A
process has one page at a time. A forked child has none, and never writes to the page of its parent; it can open another
one. After ``exec`` there is none.

The writer is in C if the extension was built, otherwise in Python; ``MONITEL_NO_EXTENSIONS=1``, read at import, selects
the Python twin.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monitel import _context_py as layout
from monitel import _window, step, wait_counter
from monitel.fork import register_at_fork

if TYPE_CHECKING:
    from os import PathLike

_writer = layout
if not TYPE_CHECKING and os.environ.get("MONITEL_NO_EXTENSIONS", "0") in {"", "0"}:
    # Missing if there was no compiler, or no mmap(); any other ImportError is a fault that must be raised.
    with suppress(ModuleNotFoundError):
        import monitel._context_c as _writer

PAGE_BYTES = layout.PAGE_BYTES

_MAGIC = int.from_bytes(b"mntlctx1", "big")  # in native order in the file, so that the other order is not read
_CHECKS = struct.Struct("=" + f"Q{layout.SLOT_BODY.size}x" * layout.SLOTS)  # the checksums of all slots
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_COPY = os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True, slots=True)
class WaitInProgress:
    """A wait that had not ended when the page was read.

    Attributes:
        key: The key of the wait counter, cut off after 47 bytes of UTF-8.
        thread: The thread, as :func:`threading.get_ident` returns it.
        start_ns: When the wait began, by :func:`time.monotonic_ns`.
    """

    key: str
    thread: int
    start_ns: int


@dataclass(frozen=True, slots=True)
class Context:
    """The content of a page. Monotonic times are those of :func:`time.monotonic_ns`, since the boot of the machine.

    Attributes:
        step: The training step; None if no step was set.
        step_ns: Monotonic time at which the step was set; None if that was before the page was opened.
        waits: The waits in progress, the oldest first.
        waits_left_out: Number of further waits in progress.
        heartbeat_ns: Monotonic time of the last :func:`beat`, or of the opening; None if the content is not a page.
        heartbeat_unix_ns: The same time in nanoseconds since the Unix epoch.
        step_times: The counters of step times, as :func:`read_step_times` returns them.
    """

    step: int | None = None
    step_ns: int | None = None
    waits: tuple[WaitInProgress, ...] = ()
    waits_left_out: int = 0
    heartbeat_ns: int | None = None
    heartbeat_unix_ns: int | None = None
    step_times: bytes = field(default=b"", repr=False, compare=False)

    def unix_ns(self, monotonic_ns: int) -> int | None:
        """Return a monotonic time as nanoseconds since the Unix epoch; None if the content is not a page."""
        if self.heartbeat_ns is None or self.heartbeat_unix_ns is None:
            return None
        return self.heartbeat_unix_ns - self.heartbeat_ns + monotonic_ns


class _File:
    """The file of a page that is not mapped. It is opened for each copy: a descriptor that is kept may be reused."""

    def __init__(self, path: str | PathLike[str], status: os.stat_result) -> None:
        self._path = path
        self._identity = status.st_dev, status.st_ino

    def write(self, content: bytes) -> None:
        descriptor = os.open(self._path, _COPY)
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == self._identity:
                _write(descriptor, content)
        finally:
            os.close(descriptor)


_opened: tuple[str, _File | None] | None = None  # the path, and the file if it is not mapped


def open_page(path: str | PathLike[str], *, mapped: bool = True) -> None:
    """Create the file of a page, and write this process's context to it from now on.

    Waits that are in progress are included. A page that was open before is closed; its file stays.

    Args:
        path: The new file. It gets the mode 0600. Must not exist, not even as a symbolic link.
        mapped: Write to the file through shared memory: its content is then exact even if the process is killed at any
            instruction. Only for file systems in memory (tmpfs, ramfs): on a disk, writing to mapped memory can stop
            a thread for as long as the disk is busy. The file may be removed, but must not be made shorter: the next
            step would end this process with SIGBUS. False: :func:`beat` writes the file, so it is as old as the beat.

    Raises:
        OSError: The file cannot be created, or there is no space for it; nothing is left then.

    Example:
        >>> import pathlib, tempfile, monitel
        >>> from monitel.context_page import close_page, open_page, read_page
        >>> path = pathlib.Path(tempfile.mkdtemp(), "context")
        >>> open_page(path)
        >>> monitel.set_step(1200)
        >>> with monitel.WaitCounter("rendezvous").guard():
        ...     context = read_page(path.read_bytes())
        >>> context.step, [wait.key for wait in context.waits]
        (1200, ['rendezvous'])
        >>> close_page()
        >>> path.unlink()
    """
    global _opened
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # whatever the umask is
        _write(descriptor, bytes(PAGE_BYTES))  # allocates: a page without space would end the process with SIGBUS
        close_page()
        _writer.open(descriptor if mapped else -1, _MAGIC, step.get_step(), _window.set_step)
        _opened = os.fspath(path), None if mapped else _File(path, os.fstat(descriptor))
        step._set_with(_writer.set_step)
        wait_counter._mirror(_writer.enter_wait, _writer.leave_wait)
        if not mapped:
            _write(descriptor, _writer.content())
    except BaseException:
        close_page(path)
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108  the path may be bytes
        raise
    finally:
        os.close(descriptor)


def close_page(path: str | PathLike[str] | None = None) -> None:
    """Stop writing. The file stays, with the last content. Idempotent.

    Args:
        path: As given to :func:`open_page`; the page is left open if it is another one. None closes any page.
    """
    global _opened
    if _opened is None or (path is not None and os.fspath(path) != _opened[0]):
        return
    _opened = None
    step._set_with(None)
    wait_counter._mirror(None, None)
    _writer.close()


def beat() -> None:
    """Write the time, and the waits for which there was no slot when they began if slots are free now.

    To be called about once a second, in one thread. Does nothing without an open page.

    Raises:
        OSError: The page is not mapped, and its file cannot be written.
    """
    if (opened := _opened) is None:
        return
    _writer.beat()
    if _writer.forget_left_out():
        wait_counter._mirror(_writer.enter_wait, _writer.leave_wait)
    if opened[1] is not None and (content := _writer.content()):
        opened[1].write(content)


def own_page() -> bytes:
    """Return the bytes of the open page of this process; none without one."""
    return b"" if _opened is None else _writer.content()


def read_page(content: bytes) -> Context:
    """Return the context in the bytes of a page, whether its process is alive, writes at this moment, or was killed.

    Values that were half written are left out; the step is then the previous one. Never raises: for bytes that are not
    a page, each attribute of the result is None, zero or empty.

    Args:
        content: The content of the file, read on a machine with the same byte order.
    """
    if len(content) < layout.STEP_TIMES_AT or layout.MAGIC.unpack_from(content)[0] != _MAGIC:
        return Context()
    last_step, step_ns = _value(content, layout.STEP) or (-1, 0)
    left_out, _ = _value(content, layout.LEFT_OUT) or (0, 0)
    heartbeat_ns, heartbeat_unix_ns = _value(content, layout.BEAT) or (None, None)
    return Context(
        step=last_step if last_step >= 0 else None,
        step_ns=step_ns if last_step >= 0 and step_ns > 0 else None,
        waits=tuple(sorted(_waits(content), key=lambda wait: wait.start_ns)),
        waits_left_out=max(left_out, 0),
        heartbeat_ns=heartbeat_ns,
        heartbeat_unix_ns=heartbeat_unix_ns,
        step_times=read_step_times(content),
    )


def read_step_times(content: bytes) -> bytes:
    """Return the counters of step times in the bytes of a page, for :func:`unpack_step_times`.

    The time of a step is that from one :func:`monitel.set_step` to the next one, if the step rises by one; setting the
    same step again does not count. Times while no page was open are missing.

    Args:
        content: As for :func:`read_page`.

    Returns:
        Empty if the content is not a page, or one of a version that does not count.
    """
    end = layout.STEP_TIMES_AT + layout.STEP_TIMES.size
    if len(content) < end or layout.MAGIC.unpack_from(content)[0] != _MAGIC:
        return b""
    return bytes(content[layout.STEP_TIMES_AT : end])


def unpack_step_times(counters: bytes) -> tuple[int, ...]:
    """Return the counters as numbers, whose ranges :mod:`monitel.step_times` has; none for no bytes.

    Example:
        >>> from monitel.context_page import unpack_step_times
        >>> len(unpack_step_times(bytes(4096))), unpack_step_times(b"")
        (512, ())
    """
    return layout.STEP_TIMES.unpack(counters) if counters else ()


def _value(content: bytes, value: int) -> tuple[int, int] | None:
    """Return the latest copy with a valid checksum; None without one."""
    at = layout.COPIES_AT + layout.COPIES * layout.COPY.size * value
    places = range(at, at + layout.COPIES * layout.COPY.size, layout.COPY.size)
    copies = ((*layout.COPY.unpack_from(content, place), place) for place in places)
    for _, first, second, check, place in sorted(copies, reverse=True):
        if check == layout.checksum(content[place : place + layout.COPY_BODY.size]):
            return first, second
    return None


def _waits(content: bytes) -> list[WaitInProgress]:
    checks = _CHECKS.unpack_from(content, layout.SLOTS_AT)
    if not any(checks):
        return []  # at once, for readers of many pages
    found = []
    for slot, check in enumerate(checks):
        at = layout.SLOTS_AT + slot * layout.SLOT.size
        end = at + layout.SLOT.size
        if check and check == layout.checksum(content[end - layout.SLOT_BODY.size : end]):
            _, start_ns, thread, text = layout.SLOT.unpack_from(content, at)
            key = text[1 : 1 + text[0]].decode(errors="replace")
            found.append(WaitInProgress(key, thread, start_ns))
    return found


def _write(descriptor: int, content: bytes) -> None:
    if os.pwrite(descriptor, content, 0) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _forget() -> None:
    """Leave the page of the parent to it, in a forked child."""
    global _opened
    _opened = None
    _writer.close()


register_at_fork(after_in_child=_forget)
