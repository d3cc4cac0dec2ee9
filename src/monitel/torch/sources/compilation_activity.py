"""The activity ``compile``: time in which the training thread compiles."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monitel.import_hook import AfterImport
from monitel.torch._compat import COMPILER, compilation_scopes
from monitel.torch.thread_activity import training_activity

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "install_callbacks"


class CompilationActivity:
    """Counts each compilation in the training thread as ``compile``, including one that raises.

    The compiler's callbacks are not enough: of compilations in several threads at a time, they report only the start of
    the first one and the end of the last one. So the compiler's context manager around each compilation is wrapped.

    Installing does not load the compiler.
    """

    def install(self) -> None:
        """Wrap the context manager once the compiler is loaded."""
        self._on = True
        self._handler: Any = None
        self._compiler = AfterImport(COMPILER, self._wrap)

    def remove(self) -> None:
        """Restore the context manager. If somebody else has wrapped it since, it stays and only passes calls on."""
        self._on = False
        self._compiler.cancel()
        if self._handler is not None and vars(self._handler).get(_NAME) is self._wrapped:
            if self._replaced is None:
                delattr(self._handler, _NAME)  # now it is that of the class again
            else:
                setattr(self._handler, _NAME, self._replaced)

    def _wrap(self) -> None:
        handler = compilation_scopes()
        original, self._replaced = getattr(handler, _NAME), vars(handler).get(_NAME)

        @contextmanager
        def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
            if not self._on:
                with original(*args, **kwargs) as value:
                    yield value
                return
            with training_activity("compile"), original(*args, **kwargs) as value:
                yield value

        self._handler, self._wrapped = handler, counted
        setattr(handler, _NAME, counted)
