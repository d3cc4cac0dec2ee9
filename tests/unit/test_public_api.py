"""The repository as a whole: public names, import directions, versions, declared dependencies."""

import ast
import importlib
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.paths import ROOT

import monitel

CORE = ROOT / "src" / "monitel"
EXPORTERS = {
    "otel": ROOT / "exporters/otel/src/monitel_otel",
    "otlp": ROOT / "exporters/otlp/src/monitel_otlp",
    "tensorboard": ROOT / "exporters/tensorboard/src/monitel_tensorboard",
}
PACKAGES = [CORE, *EXPORTERS.values()]
RUN = ROOT / "src" / "monitel_run"  # in the distribution of the core
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
    *("Run", "start"),
    *("profiler", "testing"),
}
#: The names of each other public module.
NAMES = {
    "monitel.profiler": {
        *("profile", "schedule", "record_function", "tensorboard_trace_handler", "ExecutionTraceObserver"),
        *("ProfilerAction", "ProfilerActivity", "DeviceType", "supported_activities", "kineto_available"),
        "KinetoStepTracker",
    },
    "monitel.profiler.ranges": {
        *("Listening", "Range", "Track", "current_range", "listen", "now"),
        *("record_function", "record_past", "synchronize"),
    },
    "monitel.torch": {"Batches", "Instrumentation", "Replacement", "batches", "instrument", "replace"},
    "monitel_otel": {"Installation", "install"},
    "monitel_tensorboard": {"Installation", "SummaryWriter", "install"},
}

#: The module of :func:`monitel.start`, which begins everything that is installed, and writes a report.
TOP = "started_run"
#: The top folders of the core, and what each may import besides the modules that are in none of them.
FOLDERS: dict[str, set[str]] = {
    TOP: {"blackbox", "runs", "console", "torch"},
    "blackbox": set(),
    "runs": {"blackbox", "torch"},
    "console": {"blackbox", "runs"},
    "profiler": set(),
    "torch": {"profiler"},
    "integrations": {"profiler", "torch"},
}
#: What the folders below these may import of the core, besides their own modules.
LOWER: dict[str, set[str]] = {
    "process": {"attributes"},
    "stats": {"attributes", "clock", "decoration", "event", "handlers", "process"},
}
#: What other packages each package may import: names of modules, or the beginnings of their names.
FOREIGN: dict[str, set[str]] = {
    "monitel": {"monitel_run.__main__"},
    "monitel.blackbox": {"monitel_run.folder"},
    "monitel.runs": {"monitel_run"},
    f"monitel.{TOP}": {"monitel_run"},
    "monitel.console": {"textual", "rich", "monitel_run"},
    "monitel.profiler": set(),
    "monitel.torch": {"torch"},
    "monitel.integrations": {"torch", "transformers", "accelerate", "lightning"},
    "monitel_otel": {"monitel", "opentelemetry"},
    "monitel_tensorboard": {"monitel", "tensorboard"},
    "monitel_otlp": {
        *("monitel", "monitel_otel", "opentelemetry", "google.protobuf", "google.rpc", "requests", "urllib3"),
        *("grpc", "tqdm", "monitel_run"),
    },
    "monitel_run": {"monitel"},
}
#: The distribution of a module, by the longest prefix. Every import is declared, not inherited.
DISTRIBUTIONS = {
    "monitel": "monitel",
    "monitel_run": "monitel",
    "monitel_otel": "monitel-otel",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.common": "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry.proto": "opentelemetry-proto",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "requests": "requests",
    "urllib3": "requests",
    "grpc": "grpcio",
    "tensorboard": "tensorboard",
    "tqdm": "tqdm",
    "textual": "textual",
    "rich": "rich",
}


class Import(NamedTuple):
    file: Path
    module: str
    name: str | None  # None: the module itself

    @property
    def path(self) -> str:
        return self.module if self.name is None else f"{self.module}.{self.name}"


