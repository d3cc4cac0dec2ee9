"""The import directions within monitel.torch, and its use of torch's private names."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from tests.unit.test_public_api import CORE, imports, private, sources

if TYPE_CHECKING:
    from pathlib import Path

#: The modules of monitel.torch, each of which imports only modules listed before it, in ``if TYPE_CHECKING`` too.
LAYERS = [
    *("_compat", "context", "function_wrapper", "guarded_stat", "import_hook", "notebook", "poller", "rates"),
    *("thread_activity", "training_ranges"),
    *("boundaries.training_thread", "boundaries.shared_hooks", "boundaries.batch_loading"),
    "boundaries.gradient_scaling",
    *("boundaries.optimizer_steps", "boundaries.backward", "boundaries.waits_for_ranks", "boundaries"),
    *("sources.step_outcome", "sources.steps", "sources.data_activity"),
    *(
        "sources.waits.wait_counters",
        "sources.waits.stuck_activity",
        "sources.waits.stuck_waits",
        "sources.waits",
        "sources.torch_monitor",
    ),
    *("sources.compilation_activity", "sources.compilation_range", "sources.compilation"),
    *("sources.checkpoints", "sources.process_groups", "sources.out_of_memory", "sources.failures", "sources"),
    *("scalars.graph_capture", "scalars.staging_ring", "scalars.fetcher", "scalars.pending_event", "scalars.hooks"),
    *("scalars.compiled_adds", "scalars"),
    *("stages._cycle_py", "stages.cycle", "stages.device_clock", "stages.device_stages", "stages.thread_cycles"),
    *("stages.stages", "stages"),
    *("options", "instrumentation", "monkeypatch", "__init__"),
]
TORCH = CORE / "torch"
FILES = sources(TORCH)


def layer(file: Path) -> str:
    """Return the name of a file in LAYERS: its dotted path, for ``__init__.py`` that of its folder."""
    name = ".".join(file.relative_to(TORCH).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imported_layers(file: Path) -> set[str]:
    """Return the modules of monitel.torch that a file imports, without those in C."""
    prefix = "monitel.torch."
    ours = [each for each in imports(file, typing_only=True) if not each.module.endswith("_c")]
    paths = [each.path[len(prefix) :] for each in ours if each.path.startswith(prefix)]
    names = {layer(each) for each in FILES}
    modules = {max((name for name in names if f"{path}.".startswith(f"{name}.")), key=len) for path in paths}
    return modules - {layer(file)}


def test_every_module_has_its_layer() -> None:
    """LAYERS is complete, so it serves as the table of contents of monitel.torch."""
    assert sorted(LAYERS) == sorted(layer(file) for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=layer)
def test_imports_run_one_way(file: Path) -> None:
    """A module imports only modules listed before it in LAYERS."""
    assert set() == imported_layers(file) - set(LAYERS[: LAYERS.index(layer(file))])


@pytest.mark.parametrize(("room", "other"), [("sources", "scalars"), ("scalars", "sources")])
def test_rooms_are_independent(room: str, other: str) -> None:
    """Neither ``sources`` nor ``scalars`` imports from the other."""
    imported = set().union(*(imported_layers(file) for file in sources(TORCH / room)))
    assert other not in {name.split(".")[0] for name in imported}


@pytest.mark.parametrize("file", FILES, ids=layer)
def test_private_names_of_torch_live_in_compat(file: Path) -> None:
    """Only ``_compat.py`` imports, reads or names a private name of torch."""
    theirs = [each for each in imports(file, typing_only=True) if each.module.split(".")[0] == "torch"]
    assert [] == [each.path for each in theirs if private(each.path)]
    if file.name == "_compat.py":
        return
    text = file.read_text(encoding="utf-8")
    assert [] == re.findall(r"(?<![\w.])torch(?:\.\w+)*\._\w+", text)
    roots = {(each.name or each.module).split(".")[0] for each in theirs}
    attributes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    paths = [ast.unparse(node) for node in attributes if private(node.attr)]
    assert [] == [path for path in paths if path.split(".")[0] in roots]
