"""Compilations as the activity ``compile``."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.torch.ledger.conftest import Book, Other

torch: Any = pytest.importorskip("torch", reason="compiles with torch.compile: torch is not installed")

from monitel.torch import _compat  # noqa: E402  after the check for torch
from monitel.torch.sources.compilation_activity import CompilationActivity  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # raised within torch
]


@pytest.fixture(autouse=True)
def source() -> Iterator[CompilationActivity]:
    """Install the source."""
    torch._dynamo.reset()
    source = CompilationActivity()
    source.install()
    yield source
    source.remove()
    torch._dynamo.reset()


def compile_for(book: Book, seconds: int, error: Exception | None = None) -> Callable[[Any], Any]:
    """Return a compiled function whose compilation takes this long, and may raise."""

    def backend(module: Any, _inputs: Any) -> Any:
        book.wait(seconds)
        if error is not None:
            raise error
        return module.forward

    def double(x: Any) -> Any:
        return x * 2

    compiled: Callable[[Any], Any] = torch.compile(double, backend=backend, dynamic=False)
    return compiled


def test_compilation_is_compile(book: Book) -> None:
    """A compilation does not end startup. Further calls of compiled code are not compilations."""
    compiled = compile_for(book, 4)
    for _ in range(3):
        compiled(torch.ones(2))
        book.wait(1)
    assert {"compile": 4, "startup": 3} == book.seconds
    monitel.set_step(1)
    compiled(torch.ones(3))
    book.wait(1)
    assert {"compile": 8, "startup": 3, "step": 1} == book.seconds


def test_compile_ends_with_an_exception(book: Book) -> None:
    """The compiler's exception is raised as without monitel."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        compile_for(book, 4, ValueError("no such backend"))(torch.ones(2))
    book.wait(1)
    assert {"compile": 4, "startup": 1} == book.seconds


def test_compilations_of_other_threads_do_not_count(book: Book, other: Other) -> None:
    """A compilation of the training thread ends, even if that of another thread goes on."""
    handler: Any = _compat.compilation_scopes()
    trigger = torch._dynamo.callback.CallbackTrigger.DYNAMO
    with handler.install_callbacks(trigger, "0/0"):
        book.wait(1)

        def compile_too() -> None:
            with handler.install_callbacks(trigger, "1/0"):
                started.set()
                other.wait()

        started = Event()
        other.start(compile_too)
        assert started.wait(30)
    book.wait(10)
    assert {"compile": 1, "startup": 10} == book.seconds
    with handler.install_callbacks(trigger, "2/0"):
        book.wait(100)
    assert {"compile": 101, "startup": 10} == book.seconds


def test_compile_survives_a_compiler_reset(book: Book) -> None:
    """A reset clears the compiler's callbacks, which this source does not need."""
    torch.compiler.reset()
    compile_for(book, 4)(torch.ones(2))
    assert {"compile": 4} == book.seconds


def test_source_that_is_removed_within_a_compilation_ends_it(book: Book, source: CompilationActivity) -> None:
    """The method of the class is restored, and no activity stays."""
    handler: Any = _compat.compilation_scopes()
    with handler.install_callbacks(torch._dynamo.callback.CallbackTrigger.DYNAMO, "0/0"):
        source.remove()
        book.wait(1)
    book.wait(10)
    assert {"compile": 1, "startup": 10} == book.seconds
    assert "install_callbacks" not in vars(handler)
    compile_for(book, 4)(torch.ones(2))
    assert {"compile": 1, "startup": 14} == book.seconds


def test_missing_method_is_named(source: CompilationActivity, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is not installed, and the error names the missing attribute."""
    source.remove()
    monkeypatch.delattr("torch._dynamo.callback.CompilationCallbackHandler.install_callbacks")
    with pytest.raises(_compat.Missing, match="install_callbacks"):
        CompilationActivity().install()
