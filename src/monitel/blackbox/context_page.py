"""The context page: step, waits and heartbeat of a process, in a file that others can read after it was killed.

The file has 8192 bytes: the training step and when it was set, the waits in progress (at most 48), the time of the last
:func:`beat`, and the times of all steps so far, as counters. While a page is open, every :func:`monitel.set_step` and
every wait of a :class:`monitel.WaitCounter` writes to it, in any thread, without a system call. A process has one page
at a time. A forked child, also one that C code has forked, has none, and never writes to the page of its parent; it can
open another one. After ``exec`` there is none.

The layout, in the byte order of the machine::

    0     magic number
    64    three values of four copies each, written in turns: step, beat, number of waits without a slot
    448   48 slots for waits
    4096  512 counters of step times

A copy has two numbers, a third one that rises with each writing, and a checksum. The latest copy with a valid checksum
is the value. A slot has a checksum, the time at which the wait began, its thread, and its key: the length, and UTF-8 of
at most 47 bytes. A slot without a valid checksum is free, or was being written when the process was killed. A counter
is one word; :func:`counter_of` has their ranges.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Any
from zlib import crc32

from monitel import wait_counter
from monitel.blackbox.folder import map_file
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock
from monitel.stats import _window
from monitel.training import step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

PAGE_BYTES = 8192
#: Of step times: each is for a range of times, and each power of two has 16 of them.
COUNTERS = 512  # from 2**10 ns, a microsecond, to 2**42 ns, an hour and 13 minutes
_PART_BITS, _LOWEST_BIT = 4, 10
_PARTS = 1 << _PART_BITS

_WORD, _FREE = Struct("=Q"), bytes(8)
_MAGIC = _WORD.pack(int.from_bytes(b"mntlctx2", "big"))  # so that a page in the other byte order is not read
_COPY, _COPY_BODY, _COPIES_AT, _COPIES = Struct("=qqQQ"), Struct("=qqQ"), 64, 4
_STEP, _BEAT, _LEFT_OUT = range(3)
_SLOT, _SLOT_BODY, _SLOTS_AT, _SLOTS = Struct("=QqQ48s"), Struct("=qQ48s"), 448, 48
_KEY_BYTES = 47
_STEP_TIMES, _STEP_TIMES_AT = Struct(f"={COUNTERS}Q"), 4096
_CHECKS = Struct("=" + f"Q{_SLOT_BODY.size}x" * _SLOTS)  # the checksums of all slots

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class WaitInProgress:
    """A wait that had not ended when the page was read."""

    key: str  # of the wait counter, cut off after 47 bytes of UTF-8
    thread: int  # as threading.get_ident() returns it
    start_ns: int  # monotonic


@dataclass(frozen=True, slots=True)
class Context:
    """The content of a page. Monotonic times are those of :func:`time.monotonic_ns`, since the boot of the machine."""

    step: int | None = None  # None if no step was set
    step_ns: int | None = None  # when the step was set, monotonic; None if that was before the page was opened
    waits: tuple[WaitInProgress, ...] = ()  # the oldest first
    waits_left_out: int = 0  # number of further waits in progress
    heartbeat_ns: int | None = None  # of the last beat(), or of the opening, monotonic; None if it is not a page
    heartbeat_unix_ns: int | None = None  # the same time
    step_times: bytes = field(default=b"", repr=False, compare=False)  # as read_step_times() returns them

    def unix_ns(self, monotonic_ns: int) -> int | None:
        """Return a monotonic time as nanoseconds since the Unix epoch; None if the content is not a page."""
        if self.heartbeat_ns is None or self.heartbeat_unix_ns is None:
            return None
        return self.heartbeat_unix_ns - self.heartbeat_ns + monotonic_ns


class _Page:
    """The page that is open: its file, and the memory of its content."""

    def __init__(self, path: str | PathLike[str], memory: Any) -> None:
        self.path = os.fspath(path)
        self._memory = memory
        self._step_times = memoryview(memory)[_STEP_TIMES_AT:].cast("Q")
        self._pid = os.getpid()  # a child that C code has forked does not call close_page()
        self._numbers = [0, 0, 0]  # of the last copies
        self._step, self._step_ns = step.get_step(), 0  # when it was set first; 0: before the page was opened
        self._slots: dict[int, int] = {}  # by the token of the wait
        self._free = [*range(_SLOTS)]
        self._left_out: set[int] = set()  # tokens of waits without a slot
        self._lock = RLock()  # of steps, again by a signal handler
        self._put(_STEP, -1 if self._step is None else self._step, 0)
        self._put(_LEFT_OUT, 0, 0)
        self.beat()
        memory[: len(_MAGIC)] = _MAGIC

    def set_step(self, step: int) -> None:
        """Set the step of windows, and write it. Its time counts if it is the one after the last."""
        with self._lock:  # of two threads the same one is last in both
            _window.set_step(step)
            if os.getpid() != self._pid:
                return
            now_ns = time.monotonic_ns()
            self._put(_STEP, step, now_ns)
            last, last_ns = self._step, self._step_ns
            if step != last or not last_ns:
                if last_ns and step - 1 == last:
                    self._step_times[counter_of(now_ns - last_ns)] += 1
                self._step, self._step_ns = step, now_ns

    def enter_wait(self, token: int, key: str, thread: int, start_ns: int) -> None:
        """Write a wait, or count it if there is no slot. Called with the lock of waits, as leave_wait() is."""
        body = _SLOT_BODY.pack(start_ns, thread, _short(key))
        content = _WORD.pack(_checksum(body)) + body
        if os.getpid() != self._pid:
            return
        slots, free = self._slots, self._free
        if token not in slots:  # no call until the slot has its token: an interrupt comes after a call
            if not free:
                self._left_out.add(token)
                self._put(_LEFT_OUT, len(self._left_out), 0)
                return
            slots[token] = free[-1]
            del free[-1]
            if token in self._left_out:
                self._left_out.remove(token)
                self._put(_LEFT_OUT, len(self._left_out), 0)
        at = _SLOTS_AT + _SLOT.size * slots[token]
        self._memory[at : at + _SLOT.size] = content

    def leave_wait(self, token: int) -> None:
        """Remove a wait."""
        if os.getpid() != self._pid:
            return
        if token in self._slots:  # no call until the slot is free
            slot = self._slots[token]
            at = _SLOTS_AT + _SLOT.size * slot
            self._memory[at : at + 8] = _FREE
            del self._slots[token]
            self._free.append(slot)
        elif token in self._left_out:
            self._left_out.remove(token)
            self._put(_LEFT_OUT, len(self._left_out), 0)

    def beat(self) -> bool:
        """Write the time, and return whether there are waits without a slot that could have one."""
        self._put(_BEAT, time.monotonic_ns(), time.time_ns())
        return bool(self._left_out and self._free)

    def content(self) -> bytes:
        """Return the bytes of the page."""
        return bytes(self._memory[:])

    def _put(self, value: int, first: int, second: int) -> None:
        number = self._numbers[value] = self._numbers[value] + 1
        at = _COPIES_AT + _COPY.size * (_COPIES * value + number % _COPIES)
        check = _checksum(_COPY_BODY.pack(first, second, number))
        _COPY.pack_into(self._memory, at, first, second, number, check)


_page: _Page | None = None


def open_page(path: str | PathLike[str]) -> None:
    """Create the file of a page, and write this process's context to it from now on.

    Waits that are in progress are included. A page that was open before is closed; its file stays.

    The file is written through shared memory, so that its content is exact even if the process is killed at any
    instruction. It may be removed, but must not be made shorter: the next step would end this process with SIGBUS.

    Args:
        path: The new file, in a file system in memory (tmpfs, ramfs): on a disk, writing to mapped memory can stop a
            thread for as long as the disk is busy. It gets the mode 0600. Must not exist, not even as a symbolic link.

    Raises:
        OSError: The file cannot be created, or there is no space for it; nothing is left then.

    Example:
        >>> import pathlib, tempfile, monitel
        >>> from monitel.blackbox.context_page import close_page, open_page, read_page
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
    global _page
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # whatever the umask is
        _write(descriptor, bytes(PAGE_BYTES))  # allocates: a page without space would end the process with SIGBUS
        close_page()
        _page = page = _Page(path, map_file(descriptor, PAGE_BYTES))
        step._set_with(page.set_step)
        wait_counter._mirror(page.enter_wait, page.leave_wait)
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
    global _page
    if _page is not None and (path is None or os.fspath(path) == _page.path):
        _page = None
        step._set_with(None)
        wait_counter._mirror(None, None)


