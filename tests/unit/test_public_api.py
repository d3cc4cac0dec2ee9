"""The repository as a whole: public names, import directions, versions, declared dependencies."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.support.paths import ROOT

import monitel

if TYPE_CHECKING:
    from pathlib import Path
    from collections.abc import Iterator

CORE = ROOT / "src" / "monitel"
EXPORTERS = {
    "otel": ROOT / "exporters/otel/src/monitel_otel",
    "otlp": ROOT / "exporters/otlp/src/monitel_otlp",
    "tensorboard": ROOT / "exporters/tensorboard/src/monitel_tensorboard",
}
PROJECTS = [ROOT, *(ROOT / "exporters" / name for name in EXPORTERS)]
tomllib: Any = pytest.importorskip(
    "tomllib" if sys.version_info >= (3, 11) else "tomli", reason="Python 3.10 without pytest's tomli"
)

TORCHS_NAMES = {
    *("Aggregation", "VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN"),
    *("Stat", "Event", "data_value_t", "STAT_EVENT"),
    *("EventHandlerHandle", "register_event_handler", "unregister_event_handler", "log_event"),
    *("TensorboardEventHandler", "_WaitCounter", "_WaitCounterTracker"),
}
OUR_NAMES = {
    *("stat", "flush", "close_expired_windows", "StatDefinition", "Window"),
    *("emit", "Severity", "set_step", "get_step"),
    *("log", "LoggedNumbers", "config", "RunConfig"),
    *("HISTOGRAM", "STDDEV", "Histogram"),
    *("WaitCounter", "WaitMaxima", "WaitReading", "wait_counters"),
    *("Counter", "CounterReading", "counter", "counters"),
    *("Activity", "Ledger", "activity", "ledger"),
    *("profiler", "testing"),
}
TORCHS_PROFILER_NAMES = {
    *("profile", "schedule", "record_function", "tensorboard_trace_handler", "ExecutionTraceObserver"),
    *("ProfilerAction", "ProfilerActivity", "DeviceType", "supported_activities", "kineto_available"),
}
OUR_PROFILER_NAMES = {"KinetoStepTracker"}
RANGES_NAMES = {
    *("Listening", "Range", "Track", "current_range", "listen", "now"),
    *("record_function", "record_past", "synchronize"),
}
TORCH_BRIDGE_NAMES = {"Batches", "Instrumentation", "Replacement", "batches", "instrument", "replace"}
PUBLIC_MODULES = {
    *("monitel", "monitel.testing", "monitel.attributes", "monitel.bounded_queue", "monitel.exit", "monitel.sigterm"),
    *("monitel.before_flush", "monitel.open_windows", "monitel.readings", "monitel.run_events", "monitel.variables"),
    *("monitel.activities", "monitel.context_page", "monitel.crash_stacks", "monitel.stage", "monitel.step"),
    "monitel.training_time",
    *("monitel.fork", "monitel.step_times", "monitel.profiler", "monitel.profiler.ranges", "monitel.torch"),
}

#: The core's modules, each of which imports only those before it.
LAYERS = [
    "fork",
    *("clock", "aggregation", "compiling", "value", "attributes", "failures", "_bounded_queue_py", "bounded_queue"),
    *("_recorder_py", "histogram", "snapshot", "window_bytes", "_window_py", "_window", "window", "event", "handlers"),
    *("logged_numbers", "run_config"),
    *("pending", "timer", "stat_arguments", "stats", "open_windows", "before_flush", "registry"),
    *("counter", "training_counters"),
    *("_activities_py", "_activities", "decoration", "activities", "training_time"),
    *("step", "stage", "wait_counter", "step_times", "_context_py", "context_page"),
    *("readings", "tensorboard", "exit", "sigterm"),
    *("crash_stacks", "testing"),
    *("masking", "variables", "run_description", "exit_code", "run_events", "checkpoints"),
    *("profiler", "__init__", "torch", "integrations"),
]

#: Third-party packages that a part of the core imports.
THIRD_PARTY = {"torch": {"torch"}, "integrations": {"torch", "transformers", "accelerate"}}

#: The distribution of a module, by the longest prefix. Every import is declared, not inherited.
DISTRIBUTIONS = {
    "monitel": "monitel",
    "monitel_otel": "monitel-otel",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.common": "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry.proto": "opentelemetry-proto",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "requests": "requests",
    "idna": "requests",
    "urllib3": "requests",
    "grpc": "grpcio",
    "tensorboard": "tensorboard",
    "tqdm": "tqdm",
    "textual": "textual",
    "rich": "rich",
}


class Import(NamedTuple):
    """One name that a file imports."""

    file: Path
    module: str
    name: str | None  # None: the module itself

    @property
    def path(self) -> str:
        """The full dotted path."""
        return self.module if self.name is None else f"{self.module}.{self.name}"


def sources(package: Path) -> list[Path]:
    """Return a package's files, at least one."""
    found = sorted(package.rglob("*.py"))
    assert found, f"no sources in {package}"
    return found