def sources(package: Path) -> list[Path]:
    found = sorted(package.rglob("*.py"))
    assert found, f"no sources in {package}"
    return found


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports(file: Path, *, typing_too: bool = False) -> list[Import]:
    """Return all imports of a file; with ``typing_too`` including those under ``if TYPE_CHECKING``."""
    found, pending = list[Import](), list[ast.AST]([parsed(file)])
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found += [Import(file, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            found += [Import(file, str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.If) and not typing_too and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.body if ast.unparse(node.test).startswith("not ") else node.orelse
        else:
            pending += ast.iter_child_nodes(node)
    return found


def wrong_imports(package: Path) -> list[str]:
    """Return the imports of a package that go upwards, or to a package that it may not import."""
    found = []
    for file in sources(package):
        parts = file.relative_to(package.parent).with_suffix("").parts
        folder = parts[1] if len(parts) > 2 or parts[1:] == (TOP,) else ""
        own = f"{package.name}.{folder}" if f"{package.name}.{folder}" in FOREIGN else package.name
        for each in imports(file):
            root, *rest = each.path.split(".")
            if root == package.name:
                to = rest[0] if rest else ""
                allowed = package != CORE or to not in FOLDERS or to == folder or to in FOLDERS.get(folder, ())
                allowed = allowed or (parts[1:], to) == (("__init__",), "profiler")
                allowed = allowed and (folder not in LOWER or to == folder or to in LOWER[folder])
            else:
                allowed = root in sys.stdlib_module_names or any(
                    f"{each.path}.".startswith(f"{name}.") for name in FOREIGN[own]
                )
            found += [] if allowed else [f"{file.relative_to(package.parent)} imports {each.path}"]
    return found


@pytest.mark.parametrize("package", [*PACKAGES, RUN], ids=lambda package: package.name)
def test_imports_run_downwards(package: Path) -> None:
    """No module outside ``exporters`` imports OpenTelemetry; the core imports no exporter."""
    assert [] == wrong_imports(package)


def test_nothing_imports_the_console() -> None:
    """Besides the programs and the top: what a process stores at its end, and the output of commands, are below it."""
    files = [
        file
        for package in PACKAGES
        for file in sources(package)
        if "console" not in file.parts and file != CORE / f"{TOP}.py"
    ]
    modules = {each.module for file in files for each in imports(file, typing_too=True)}
    assert set() == {each for each in modules if each.startswith("monitel.console")}


def private(path: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_private_names_of_other_packages_are_used_in_compat_only(package: Path) -> None:
    """A new version of torch or OpenTelemetry can break ``_compat.py`` only; exporters use public names of monitel."""
    foreign, found = {"torch", "opentelemetry", "monitel"} - {package.name}, []
    for file in (file for file in sources(package) if file.name != "_compat.py"):
        theirs = [each for each in imports(file, typing_too=True) if each.module.split(".")[0] in foreign]
        found += [f"{file.name} imports {each.path}" for each in theirs if private(each.path)]
        roots = {(each.name or each.module).split(".")[0] for each in theirs}
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Attribute) and private(node.attr) and ast.unparse(node).split(".")[0] in roots:
                found.append(f"{file.name}:{node.lineno} {ast.unparse(node)}")
    assert [] == found


def test_public_names() -> None:
    """``__all__`` has torch's names and monitel's names, each exists, and every other name is private or a module."""
    assert TORCHS_NAMES | OUR_NAMES == set(monitel.__all__)
    assert len(monitel.__all__) == len(set(monitel.__all__))
    assert [] == [name for name in monitel.__all__ if not hasattr(monitel, name)]
    modules = {file.relative_to(CORE).parts[0].removesuffix(".py") for file in sources(CORE)}
    assert set() == {name for name in vars(monitel) if not name.startswith("_")} - set(monitel.__all__) - modules


@pytest.mark.parametrize("name", ["monitel", *NAMES])
def test_public_objects_have_docstrings(name: str) -> None:
    """Every public class, function and method has one; the other public modules have the names that they should."""
    if name == "monitel.torch":
        pytest.importorskip("torch", reason="imports monitel.torch: torch is not installed")
    module = importlib.import_module(name)
    if name in NAMES:
        assert sorted(NAMES[name]) == module.__all__
    for each in set(module.__all__) - {"data_value_t", "STAT_EVENT"}:
        public = getattr(module, each)
        assert public.__doc__, each
        methods = [getattr(public, method) for method in dir(public) if not method.startswith("_")]
        assert [] == [method for method in methods if callable(method) and not method.__doc__], each


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


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
    """The constraints of the nightly run with the lowest versions are the exporters' lower bounds."""
    text = (ROOT / "tests/nightly/lowest.txt").read_text(encoding="utf-8")
    declared = [each for name in ("otel", "otlp") for each in dependencies(name)]
    declared += project(ROOT)["optional-dependencies"]["top"]
    bounds = dict(re.fullmatch(r"([\w-]+)>=([\d.]+).*", each).groups() for each in declared)  # type: ignore[union-attr,misc]
    assert {name: bound for name, bound in bounds.items() if not name.startswith("monitel")} == dict(
        re.findall(r"^([\w-]+)==(.+)$", text, re.MULTILINE)
    )


def test_one_version() -> None:
    """The four distributions have one version, which each takes from its package, and require each other in it."""
    major, minor = (int(each) for each in monitel.__version__.split(".")[:2])
    assert {monitel.__version__} == {importlib.import_module(package.name).__version__ for package in PACKAGES}
    assert {("version",)} == {tuple(project(folder)["dynamic"]) for folder in PROJECTS}
    ours = [each for name in EXPORTERS for each in dependencies(name) if each.startswith("monitel")]
    assert 4 == len(ours)
    assert {f">={major}.{minor},<{major}.{minor + 1}"} == {re.sub(r"^monitel[\w-]*", "", each) for each in ours}
    assert f"\nversion: {monitel.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert {">=3.10"} == {project(folder)["requires-python"] for folder in PROJECTS}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_packages_are_typed_and_licensed(package: Path) -> None:
    """Every package has a py.typed file in its distribution, and every distribution has the licence."""
    text = (package.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert (package / "py.typed").is_file()
    assert "py.typed" in tomllib.loads(text)["tool"]["setuptools"]["package-data"][package.name]
    assert (ROOT / "LICENSE").read_bytes() == (package.parents[1] / "LICENSE").read_bytes()