def beat() -> None:
    """Write the time, and the waits for which there was no slot when they began if slots are free now.

    To be called about once a second, in one thread. Does nothing without an open page.
    """
    if (page := _page) is not None and page.beat():
        wait_counter._mirror(page.enter_wait, page.leave_wait)


def own_page() -> bytes:
    """Return the bytes of the open page of this process; none without one."""
    return b"" if (page := _page) is None else page.content()


def read_page(content: bytes) -> Context:
    """Return the context in the bytes of a page, whether its process is alive, writes at this moment, or was killed.

    Values that were half written are left out; the step is then the previous one. Never raises: for bytes that are not
    a page, or one of the other byte order, each attribute of the result is None, zero or empty.
    """
    if len(content) < _STEP_TIMES_AT or not content.startswith(_MAGIC):
        return Context()
    last_step, step_ns = _value(content, _STEP) or (-1, 0)
    left_out, _ = _value(content, _LEFT_OUT) or (0, 0)
    heartbeat_ns, heartbeat_unix_ns = _value(content, _BEAT) or (None, None)
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
    """Return the counters of step times in the bytes of a page, for :func:`unpack_step_times`; none without a page.

    The time of a step is that from one :func:`monitel.set_step` to the next one, if the step rises by one; setting the
    same step again does not count. Times while no page was open are missing.
    """
    is_page = len(content) >= PAGE_BYTES and content.startswith(_MAGIC)
    return content[_STEP_TIMES_AT : _STEP_TIMES_AT + _STEP_TIMES.size] if is_page else b""


