"""Every Python block of README and docs runs, in its order, and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("exporters/*/README.md")]
)
NEEDS_TORCH = re.compile(r"^\s*(?:>>> )?(?:import|from) (?:monitel\.)?torch\b", re.MULTILINE)
USES_TORCH = re.compile(r"^```python\n(?:(?!```).*\n)*?(?:>>> )?import (?:monitel\.)?torch$", re.MULTILINE)
BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"\A\s*^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path) -> Iterator[tuple[int, str, str | None]]:
    """The line, the code, and the text block that follows it at once: what the code must print."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        if match[1]:
            continue
        output = OUTPUT.match(text[match.end() :])
        yield text[: match.start()].count("\n") + 2, match[2], output[1] if output else None


def marked(subject: Any, name: str, *, torch: bool) -> Any:
    """A parameter whose test is one of those for torch, where it needs it."""
    return pytest.param(subject, id=name, marks=[pytest.mark.torch] if torch else [])


@pytest.mark.parametrize(
    "page",
    [marked(page, str(page.relative_to(ROOT)), torch=bool(USES_TORCH.search(page.read_text()))) for page in PAGES],
)
def test_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """A page's blocks run one after another in one namespace and an empty folder; output is compared where shown."""
    if request.node.get_closest_marker("torch"):
        pytest.importorskip("torch", reason="the page uses torch: torch is not installed")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for line, code, expected in blocks(page):
        if code.lstrip().startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line)
            runner = doctest.DocTestRunner(optionflags=FLAGS)
            runner.run(test, clear_globs=False)
            assert 0 == runner.failures, capsys.readouterr().out
            namespace.update(test.globs)
            continue
        capsys.readouterr()
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        if expected is not None:
            printed = capsys.readouterr().out
            assert doctest.OutputChecker().check_output(expected, printed, FLAGS), f"{page}:{line} printed\n{printed}"
    monitel.flush()


def anchors(page: Path) -> set[str]:
    """What a link may point to on a page: its headings, as GitHub writes them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file that is there, and a heading in it."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def modules() -> list[str]:
    """Every module of the four distributions."""
    names = []
    for package in ("monitel", "monitel_otel", "monitel_otlp", "monitel_tensorboard"):
        found = importlib.import_module(package)
        names += [package, *(info.name for info in pkgutil.walk_packages(found.__path__, f"{package}."))]
    return [name for name in names if not name.endswith(("__main__", "_window_c", "_ranges_c"))]


@pytest.mark.parametrize("name", [marked(name, name, torch=name.startswith("monitel.torch")) for name in modules()])
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples in the docstrings of a module run."""
    if name.startswith("monitel.torch"):
        pytest.importorskip("torch", reason="the module uses torch: torch is not installed")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert 0 == result.failed
