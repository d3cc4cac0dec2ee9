"""monitel.process.crash_stacks.stacks_now() and crash_signal(): text of stacks, in Python alone."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monitel.process import os_threads
from monitel.process.crash_stacks import crash_signal, stacks_now


class Waiting:
    def __init__(self) -> None:
        self._ready = threading.Semaphore(0)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[[], object], name: str) -> threading.Thread:
        """Start a thread; return it when its function has called :meth:`wait`."""
        thread = threading.Thread(target=function, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        assert self._ready.acquire(timeout=30)
        return thread

    def wait(self) -> None:
        self._ready.release()
        self._over.wait()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    threads = Waiting()
    yield threads
    threads.end()


def test_deep_stacks_and_limits(waiting: Waiting) -> None:
    """100 frames of a thread, and at most so many characters in all."""

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            waiting.wait()

    for number in range(5):
        waiting.start(lambda: deep(150), f"deep {number}")
    found = stacks_now()
    block = next(block for block in found.split("\n\n") if "[deep 4]" in block)
    assert 102 == len(block.splitlines())  # the first names the thread, the last is an ellipsis
    assert "  ..." == block.splitlines()[-1]
    assert len(found) > 20_000
    for limit in (20_000, 1_000, 50, 12):
        cut = stacks_now(limit)
        assert len(cut) == limit
        assert cut.endswith("... (cut)\n")


def test_names_that_break_lines(waiting: Waiting) -> None:
    """Control characters are escaped, so that a name adds no line and reaches no terminal."""
    waiting.start(waiting.wait, "a\nb\x1b[31m\udc80 é")
    assert r"[a\nb\x1b[31m\udc80 é] (most" in stacks_now()


def test_crash_signal() -> None:
    """The first line of faulthandler, or nothing."""
    for text, number in (
        ("Fatal Python error: Segmentation fault\n\nThread ...", 11),
        ("Fatal Python error: Floating-point exception\n", 8),
        ("Fatal Python error: Floating point exception\n", 8),
        ("Fatal Python error: Aborted\n\n", 6),
        ("Fatal Python error: Aborted", None),
        ("Fatal Python error: another one\n", None),
        ("\nFatal Python error: Aborted\n", None),
        ("", None),
    ):
        assert number == crash_signal(text), text


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions collect garbage without the lock")
def test_no_garbage_is_collected_while_the_frames_of_threads_are_read(waiting: Waiting) -> None:
    """CPython 3.11 would do it with the lock that threads need to end: a finalizer that waits stops all."""
    collected: list[str] = []

    def note(_phase: str, _details: dict[str, Any]) -> None:
        if sys._getframe(1).f_code is os_threads.frames.__code__:
            collected.append("while frames were read")

    for number in range(20):  # their frames are not objects yet
        waiting.start(waiting.wait, f"thread {number}")
    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    try:
        gc.set_threshold(1)
        os_threads.frames()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
    assert ([], True) == (collected, gc.isenabled())
