"""The writer of the context page, in Python, and the layout. ``_context_c.c`` is its twin in C.

A page has 8192 bytes, in the byte order of the machine::

    0     magic number
    64    three values of four copies each, written in turns: step, beat, number of waits without a slot
    448   48 slots for waits
    4096  512 counters of step times

A copy has a number that rises with each writing, two numbers, and a checksum. The latest copy with a valid checksum is
the value. A slot has a checksum, the time at which the wait began, its thread, and its key: the length, and UTF-8 of at
most 47 bytes. A slot without a valid checksum is free, or was being written when the process was killed. A counter is
one word; :mod:`monitel.step_times` has their ranges.
"""

from __future__ import annotations

import os
import time
from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING

from monitel.mapped_files import map_file
from monitel.os_threads import RLock
from monitel.step_times import COUNTERS, counter_of

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE_BYTES = 8192
MAGIC = Struct("=Q")
COPY = Struct("=QqqQ")
COPY_BODY = Struct("=Qqq")
COPIES_AT, COPIES = 64, 4
SLOT = Struct("=QqQ48s")
SLOT_BODY = Struct("=qQ48s")
SLOTS_AT, SLOTS = 448, 48
KEY_BYTES = 47
STEP_TIMES_AT, STEP_TIMES = 4096, Struct(f"={COUNTERS}Q")
STEP, BEAT, LEFT_OUT = range(3)

_WORDS_64 = 2**64 - 1
_FREE = MAGIC.pack(0)
_WORDS_OF = {size: Struct(f"={size // 8}Q") for size in (COPY_BODY.size, SLOT_BODY.size)}


def checksum(body: bytes) -> int:
    """Return the checksum of a copy or a slot without its checksum. It is never 0."""
    total = 0x9E3779B97F4A7C15
    for word in _WORDS_OF[len(body)].unpack(body):
        total = (total ^ word) * 0xD6E8FEB86659FD93 & _WORDS_64
        total ^= total >> 32
    return total or 1


_PATIENCE = 0.2  # seconds


class _Writer:
    """An open page."""

    def __init__(self, page: mmap) -> None:
        self.process = os.getpid()
        self.page = page
        self.numbers = [0, 0, 0]
        self.step, self.step_ns = -1, 0  # when it was set first, monotonic; 0: before the page was opened
        self.left_out = 0
        self.tokens: list[int | None] = [None] * SLOTS
        self.lock = RLock()  # again by a signal handler of the thread that holds it

    def put(self, value: int, first: int, second: int) -> None:
        number = self.numbers[value] = self.numbers[value] + 1
        body = COPY_BODY.pack(number, first, second)
        at = COPIES_AT + COPY.size * (COPIES * value + number % COPIES)
        COPY.pack_into(self.page, at, number, first, second, checksum(body))

    def put_step(self, step: int) -> None:
        """Write a step. It counts if it is the one after the last: otherwise its time is not known."""
        now_ns = time.monotonic_ns()
        self.put(STEP, step, now_ns)
        if step == self.step and self.step_ns:
            return
        if self.step_ns and step == self.step + 1:
            at = STEP_TIMES_AT + MAGIC.size * counter_of(now_ns - self.step_ns)
            MAGIC.pack_into(self.page, at, MAGIC.unpack_from(self.page, at)[0] + 1)
        self.step, self.step_ns = step, now_ns

    def slot_of(self, token: int | None) -> int | None:
        tokens = self.tokens
        return tokens.index(token) if token in tokens else None


_writer: _Writer | None = None
_window_set_step: Callable[[int], object] | None = None


def _current() -> _Writer | None:
    """Return the open page; None without one, or in a forked child."""
    writer = _writer
    return writer if writer is not None and writer.process == os.getpid() else None


def open(descriptor: int, magic: int, step: int | None, set_step: Callable[[int], object]) -> None:  # noqa: A001
    """Open a page: descriptor of a file or -1, magic number, step or None, function that sets the step."""
    global _writer, _window_set_step
    close()
    writer = _Writer(mmap(-1, PAGE_BYTES) if descriptor < 0 else map_file(descriptor, PAGE_BYTES))
    writer.step = -1 if step is None else step
    writer.put(STEP, writer.step, 0)
    writer.put(LEFT_OUT, 0, 0)
    writer.put(BEAT, time.monotonic_ns(), time.time_ns())
    MAGIC.pack_into(writer.page, 0, magic)
    _window_set_step, _writer = set_step, writer


def close() -> None:
    """Close the page. Idempotent. It is unmapped when no other thread is writing to it."""
    global _writer
    _writer = None


def set_step(step: int) -> None:
    """Set the step of windows, and write it."""
    if _window_set_step is None:
        raise RuntimeError("set_step() needs open()")
    if (writer := _current()) is None:
        _window_set_step(step)
        return
    with writer.lock:  # of two threads the same one is last in both
        _window_set_step(step)
        writer.put_step(step)


def enter_wait(token: int, key: str, thread: int, start_ns: int) -> None:
    """Write a wait: token, key, thread, monotonic ns."""
    if (writer := _current()) is None:
        return
    text = key.encode()
    if len(text) > KEY_BYTES:
        text = text[:KEY_BYTES].decode(errors="ignore").encode()  # not cut off within a character
    start_ns = (start_ns + 2**63 & _WORDS_64) - 2**63  # a test's clock may be of any size
    body = SLOT_BODY.pack(start_ns, thread & _WORDS_64, bytes((len(text),)) + text)
    content = MAGIC.pack(checksum(body)) + body
    with writer.lock:
        slot = writer.slot_of(token)
        if slot is None:
            slot = writer.slot_of(None)
        if slot is None:
            writer.left_out += 1
            writer.put(LEFT_OUT, writer.left_out, 0)
        else:
            writer.tokens[slot] = token
            at = SLOTS_AT + SLOT.size * slot
            writer.page[at : at + SLOT.size] = content


def leave_wait(token: int) -> None:
    """Remove a wait by its token."""
    if (writer := _current()) is None:
        return
    with writer.lock:
        slot = writer.slot_of(token)
        if slot is not None:
            at = SLOTS_AT + SLOT.size * slot
            writer.page[at : at + len(_FREE)] = _FREE
            writer.tokens[slot] = None
        elif writer.left_out > 0:
            writer.left_out -= 1
            writer.put(LEFT_OUT, writer.left_out, 0)


def forget_left_out() -> bool:
    """Set the number of waits without a slot to zero; return whether there were any."""
    if (writer := _current()) is None:
        return False
    if not writer.lock.acquire(timeout=_PATIENCE):
        return False
    try:
        any_left_out = writer.left_out > 0
        if any_left_out:
            writer.left_out = 0
            writer.put(LEFT_OUT, 0, 0)
    finally:
        writer.lock.release()
    return any_left_out


def beat() -> None:
    """Write the time, unless a signal handler runs for long in a thread that was writing."""
    if (writer := _current()) is not None and writer.lock.acquire(timeout=_PATIENCE):
        try:
            writer.put(BEAT, time.monotonic_ns(), time.time_ns())
        finally:
            writer.lock.release()


def content() -> bytes:
    """Return the bytes of the page; none if it is closed."""
    writer = _current()
    return b"" if writer is None else writer.page[:]
