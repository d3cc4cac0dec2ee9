"""Operations of the context page and of the signal handlers in C, used well and used wrongly."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from tests.nightly.leaks.cases import BIG, CONTENT, TEXT, Broken, covers, extension, fail, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PAGE = 8192


@covers(
    "context.open context.close context.set_step context.enter_wait context.leave_wait "
    "context.forget_left_out context.beat context.content"
)
def pages(folder: Path) -> Iterator[Callable[[], object]]:
    """A page that is opened, in a file and without one, filled with more waits than it has room for, and closed."""
    module: Any = extension("_context_c")
    descriptor = os.open(folder / "context", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, _PAGE)
    received: list[Any] = []

    def operation() -> None:
        for each in (descriptor, -1):
            module.open(each, BIG, None, received.append)
            module.set_step(BIG)
            for token in range(50):
                module.enter_wait(token, TEXT, BIG, BIG)
            module.beat()
            assert len(module.content()) == _PAGE
            module.leave_wait(0)
            module.leave_wait(49)
            assert module.forget_left_out()
        module.close()
        module.close()
        assert module.content() == b""
        received.clear()

    yield operation
    os.close(descriptor)


@covers("context.open context.set_step context.enter_wait context.leave_wait")
def pages_that_are_misused(_folder: Path) -> Iterator[Callable[[], object]]:
    """Wrong arguments, a descriptor that cannot be mapped, and a step that cannot be set."""
    module: Any = extension("_context_c")
    module.open(-1, BIG, BIG, fail)

    def operation() -> None:
        refused(TypeError, module.open)
        refused(TypeError, module.open, -1, BIG, TEXT, fail)
        refused(OverflowError, module.open, -1, BIG, 1 << 80, fail)
        refused(OSError, module.open, 1 << 20, BIG, BIG, fail)
        module.open(-1, BIG, BIG, fail)
        refused(Broken, module.set_step, BIG)
        refused(TypeError, module.set_step, TEXT)
        refused(TypeError, module.enter_wait)
        refused(TypeError, module.enter_wait, TEXT, TEXT, BIG, BIG)
        refused(TypeError, module.enter_wait, BIG, BIG, BIG, BIG)
        refused(TypeError, module.enter_wait, BIG, TEXT, BIG, None)
        refused(UnicodeEncodeError, module.enter_wait, BIG, "\udc80", BIG, BIG)
        refused(TypeError, module.leave_wait, TEXT)

    yield operation
    module.close()


@covers("crash.install crash.use_alternate_stack crash.uninstall crash.check")
def crash_handlers(folder: Path) -> Iterator[Callable[[], object]]:
    """The handler is installed, checked and removed; wrong arguments."""
    module: Any = extension("_crash_c")
    path = os.fsencode(folder / "stacks")

    def operation() -> None:
        assert module.install(path, (int(signal.SIGBUS), BIG % 7), True) >= 1
        module.use_alternate_stack()
        assert not module.check(60)
        refused(TypeError, module.check, TEXT)
        module.uninstall()
        refused(TypeError, module.install, TEXT)
        refused(ValueError, module.install, b"a\0b", (), False)
        refused(ValueError, module.install, bytes(5000).replace(b"\0", b"a"), (), False)
        refused(TypeError, module.install, path, (TEXT,), False)
        refused(TypeError, module.install, CONTENT, [], False)
        module.uninstall()

    yield operation


@covers(
    "sigterm.is_default sigterm.disposition sigterm.restore sigterm.begin sigterm.chain sigterm.decides "
    "sigterm.live_on sigterm.wait sigterm.stop"
)
def sigterm_handlers(_folder: Path) -> Iterator[Callable[[], object]]:
    """The handler is put above that of Python, and removed; wrong arguments."""
    module: Any = extension("_sigterm_c")
    previous = signal.getsignal(signal.SIGTERM)

    def handle(*_arguments: Any) -> None:
        raise AssertionError("there was no signal")

    def operation() -> None:
        before = module.disposition()
        signal.signal(signal.SIGTERM, handle)
        module.begin()
        assert module.chain(handle)
        assert module.decides(handle)
        assert not module.chain(fail)
        assert not module.is_default()
        module.live_on()
        module.stop()
        assert not module.wait()
        module.restore(before)
        refused(TypeError, module.restore, CONTENT)
        refused(TypeError, module.restore, BIG)
        signal.signal(signal.SIGTERM, previous)

    yield operation
