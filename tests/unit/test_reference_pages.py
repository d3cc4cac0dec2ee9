"""The configuration page repeats facts of the code: arguments, defaults and variables. They agree."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from tests.support.paths import ROOT

from monitel.variables import name_of_variable

CONFIGURATION = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
SOURCES = [ROOT / "src", *(ROOT / "exporters").glob("*/src")]
VARIABLE = re.compile(r'"((?:OTEL|MONITEL|XDG|KINETO|ENABLE_PYTORCH)_[A-Z_]+)"')
#: Each function that starts something, and the heading of the table that has its arguments.
FUNCTIONS = {
    "monitel_otlp.configure": "configure",
    "monitel_otel.install": "install",
    "monitel_tensorboard.install": "install",
    "monitel.torch.instrument": "instrument",
}
#: The functions whose arguments have variables, and the modules with the tables of these.
CHOICES = {
    "monitel_otlp.configure": "monitel_otlp.configuration",
    "monitel.torch.instrument": "monitel.torch.instrumentation",
}
#: Variables that have no argument.
OTHERS = {
    *("MONITEL_NO_EXTENSIONS", "MONITEL_RUN_FOLDER", "MONITEL_RUN_NAME", "MONITEL_RUN_PROCESS"),
    *("MONITEL_RUN_STARTED", "MONITEL_RUNS_DIR", "MONITEL_REPORT"),
}


def rows(heading: str) -> Iterator[tuple[list[str], list[str]]]:
    section = re.split(rf"^## {heading}$", CONFIGURATION, flags=re.MULTILINE)[1].split("\n#", 1)[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            yield re.findall(r"`([^`]+)`", first), cells


def parameters(function: str) -> dict[str, Any]:
    """Return the parameters of a function, each with its default; skip the test if its module is missing."""
    module, _, name = function.rpartition(".")
    importable = pytest.importorskip(module, reason=f"{module} or a dependency is not installed")
    found = inspect.signature(getattr(importable, name)).parameters
    return {each.name: each.default for each in found.values()}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_page_has_every_argument_with_its_default_and_its_variable(function: str) -> None:
    """Each parameter has a row with the default; the row has the variable, or the reason why there is none."""
    arguments = parameters(function)
    table = import_module(CHOICES[function]) if function in CHOICES else None
    choices, groups = getattr(table, "CHOICES", {}), getattr(table, "GROUPS", {})
    options = {f'{name}["{key}"]': each for name, group in groups.items() for key, each in group.options.items()}
    own_names = {name: name for name in arguments} | {shown: option for shown, (option, _) in options.items()}
    arguments |= dict(options.values())
    documented = {
        own_names.get(name, name): (names, cells) for names, cells in rows(FUNCTIONS[function]) for name in names
    }
    assert set(choices) <= set(arguments) <= set(documented)
    for name, default in arguments.items():
        names, cells = documented[name]
        if len(names) == 1 and isinstance(default, (bool, int, float, str)):
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            assert shown in {cell.strip("`").replace(",", "") for cell in cells[:2]}, f"{function}({name}={default!r})"
        if function in CHOICES:
            assert (f"`{name_of_variable(name)}`" in cells[0]) == (name in choices), name
            assert name in choices or "`OTEL_" in cells[0] or cells[0].startswith("none: "), name
    if function in CHOICES:
        assert set(arguments) == set(documented)
    if groups:
        assert [*choices] == [name for name in documented if name in choices]  # the order is that of the arguments


def test_page_has_every_variable_of_the_code() -> None:
    code = [path.read_text("utf-8") for root in SOURCES for path in root.rglob("*.py")]
    used = {name for each in code for name in VARIABLE.findall(each)}
    assert "OTEL_METRIC_EXPORT_INTERVAL" in used
    assert not {name for name in used if f"`{name}" not in CONFIGURATION}


def test_page_names_only_variables_that_exist() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    choices = [import_module(module).CHOICES for module in CHOICES.values()]
    own = {name_of_variable(name) for each in choices for name in each}
    assert own | OTHERS == set(re.findall(r"`(MONITEL_\w+)", CONFIGURATION))
