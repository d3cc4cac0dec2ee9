"""Pages that repeat facts of the code: arguments and variables in the configuration, modules in the architecture."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs/explanation/architecture.md").read_text("utf-8")
SOURCES = [ROOT / "src", *(ROOT / "exporters").glob("*/src")]
VARIABLE = re.compile(r'"((?:OTEL|MONITEL|XDG|KINETO|ENABLE_PYTORCH)_[A-Z_]+)"')
#: Each function that starts something, and the headings of the tables that have its arguments.
FUNCTIONS = {
    "monitel_otlp.configure": "configure",
    "monitel_otel.install": "install",
    "monitel_tensorboard.install": "install",
    "monitel.torch.instrument": "instrument",
}


def section(heading: str) -> str:
    """Return the text below a heading of the configuration page, without its subsections."""
    return re.split(rf"^## {heading}$", CONFIGURATION, flags=re.MULTILINE)[1].split("\n#", 1)[0]


def rows(heading: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the names in the first cell of each row, and the other cells."""
    for line in section(heading).splitlines():
        if line.startswith("| `"):
            first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            yield re.findall(r"`(\w+)`", first), cells


def parameters(function: str) -> dict[str, Any]:
    """Return the parameters of a function, each with its default; skip the test if its module is missing."""
    module, _, name = function.rpartition(".")
    importable = pytest.importorskip(module, reason=f"{module} or a dependency is not installed")
    found = inspect.signature(getattr(importable, name)).parameters
    return {each.name: each.default for each in found.values()}


@pytest.mark.parametrize(
    "function",
    [pytest.param(each, marks=[pytest.mark.torch] if ".torch." in each else []) for each in FUNCTIONS],
)
def test_configuration_page_has_every_argument_and_its_default(function: str) -> None:
    """Each parameter has a row, and the row's default is that of the function."""
    documented = {name: (names, cells) for names, cells in rows(FUNCTIONS[function]) for name in names}
    for name, default in parameters(function).items():
        assert name in documented, f"{function}({name}=...) is missing on the configuration page"
        names, cells = documented[name]
        if names == [name] and isinstance(default, (bool, int, float, str)):
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            assert shown in {cell.strip("`").replace(",", "") for cell in cells[:2]}, f"{function}({name}={default!r})"


def test_configuration_page_has_no_other_arguments() -> None:
    """Each documented argument of configure() exists."""
    documented = {name for names, _ in rows("configure") for name in names}
    assert set(parameters("monitel_otlp.configure")) == documented


def test_configuration_page_has_every_variable() -> None:
    """Each environment variable that the code names is on the page."""
    code = [path.read_text("utf-8") for root in SOURCES for path in root.rglob("*.py")]
    used = {name for each in code for name in VARIABLE.findall(each)}
    assert "OTEL_METRIC_EXPORT_INTERVAL" in used
    assert not {name for name in used if f"`{name}" not in CONFIGURATION}


def test_architecture_page_names_every_module() -> None:
    """Each module is on the page, and each room on the page exists."""
    named = {name.rpartition("/")[2].removesuffix(".py") for name in re.findall(r"`([\w./]+\w)`", ARCHITECTURE)}
    paths = [path for root in SOURCES for path in root.rglob("*") if path.suffix in {".py", ".c", ".h"}]
    modules = {path.name if path.suffix != ".py" else path.stem for path in paths if not path.stem.startswith("__")}
    assert not modules - named
    rooms = re.findall(r"^\| `(\w+)/` \|", ARCHITECTURE, flags=re.MULTILINE)
    assert not set(rooms) - {path.parent.name for path in paths}
