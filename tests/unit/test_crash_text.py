"""monitel.process.crash_stacks.stacks_now() and crash_signal(): text of stacks, in Python alone."""

import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from traceback import walk_stack
from typing import Any

import pytest

from monitel.process import os_threads
from monitel.process.crash_stacks import crash_signal, stacks_now


@contextmanager
def waiting(names: Iterable[str], depth: int = 0) -> Iterator[None]:
    """Threads with these names that wait, so many calls deep."""
    ready, over = threading.Semaphore(0), threading.Event()

    def wait(depth: int) -> None:
        if depth:
            wait(depth - 1)
        else:
            ready.release()
            over.wait()

    threads = [threading.Thread(target=wait, args=[depth], name=name, daemon=True) for name in names]
    for thread in threads:
        thread.start()
        assert ready.acquire(timeout=30)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def test_deep_stacks_and_limits() -> None:
    """100 frames of a thread, and at most so many characters in all."""
    with waiting((f"deep {number}" for number in range(5)), 150):
        found = stacks_now()
        block = next(block for block in found.split("\n\n") if "[deep 4]" in block)
        assert 102 == len(block.splitlines())  # the first names the thread, the last is an ellipsis
        assert "  ..." == block.splitlines()[-1]
        assert len(found) > 20_000
        for limit in (20_000, 1_000, 50, 12):
            cut = stacks_now(limit)
            assert (limit, True) == (len(cut), cut.endswith("... (cut)\n"))


def test_names_that_break_lines() -> None:
    """Control characters are escaped, so that a name adds no line; the stack of the calling thread is there, too."""
    with waiting(["a\nb\x1b[31m\udc80 é"]):
        found = stacks_now()
    assert r"[a\nb\x1b[31m\udc80 é] (most" in found
    assert " in test_names_that_break_lines\n" in found


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
def test_no_garbage_is_collected_while_the_stacks_of_threads_are_read() -> None:
    """CPython 3.11 would do it between two frames, and with the lock of threads: a finalizer stops or crashes all."""
    collected: list[str] = []

    reading = {os_threads.frames.__wrapped__.__code__, walk_stack.__code__}  # type: ignore[attr-defined]

    def note(_phase: str, _details: dict[str, Any]) -> None:
        interrupted = sys._getframe(1)
        if interrupted.f_code in reading and interrupted.f_locals:  # else it has not begun yet
            collected.append("while frames were read")

    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    with waiting(f"thread {number}" for number in range(20)):  # their frames are not objects yet
        try:
            gc.set_threshold(1)
            stacks_now()
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(note)
    assert ([], True) == (collected, gc.isenabled())


def test_exception_that_ends_a_thread_of_monitel_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """By the hook of the application, or Python's, which takes its own type of arguments only."""

    def fail() -> None:
        raise OSError("no device")

    thread = os_threads.Thread(target=fail, name="monitel-test")
    previous, threading.excepthook = threading.excepthook, threading.__excepthook__
    try:
        thread.start()
        thread.join()
    finally:
        threading.excepthook = previous
    shown = capsys.readouterr().err
    assert shown.startswith("Exception in thread monitel-test:\nTraceback")
    assert shown.endswith("OSError: no device\n")