def imports(file: Path, *, typing_only: bool = False) -> Iterator[Import]:
    """Yield all imports of a file; with ``typing_only`` including those under ``if TYPE_CHECKING``."""
    pending: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (Import(file, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            yield from (Import(file, str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and not typing_only and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.body if ast.unparse(node.test).startswith("not ") else node.orelse
        else:
            pending += ast.iter_child_nodes(node)


def project(folder: Path) -> dict[str, Any]:
    """Return the ``[project]`` table of a distribution."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_public_names() -> None:
    """``__all__`` has torch's names and monitel's names, sorted, and every name exists."""
    assert TORCHS_NAMES | OUR_NAMES == set(monitel.__all__)
    assert len(monitel.__all__) == len(set(monitel.__all__))
    assert [] == [name for name in monitel.__all__ if not hasattr(monitel, name)]


def test_no_other_public_name() -> None:
    """Every name without an underscore is in ``__all__`` or is a module of the package."""
    modules = {layer(file) for file in sources(CORE)}
    assert set() == {name for name in vars(monitel) if not name.startswith("_")} - set(monitel.__all__) - modules


def test_public_objects_have_docstrings() -> None:
    """Every public class, function and method has a docstring."""
    for name in OUR_NAMES | TORCHS_NAMES - {"data_value_t", "STAT_EVENT"}:
        public = getattr(monitel, name)
        assert public.__doc__, name
        methods = [getattr(public, each) for each in dir(public) if not each.startswith("_")]
        assert [] == [each for each in methods if callable(each) and not each.__doc__], name


def test_profiler_names() -> None:
    """The names of monitel.profiler and monitel.profiler.ranges are sorted, and have docstrings, including methods."""
    profiler = monitel.profiler
    assert TORCHS_PROFILER_NAMES | OUR_PROFILER_NAMES == set(profiler.__all__)
    assert RANGES_NAMES == set(profiler.ranges.__all__)
    for module in (profiler, profiler.ranges):
        assert sorted(module.__all__) == module.__all__
        for name in module.__all__:
            public = getattr(module, name)
            assert public.__doc__, name
            methods = [getattr(public, each) for each in dir(public) if not each.startswith("_")]
            assert [] == [each for each in methods if callable(each) and not each.__doc__], name


@pytest.mark.parametrize("pure", ["0", "1"])
def test_profiler_is_imported_on_demand(pure: str) -> None:
    """``import monitel`` does not load the profiler, which needs only the standard library, without asyncio."""
    script = (
        "import sys; before = set(sys.modules); import monitel; "
        "print([name for name in sys.modules if name.startswith('monitel.profiler')]); monitel.profiler; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)); "
        "print('asyncio' in sys.modules)"
    )
    environment = {**os.environ, "MONITEL_NO_EXTENSIONS": pure}
    found = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=60)
    assert b"[]\nmonitel\nFalse\n" == found.stdout


@pytest.mark.parametrize("pure", ["0", "1"])
def test_import_needs_the_standard_library_only(pure: str) -> None:
    """``import monitel`` loads no third-party module, with and without the C module."""
    script = (
        "import sys; before = set(sys.modules); import monitel; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "MONITEL_NO_EXTENSIONS": pure},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ("monitel\n", "") == (process.stdout, process.stderr)


def core_modules(imported: Import) -> Iterator[str]:
    """Yield the core's modules that an import loads: ``from monitel import clock`` loads clock."""
    parts = imported.path.split(".")
    if parts[0] == "monitel":
        is_module = len(parts) > 1 and ((CORE / f"{parts[1]}.py").exists() or (CORE / parts[1]).is_dir())
        is_c = len(parts) > 1 and (CORE / f"{parts[1]}.c").exists()
        yield parts[1].removesuffix("_c") + "_py" if is_c else parts[1] if is_module else "__init__"


def layer(file: Path) -> str:
    """Return the module, or the folder, under which a file of the core is in LAYERS."""
    return file.relative_to(CORE).parts[0].removesuffix(".py")


def test_every_module_has_its_layer() -> None:
    """LAYERS has all modules of the core."""
    assert sorted(LAYERS) == sorted({layer(file) for file in sources(CORE)})


@pytest.mark.parametrize("file", sources(CORE), ids=lambda file: str(file.relative_to(CORE)))
def test_core_imports_run_one_way(file: Path) -> None:
    """At runtime, a module of the core only imports modules before it in LAYERS, and the packages of THIRD_PARTY."""
    own = layer(file)
    before = LAYERS[: LAYERS.index(own)]
    found = {module for imported in imports(file) for module in core_modules(imported)} - {own}
    assert set() == found - set(before)
    roots = {imported.module.split(".")[0] for imported in imports(file)}
    assert set() == roots - sys.stdlib_module_names - {"monitel"} - THIRD_PARTY.get(own, set())


def test_torch_bridge_names() -> None:
    """The names of monitel.torch are sorted, and have docstrings, including methods."""
    pytest.importorskip("torch", reason="imports monitel.torch: torch is not installed")
    bridge = importlib.import_module("monitel.torch")
    assert sorted(TORCH_BRIDGE_NAMES) == bridge.__all__
    for name in bridge.__all__:
        public = getattr(bridge, name)
        assert public.__doc__, name
        methods = [getattr(public, each) for each in dir(public) if not each.startswith("_")]
        assert [] == [each for each in methods if callable(each) and not each.__doc__], name


def exporter_files(*, but: str = "") -> list[Any]:
    """Return all files of all exporters, with readable ids."""
    return [
        pytest.param(file, id=str(file.relative_to(package.parent)))
        for package in EXPORTERS.values()
        for file in sources(package)
        if file.name != but
    ]


@pytest.mark.parametrize("file", exporter_files())
def test_exporters_use_public_names_only(file: Path) -> None:
    """An exporter only uses public names of monitel and of its public modules."""
    for imported in imports(file, typing_only=True):
        if imported.module.split(".")[0] == "monitel":
            assert imported.module in PUBLIC_MODULES, imported
            if imported.module == "monitel" and imported.name is not None:
                assert imported.name in set(monitel.__all__) - {"_WaitCounter", "_WaitCounterTracker"}, imported
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "monitel":
            assert node.attr in {*monitel.__all__, "__version__"}, f"{file}:{node.lineno} monitel.{node.attr}"


def private(path: str) -> bool:
    """Return True if a dotted path has a private name."""
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))


@pytest.mark.parametrize("file", exporter_files(but="_compat.py"))
def test_private_opentelemetry_names_live_in_compat(file: Path) -> None:
    """Private names of OpenTelemetry are only imported in ``_compat.py``."""
    found = [each for each in imports(file, typing_only=True) if each.module.split(".")[0] == "opentelemetry"]
    assert [] == [imported.path for imported in found if private(imported.path)]
    roots = {(imported.name or imported.module).split(".")[0] for imported in found}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and private(node.attr):
            path = ast.unparse(node)
            assert path.split(".")[0] not in roots, f"{file}:{node.lineno} {path}"


@pytest.mark.parametrize("name", EXPORTERS)
def test_exporters_import_one_way(name: str) -> None:
    """monitel_otlp imports monitel_otel; no other exporter imports an exporter."""
    allowed = {f"monitel_{name}", *(["monitel_otel"] if name == "otlp" else [])}
    found = {each.module.split(".")[0] for file in sources(EXPORTERS[name]) for each in imports(file)}
    assert set() == {root for root in found if root.startswith("monitel_")} - allowed


def dependencies(name: str) -> list[str]:
    """Return what an exporter requires, with the extras for gRPC and for ``top``, which are imported on demand."""
    table = project(ROOT / "exporters" / name)
    extras = table.get("optional-dependencies", {})
    return [*table["dependencies"], *extras.get("grpc", []), *extras.get("top", [])]


@pytest.mark.parametrize("name", EXPORTERS)
def test_declared_dependencies_cover_the_imports(name: str) -> None:
    """All runtime imports of an exporter are declared in its pyproject.toml; the core declares no dependency."""
    declared = {re.split(r"[^\w.-]", each)[0] for each in dependencies(name)}
    needed = set()
    for imported in (each for file in sources(EXPORTERS[name]) for each in imports(file)):
        root = imported.module.split(".")[0]
        if root not in sys.stdlib_module_names and root != f"monitel_{name}":
            prefixes = [prefix for prefix in DISTRIBUTIONS if f"{imported.path}.".startswith(f"{prefix}.")]
            assert prefixes, f"{imported}: add it to DISTRIBUTIONS"
            needed.add(DISTRIBUTIONS[max(prefixes, key=len)])
    assert set() == needed - declared
    assert [] == project(ROOT)["dependencies"]


def test_lowest_versions_are_declared() -> None:
    """``tests/lowest.txt``, which a CI stage uses, has the exporters' lower bounds for OpenTelemetry."""
    text = (ROOT / "tests/lowest.txt").read_text(encoding="utf-8")
    declared = [each for name in ("otel", "otlp") for each in dependencies(name)]
    bounds = dict(re.fullmatch(r"([\w-]+)>=([\d.]+).*", each).groups() for each in declared)  # type: ignore[union-attr,misc]
    assert {name: bound for name, bound in bounds.items() if not name.startswith("monitel")} == dict(
        re.findall(r"^([\w-]+)==(.+)$", text, re.MULTILINE)
    )


def test_one_version() -> None:
    """The version of the core is everywhere, as tools/version.py sets it; distributions take it from their packages."""
    subprocess.run([sys.executable, ROOT / "tools/version.py"], check=True, timeout=60)
    assert {("version",)} == {tuple(project(folder)["dynamic"]) for folder in PROJECTS}


def test_one_range_of_pythons() -> None:
    """All four distributions require the same Python."""
    assert {">=3.10"} == {project(folder)["requires-python"] for folder in PROJECTS}


@pytest.mark.parametrize("package", [CORE, *EXPORTERS.values()], ids=lambda package: package.name)
def test_packages_are_typed(package: Path) -> None:
    """Every package has a py.typed file, and includes it in its distribution."""
    assert (package / "py.typed").is_file()
    text = (package.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert "py.typed" in tomllib.loads(text)["tool"]["setuptools"]["package-data"][package.name]
