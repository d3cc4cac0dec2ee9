"""The page: step, waits, heartbeat and step times of a process, exact even if it is killed at any instruction.

It is a file of 8192 bytes as memory. While it is open every :func:`monitel.set_step` and every wait writes to it, in
any thread, without a system call that gives the GIL away. A process has one. A forked child, also one that C code has
forked, has none. In the byte order of the machine::

    0     magic number
    64    four copies of step and its time, and four of the heartbeat, each written in turns
    320   48 slots for waits
    4096  512 counters of step times, see :func:`counter_of`

A copy has two numbers, a third one that rises with each writing, and a checksum: the latest one that is whole counts.
A slot has a checksum, the begin of the wait, its thread, the length of its key, and at most 47 bytes of it in UTF-8.
One without a valid checksum is free, or was being written. A wait that finds no free slot is not there.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Any
from zlib import crc32

from monitel import wait_counter
from monitel.blackbox.folder import Folder, map_file
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock
from monitel.stats import _window
from monitel.training import step

PAGE = "page"
PAGE_BYTES = 8192
#: Of step times: each is for a range of times, and each power of two has 16 of them.
COUNTERS = 512  # from 2**10 ns, a microsecond, to 2**42 ns, an hour and 13 minutes
_PART_BITS, _LOWEST_BIT = 4, 10
_PARTS = 1 << _PART_BITS

_WORD = Struct("=Q")
_MAGIC = _WORD.pack(int.from_bytes(b"mntlctx3", "big"))  # so that a page in the other byte order is not read
_COPY, _COPY_BODY, _COPIES_AT, _COPIES = Struct("=qqQQ"), Struct("=qqQ"), 64, 4
_STEP, _BEAT = range(2)
_SLOT, _SLOT_BODY, _SLOTS_AT, _SLOTS = Struct("=QqQ48s"), Struct("=qQ48s"), 320, 48
_PLACES = [slice(at, at + _SLOT.size) for at in range(_SLOTS_AT, _SLOTS_AT + _SLOTS * _SLOT.size, _SLOT.size)]
_KEY_BYTES = 47
_FREE = bytes(_SLOT.size)
_STEP_TIMES, _STEP_TIMES_AT = Struct(f"={COUNTERS}Q"), 4096


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
    heartbeat_ns: int | None = None  # of the last beat(), or of the opening, monotonic; None if it is not a page
    heartbeat_unix_ns: int | None = None  # the same time
    #: Counters of the times from one :func:`monitel.set_step` to the next one, if it rises by one; none without a page.
    step_times: tuple[int, ...] = field(default=(), repr=False, compare=False)

    def unix_ns(self, monotonic_ns: int) -> int | None:
        """Return a monotonic time as nanoseconds since the Unix epoch; None if the content is not a page."""
        if self.heartbeat_ns is None or self.heartbeat_unix_ns is None:
            return None
        return self.heartbeat_unix_ns - self.heartbeat_ns + monotonic_ns


class _Page:
    """The page that is open."""

    def __init__(self, folder: Folder, memory: Any) -> None:
        self.folder, self.memory = folder, memory
        self._step_times = memoryview(memory)[_STEP_TIMES_AT:].cast("Q")
        self._pid = os.getpid()  # a child that C code has forked does not call close_page()
        self._numbers = [0, 0]  # of the last copies
        own = step.get_step() if step.made_steps() else None  # a forked child begins with the step of its parent
        self._step, self._step_ns = own, 0  # when it was set first; 0: before the page was opened
        self._slots: dict[int, slice] = {}  # their places, by the token of the wait
        self._free = [*_PLACES]
        self._lock = RLock()  # of steps, again by a signal handler
        self._put(_STEP, -1 if self._step is None else self._step, 0)
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
        """Write a wait. Called with the lock of waits, as leave_wait() is."""
        body = _SLOT_BODY.pack(start_ns, thread, _short(key))
        content = _WORD.pack(crc32(body)) + body
        if os.getpid() != self._pid:
            return
        slots, free = self._slots, self._free
        if free and token not in slots:  # no call until both are changed: Ctrl-C raises after one
            slots[token] = free[-1]
            del free[-1]
        if token in slots:
            self.memory[slots[token]] = content

    def leave_wait(self, token: int) -> None:
        if os.getpid() == self._pid and token in self._slots:
            slot = self._slots[token]  # no call until it is free, as above
            self.memory[slot] = _FREE
            del self._slots[token]
            self._free.append(slot)

    def beat(self) -> None:
        """Write the time."""
        self._put(_BEAT, time.monotonic_ns(), time.time_ns())

    def _put(self, value: int, first: int, second: int) -> None:
        number = self._numbers[value] = self._numbers[value] + 1
        at = _COPIES_AT + _COPY.size * (_COPIES * value + number % _COPIES)
        _COPY.pack_into(self.memory, at, first, second, number, crc32(_COPY_BODY.pack(first, second, number)))


_page: _Page | None = None


def open_page(folder: Folder) -> None:
    """Make the page of this process in a folder in memory, and write to it from now on, and to no earlier one."""
    global _page
    descriptor = folder.open_file(PAGE, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(descriptor, 0, PAGE_BYTES)  # a page without space would end the process with SIGBUS
        _page = page = _Page(folder, map_file(descriptor, PAGE_BYTES))
    finally:
        os.close(descriptor)
    step._set_with(page.set_step)
    wait_counter._mirror(page.enter_wait, page.leave_wait)


def close_page(folder: Folder | None = None) -> None:
    """Stop writing to the page, if it is in this folder. The file stays."""
    global _page
    if _page is not None and folder in {None, _page.folder}:
        _page = None
        step._set_with(None)
        wait_counter._mirror(None, None)


def beat() -> None:
    """Write the time, if there is a page. Called once a second."""
    if (page := _page) is not None:
        page.beat()


def own_page() -> Context:
    return Context() if (page := _page) is None else read_page(bytes(page.memory))


def read_page(content: Any) -> Context:
    """Return what the bytes of a page say; nothing if they are not a page. Never raises."""
    if len(content) < PAGE_BYTES or content[: len(_MAGIC)] != _MAGIC:
        return Context()
    last_step, step_ns = _latest(content, _STEP) or (-1, 0)
    heartbeat_ns, heartbeat_unix_ns = _latest(content, _BEAT) or (None, None)
    return Context(
        step=last_step if last_step >= 0 else None,
        step_ns=step_ns if last_step >= 0 and step_ns > 0 else None,
        waits=tuple(sorted(_waits(content), key=lambda wait: wait.start_ns)),
        heartbeat_ns=heartbeat_ns,
        heartbeat_unix_ns=heartbeat_unix_ns,
        step_times=_STEP_TIMES.unpack_from(content, _STEP_TIMES_AT),
    )


def _latest(content: Any, value: int) -> tuple[int, int] | None:
    begin, found = _COPIES_AT + _COPIES * _COPY.size * value, []
    for at in range(begin, begin + _COPIES * _COPY.size, _COPY.size):
        first, second, number, check = _COPY.unpack_from(content, at)
        if check == crc32(content[at : at + _COPY_BODY.size]):
            found.append((number, first, second))
    return max(found)[1:] if found else None


def _waits(content: Any) -> Iterator[WaitInProgress]:
    for each in map(content.__getitem__, _PLACES):
        check, start_ns, thread, text = _SLOT.unpack(each)
        if check and check == crc32(each[_WORD.size :]):
            yield WaitInProgress(text[1 : 1 + text[0]].decode(errors="replace"), thread, start_ns)


@lru_cache
def _short(key: str) -> bytes:
    """Return a key as it is in a slot: its length and its text, not cut off within a character."""
    text = key.encode()[:_KEY_BYTES].decode(errors="ignore").encode()
    return bytes((len(text),)) + text


# ---- step times


def counter_of(time_ns: int) -> int:
    """Return the counter of a time; the first one and the last one are for shorter and longer times as well."""
    bit = time_ns.bit_length() - 1
    if bit < _LOWEST_BIT:
        return 0
    counter = (bit - _LOWEST_BIT) * _PARTS + (time_ns >> bit - _PART_BITS) % _PARTS
    return counter if counter < COUNTERS else COUNTERS - 1


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Return the seconds that a fraction ``q`` of the times does not exceed, within 3.2 %; None without a time."""
    up_to = [*accumulate(counts)]
    if not up_to or up_to[-1] < 1:
        return None
    counter = bisect_left(up_to, max(q * up_to[-1], 1))
    return (_begin_ns(counter) + _begin_ns(counter + 1)) / 2e9


def _begin_ns(counter: int) -> int:
    power, part = divmod(counter, _PARTS)
    return _PARTS + part << power + _LOWEST_BIT - _PART_BITS


register_at_fork(after_in_child=close_page)
