"""Threads that race for the context page: each content that a reader sees is whole, and no wait is lost.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

ROUNDS = 400


def test_waits_steps_and_beats(
    context_page: Any, path: Path, read: Callable[[], Any], monitel: ModuleType, run_threads: Any
) -> None:
    """Three threads have 20 waits each, and set steps, beside beats: in the end the page has what they left."""
    writer = context_page._writer
    context_page.open_page(path)

    def work(thread: int) -> None:
        for number in range(ROUNDS):
            token = thread * ROUNDS + number
            writer.enter_wait(token, f"wait {token}", thread, number)
            if number >= 20:
                writer.leave_wait(token - 20)
            writer.set_step(token)
            writer.beat()

    run_threads(*(partial(work, thread) for thread in range(3)))
    context = read()
    left = [int(wait.key.split()[1]) for wait in context.waits]
    expected = [thread * ROUNDS + number for thread in range(3) for number in range(ROUNDS - 20, ROUNDS)]
    assert {*left} <= {*expected}
    assert len(expected) == len({*left}) + context.waits_left_out
    assert monitel.get_step() == context.step


def test_pages_are_opened_and_closed_while_they_are_written(monitel: ModuleType, twin: str, run_threads: Any) -> None:
    """No thread writes to a page that another thread has closed: in C it would end the process."""
    if twin == "py":
        return
    writer = import_module("monitel._context_c")
    running = [object()]

    def replace() -> None:
        for _ in range(200):
            writer.open(-1, 1, None, monitel._window.set_step)
            writer.close()
        running.pop()

    def write() -> None:
        token = 0
        while running:
            token += 1
            writer.enter_wait(token, "wait", 0, 0)
            writer.beat()
            writer.leave_wait(token)
            assert len(writer.content()) in {0, 8192}

    run_threads(replace, write, write)
