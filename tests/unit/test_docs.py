"""The documentation: its Python blocks and docstrings run, and its links lead somewhere."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
from tests.support import state
from tests.support.paths import ROOT
from tests.unit.doc_pages import FLAGS, PAGES, as_for_readers, block_parameters, page_parameters, run_page

API = ROOT / "docs/reference/api.md"
_EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)
_SOURCES = [ROOT / "src", *sorted(ROOT.glob("exporters/*/src"))]


@pytest.mark.parametrize("page", page_parameters(processes=False))
def test_page_runs(page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks run in order, in one namespace and an empty folder, and print what the page shows."""
    run_page(page, capsys, monkeypatch)


@pytest.mark.parametrize(("page", "line"), block_parameters([each for each in PAGES if each.name == "README.md"]))
def test_block_of_a_readme_runs_alone(
    page: Path, line: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_page(page, capsys, monkeypatch, only=line)


def anchors(page: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    """Every relative link names an existing file and a heading in it; `make docs` checks headings of API pages."""
    wrong = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if "://" not in link and (
                not target.exists() or (anchor and target != API and anchor not in anchors(target))
            ):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert [] == wrong


def modules() -> dict[str, list[str]]:
    """Return the modules with examples in docstrings, by their folder; adapters of frameworks by name."""
    found: dict[str, list[str]] = {}
    for root in _SOURCES:
        for file in sorted(root.rglob("*.py")):
            name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            if _EXAMPLE.search(file.read_text("utf-8")):
                adapter = name.startswith("monitel.integrations.")
                folder = ".".join(name.split(".")[:2]) if file.parent.parent != root else file.parent.name
                found.setdefault(name if adapter else folder, []).append(name)
    return found


@pytest.mark.parametrize("group", modules())
def test_docstring_examples_run(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = group.rpartition(".")[2].partition("_")[0]
    with as_for_readers(monkeypatch):  # a framework sets variables when it is imported
        if group == "monitel.torch" or group.startswith("monitel.integrations."):
            pytest.importorskip(adapted, reason=f"{group} needs it")
    for name in modules()[group]:
        before = state._State()
        with as_for_readers(monkeypatch):
            assert 0 == doctest.testmod(importlib.import_module(name), optionflags=FLAGS).failed, name
        assert [] == before.left(), name
