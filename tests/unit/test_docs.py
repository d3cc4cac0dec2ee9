"""The documentation: its Python blocks run, its links lead somewhere, and its API pages are complete."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.paths import ROOT

import monitel

if TYPE_CHECKING:
    from pathlib import Path
    from collections.abc import Iterator

_PATTERNS = ("*.md", "compose/**/*.md", "docs/**/*.md", "exporters/*/README.md")
PAGES = sorted(page for pattern in _PATTERNS for page in ROOT.glob(pattern))
API = ROOT / "docs" / "reference" / "api"
PACKAGES = ("monitel", "monitel_otel", "monitel_otlp", "monitel_tensorboard")
FRAMEWORKS = ("accelerate", "lightning", "transformers")
NEEDS_TORCH = re.compile(r"^\s*(?:>>> )?(?:import|from) (?:monitel\.)?torch\b", re.MULTILINE)
USES_TORCH = re.compile(r"^```python\n(?:(?!```).*\n)*?(?:>>> )?import (?:monitel\.)?torch$", re.MULTILINE)
BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^[ \t]+```python", re.MULTILINE)
OUTPUT = re.compile(r"\A\s*^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path) -> Iterator[tuple[int, str, str | None]]:
    """Yield the line and the code of each block, and its expected output: the text block that follows directly."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        if match[1]:
            continue
        output = OUTPUT.match(text[match.end() :])
        yield text[: match.start()].count("\n") + 2, match[2], output[1] if output else None


def marked(subject: Any, name: str, *, torch: bool) -> Any:
    """Return a test parameter, with the mark ``torch`` if it needs torch."""
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
    """A page's blocks run in order, in one namespace and an empty folder; the output is compared if it is shown."""
    if request.node.get_closest_marker("torch"):
        pytest.importorskip("torch", reason="the page uses torch: torch is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")  # as for readers
    assert not INDENTED.search(page.read_text()), "an indented block would not be run"
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
    """Return the anchors of a page: its headings, as GitHub writes them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names an existing file and a heading in it; `make docs` checks headings of API pages."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or target.parent == API or anchor in anchors(target), link


@pytest.mark.parametrize("page", sorted(API.glob("*.md")), ids=lambda page: page.stem)
def test_api_page_lists_every_public_name(page: Path) -> None:
    """Each name of a package's ``__all__`` has an entry on its page, or is mentioned there."""
    if page.stem == "monitel.torch":
        pytest.importorskip("torch", reason="the package uses torch: torch is not installed")
    package, text = importlib.import_module(page.stem), page.read_text()
    for name in getattr(package, "__all__", ()):  # of monitel.integrations only the modules have names
        if name.startswith("_") or isinstance(getattr(package, name), ModuleType):
            continue
        entries = f"::: {page.stem}.{name}\n", f"`{page.stem}.{name}`", f"`{name}`"
        assert any(entry in text for entry in entries), name


def modules() -> list[str]:
    """Return the names of all modules of the four distributions."""
    names = []
    for package in PACKAGES:
        found = importlib.import_module(package)
        names += [package, *(info.name for info in pkgutil.walk_packages(found.__path__, f"{package}."))]
    return [name for name in names if not name.endswith(("__main__", "_window_c", "_ranges_c"))]


def framework_of(name: str) -> str:
    """Return the framework that a module adapts: the first word of its name, as in ``transformers_trainer``."""
    return name.rpartition(".")[2].partition("_")[0]


def marked_module(name: str) -> Any:
    """Return a module's name as a test parameter, with the mark of the package that it needs."""
    if framework_of(name) in FRAMEWORKS:
        return pytest.param(name, id=name, marks=[pytest.mark.frameworks])
    return marked(name, name, torch=name.startswith("monitel.torch"))


@pytest.mark.parametrize("name", [marked_module(name) for name in modules()])
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples in the docstrings of a module run."""
    if name.startswith("monitel.torch"):
        pytest.importorskip("torch", reason="the module uses torch: torch is not installed")
    if (framework := framework_of(name)) in FRAMEWORKS:
        pytest.importorskip(framework, reason=f"the module uses {framework}, which is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")  # as for readers
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert 0 == result.failed
