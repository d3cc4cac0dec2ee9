"""The pages of the documentation, and how their Python blocks run: as those of a reader, and cleaned up afterwards."""

import doctest
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support import state
from tests.support.paths import ROOT

import monitel
import monitel_otel
import monitel_otlp
import monitel_tensorboard

_PATTERNS = ("*.md", "compose/**/*.md", "docs/**/*.md", "exporters/*/README.md")
PAGES = sorted(page for pattern in _PATTERNS for page in ROOT.glob(pattern))
_BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^[ \t]+```python", re.MULTILINE)
_OUTPUT = re.compile(r"\A\s*^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
_USES_TORCH = re.compile(r"^\s*(?:>>> )?import (?:monitel\.)?torch$", re.MULTILINE)
_STARTS_PROCESSES = re.compile(r"\bsubprocess\b|\bmultiprocessing\b|\bos\.fork\b")
_TRAINING = {ROOT / "docs/tutorial/first-run.md"}  # 10,000 steps of NumPy
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


Block = tuple[int, str, str | None]  # line, code, and expected output: the text block that follows directly


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in _BLOCK.finditer(text):
        if not match[1]:
            output = _OUTPUT.match(text[match.end() :])
            yield text[: match.start()].count("\n") + 2, match[2], output[1] if output else None


def starts_processes(page: Path) -> bool:
    """Return True if a block of the page starts a process, or trains for seconds."""
    return page in _TRAINING or any(_STARTS_PROCESSES.search(code) for _, code, _ in blocks(page))


def page_parameters(*, processes: bool) -> list[Any]:
    """Return the pages that start processes, or the others, as parameters of a test."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if any(True for _ in blocks(page)) and starts_processes(page) is processes
    ]


def block_parameters(pages: list[Path]) -> list[Any]:
    """Return the pages and the lines of their blocks as parameters of a test."""
    return [pytest.param(page, line, id=f"{page.parent.name}-{line}") for page in pages for line, *_ in blocks(page)]


@contextmanager
def as_for_readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run examples with run events; end and put back what an example may leave to the end of a process."""
    before, environment = state._State(), dict(os.environ)
    pipelines: list[monitel_otlp.Pipeline] = []
    initialize = monitel_otlp.Pipeline.__init__

    def keep(self: monitel_otlp.Pipeline, *arguments: Any, **options: Any) -> None:
        pipelines.append(self)
        initialize(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setenv("MONITEL_RUN_EVENTS", "1")
        patch.setattr(monitel_otlp.Pipeline, "__init__", keep)
        try:
            yield
        finally:
            started = sys.modules.get("monitel.started_run")
            if started is not None and started._current is not None:
                started._current.end()
            for pipeline in pipelines:
                pipeline.shutdown()
            instrumentation = sys.modules.get("monitel.torch.instrumentation")
            if instrumentation is not None and instrumentation._running is not None:
                instrumentation._running.uninstrument()
            before.restore()
            monitel.flush()
    for name in {*os.environ} - {*environment}:
        del os.environ[name]
    os.environ.update(environment)


def end_what_runs(namespace: dict[str, Any]) -> None:
    """End the installations, writers and servers that a page has left to the end of its process."""
    for each in [*namespace.values()]:
        if isinstance(each, (monitel_otel.Installation, monitel_tensorboard.Installation)):
            each.uninstall()
        elif isinstance(each, monitel_tensorboard.SummaryWriter):
            each.close()
        elif isinstance(each, HTTPServer):
            each.shutdown()
            each.server_close()
    for name in [each for each in namespace if not each.startswith("__")]:  # torch.compile removes what it has added
        del namespace[name]


def run_page(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, only: int | None = None
) -> None:
    """Run a page's blocks in order, in one namespace, or only one of them; compare the output with what is shown.

    A page with torch skips the test where torch is missing.
    """
    if any(_USES_TORCH.search(code) for _, code, _ in blocks(page)):
        pytest.importorskip("torch", reason="the page uses torch: torch is not installed")
    assert not _INDENTED.search(page.read_text("utf-8")), "an indented block would not be run"
    namespace: dict[str, Any] = {"__name__": "page"}
    with as_for_readers(monkeypatch):
        try:
            for block in blocks(page):
                if only in {None, block[0]}:
                    _run_block(page, block, namespace, capsys)
        finally:
            end_what_runs(namespace)


def _run_block(page: Path, block: Block, namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    line, code, expected = block
    capsys.readouterr()
    if code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line)
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        runner.run(test, clear_globs=False)
        assert 0 == runner.failures, capsys.readouterr().out
        namespace.update(test.globs)
        return
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
    if expected is not None:
        printed = capsys.readouterr().out
        assert doctest.OutputChecker().check_output(expected, printed, FLAGS), f"{page}:{line} printed\n{printed}"
