"""The import directions within monitel.profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.test_public_api import CORE, imports, sources

if TYPE_CHECKING:
    from pathlib import Path

#: The profiler's modules, each of which imports only modules listed before it, in ``if TYPE_CHECKING`` too.
LAYERS = [
    *("ranges.tracks", "ranges._ranges_py", "ranges._ranges", "ranges.listeners"),
    *("ranges.annotation", "ranges.gc_pauses", "ranges"),
    *("trace.json_text", "trace.atomic_file", "trace.progress", "trace.recording", "trace.lanes"),
    *("trace.chrome_trace", "trace"),
    *("torch_api.activities", "torch_api.experimental", "torch_api.schedule", "torch_api.step_tracker"),
    *("torch_api.function_events", "torch_api.event_list", "torch_api.kineto_profile"),
    *("torch_api.execution_trace", "torch_api.profile", "torch_api.trace_handler", "torch_api"),
    *("itt", "__init__"),
]
PROFILER = CORE / "profiler"
FILES = sources(PROFILER)


def layer(file: Path) -> str:
    """Return the name of a file in LAYERS: its dotted path, for ``__init__.py`` that of its folder."""
    name = ".".join(file.relative_to(PROFILER).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imported_layers(file: Path) -> set[str]:
    """Return the names in LAYERS of the modules that a file imports; the C twin counts as the Python twin."""
    found = set()
    for each in imports(file, typing_only=True):
        package, _, path = each.path.replace("_ranges_c", "_ranges_py").partition("monitel.profiler.")
        if path and not package:
            prefixes = [name for name in LAYERS if f"{path}.".startswith(f"{name}.")]
            found.add(max(prefixes, key=len, default="__init__"))
    return found - {layer(file)}


def test_every_module_has_its_layer() -> None:
    """LAYERS is complete, so it serves as the profiler's table of contents."""
    assert sorted(LAYERS) == sorted(layer(file) for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=layer)
def test_imports_run_one_way(file: Path) -> None:
    """A module imports only modules listed before it in LAYERS."""
    assert set() == imported_layers(file) - set(LAYERS[: LAYERS.index(layer(file))])


@pytest.mark.parametrize("file", FILES, ids=layer)
def test_private_modules_stay_in_their_room(file: Path) -> None:
    """A module whose name begins with an underscore is imported only within its own folder."""
    room = layer(file).split(".")[0]
    private = {name for name in imported_layers(file) if "._" in name}
    assert set() == {name for name in private if name.split(".")[0] != room}
