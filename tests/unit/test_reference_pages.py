"""Pages that repeat facts of the code: arguments and variables in the configuration, modules in the architecture."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.paths import ROOT

from monitel.variables import Variable, name_of_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
#: The functions whose arguments have variables, and the modules with the tables of these.
CHOICES = {"monitel_otlp.configure": "monitel_otlp.choices", "monitel.torch.instrument": "monitel.torch.options"}


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


def marked(functions: Iterable[str]) -> list[Any]:
    """Return functions as parameters of a test, those of torch with its mark."""
    return [pytest.param(each, marks=[pytest.mark.torch] if ".torch." in each else []) for each in functions]


@pytest.mark.parametrize("function", marked(FUNCTIONS))
def test_configuration_page_has_every_argument_and_its_default(function: str) -> None:
    """Each parameter has a row, and the row's default is that of the function."""
    documented = {name: (names, cells) for names, cells in rows(FUNCTIONS[function]) for name in names}
    for name, default in parameters(function).items():
        assert name in documented, f"{function}({name}=...) is missing on the configuration page"
        names, cells = documented[name]
        if names == [name] and isinstance(default, (bool, int, float, str)):
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            assert shown in {cell.strip("`").replace(",", "") for cell in cells[:2]}, f"{function}({name}={default!r})"


@pytest.mark.parametrize("function", marked(CHOICES))
def test_configuration_page_has_no_other_arguments(function: str) -> None:
    """Each documented argument exists."""
    documented = {name for names, _ in rows(FUNCTIONS[function]) for name in names}
    assert set(parameters(function)) == documented


@pytest.mark.parametrize("function", marked(CHOICES))
def test_each_argument_has_a_variable_or_a_reason(function: str) -> None:
    """The code's table has each argument; the row on the page has its variable, or the reason why there is none."""
    arguments = parameters(function)
    choices = import_module(CHOICES[function]).CHOICES
    assert set(arguments) == set(choices)
    documented = {name: cells[0] for names, cells in rows(FUNCTIONS[function]) for name in names}
    for name, variable in choices.items():
        own = f"`{name_of_variable(name)}`"
        expected = variable if isinstance(variable, str) else own
        assert expected in documented[name], name
        assert (own in documented[name]) == isinstance(variable, Variable), name


@pytest.mark.torch
def test_page_names_only_variables_that_exist() -> None:
    """A variable of a removed argument is not documented."""
    pytest.importorskip("torch", reason="torch is not installed")
    choices = [import_module(module).CHOICES for module in CHOICES.values()]
    own = {name_of_variable(name) for each in choices for name, kind in each.items() if isinstance(kind, Variable)}
    documented = set(re.findall(r"`(MONITEL_\w+)", CONFIGURATION))
    set_by_monitel = {"MONITEL_RUN_FOLDER", "MONITEL_RUN_PROCESS", "MONITEL_TORCH_RANK_PROCESS"}
    of_commands = {"MONITEL_PROMETHEUS_HEADERS"}
    assert documented - own == {"MONITEL_NO_EXTENSIONS", *set_by_monitel, *of_commands}
    assert not own - documented


def test_page_says_which_arguments_apply_to_exporters_by_name() -> None:
    """The arguments of the exporters are in the text, and all others of configure() in the table."""
    pytest.importorskip("monitel_otlp.attach", reason="monitel_otlp or a dependency is not installed")
    settings = parameters("monitel_otlp.config.settings.resolve")
    accepted = {*parameters("monitel_otlp.attach._attach"), *settings} - {"arguments"}
    text = section("Exporters by name").split("\n| ", 1)[0]
    assert accepted <= set(re.findall(r"`(\w+)`", text))
    excluded = {name for names, _ in rows("Exporters by name") for name in names}
    assert set(parameters("monitel_otlp.configure")) - accepted == excluded


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