def unpack_step_times(counters: bytes) -> tuple[int, ...]:
    """Return the counters as numbers, whose ranges :func:`counter_of` has; none for no bytes."""
    return _STEP_TIMES.unpack(counters) if counters else ()


def counter_of(time_ns: int) -> int:
    """Return the counter of a time; the first one and the last one are for shorter and longer times as well.

    Example:
        >>> from monitel.blackbox.context_page import counter_of
        >>> counter_of(0), counter_of(1024), counter_of(2047), counter_of(2048), counter_of(2**50)
        (0, 0, 15, 16, 511)
    """
    bit = time_ns.bit_length() - 1
    if bit < _LOWEST_BIT:
        return 0
    counter = (bit - _LOWEST_BIT) * _PARTS + (time_ns >> bit - _PART_BITS) % _PARTS
    return counter if counter < COUNTERS else COUNTERS - 1


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Return the seconds that a fraction ``q`` of the times does not exceed, within 3.2 %; None without a time.

    Example:
        >>> from monitel.blackbox.context_page import COUNTERS, counter_of, quantile
        >>> counts = [0] * COUNTERS
        >>> counts[counter_of(100_000_000)] = 99
        >>> counts[counter_of(1_000_000_000)] = 1
        >>> f"{quantile(counts, 0.5):.2f} {quantile(counts, 1.0):.1f}"
        '0.10 1.0'
    """
    up_to = [*accumulate(counts)]
    if not up_to or up_to[-1] < 1:
        return None
    counter = bisect_left(up_to, max(q * up_to[-1], 1))
    return (_begin_ns(counter) + _begin_ns(counter + 1)) / 2e9


def _begin_ns(counter: int) -> int:
    power, part = divmod(counter, _PARTS)
    return _PARTS + part << power + _LOWEST_BIT - _PART_BITS


@lru_cache
def _short(key: str) -> bytes:
    """Return a key as it is in a slot: its length and its text, not cut off within a character."""
    text = key.encode()[:_KEY_BYTES].decode(errors="ignore").encode()
    return bytes((len(text),)) + text


def _checksum(body: bytes) -> int:
    """Return the checksum of a copy or a slot. It is never 0."""
    return 1 << 32 | crc32(body)


def _value(content: bytes, value: int) -> tuple[int, int] | None:
    """Return the latest copy with a valid checksum; None without one."""
    begin = _COPIES_AT + _COPIES * _COPY.size * value
    found = [
        (number, first, second)
        for at in range(begin, begin + _COPIES * _COPY.size, _COPY.size)
        for first, second, number, check in [_COPY.unpack_from(content, at)]
        if check == _checksum(content[at : at + _COPY_BODY.size])
    ]
    return max(found)[1:] if found else None


def _waits(content: bytes) -> list[WaitInProgress]:
    checks = _CHECKS.unpack_from(content, _SLOTS_AT)
    if not any(checks):
        return []  # at once, for readers of many pages
    found = []
    for slot, check in enumerate(checks):
        at = _SLOTS_AT + slot * _SLOT.size
        if check and check == _checksum(content[at + 8 : at + _SLOT.size]):
            _, start_ns, thread, text = _SLOT.unpack_from(content, at)
            key = text[1 : 1 + text[0]].decode(errors="replace")
            found.append(WaitInProgress(key, thread, start_ns))
    return found


def _write(descriptor: int, content: bytes) -> None:
    if os.pwrite(descriptor, content, 0) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


register_at_fork(after_in_child=close_page)
