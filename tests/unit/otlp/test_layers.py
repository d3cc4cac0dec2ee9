"""The order of the layers of monitel_otlp: its rooms, and the modules of each room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "exporters/otlp" / "src/monitel_otlp"

#: The rooms (folders) and the modules beside them. Each imports only names that come before it, in annotations too.
OTLP_LAYERS = [
    *("_compat", "messages", "accounting", "threads", "config"),
    *("metrics", "traces", "logs", "sdk", "raw"),
    *("transport", "spool", "stored_json", "values", "ledger", "verdict", "boxes", "black_box", "summary"),
    *("collection", "delivery", "engine", "system"),
    *(
        "exit_summary",
        "forked_child",
        "pipeline",
        "automatic",
        "log_handler",
        "sigterm",
        "choices",
        "attach",
        "configuration",
    ),
    *("__init__", "run", "autopsy", "top", "table", "terminal", "compare", "commands", "__main__"),
]

#: The modules of each room, in the same order.
ROOM_LAYERS = {
    "messages": ["request", "records", "scopes", "attributes", "request_builder", "json_lines"],
    "threads": ["pacing", "deadline", "worker", "callbacks"],
    "config": [
        *("folder_argument", "black_box", "mounts", "memory_limit"),
        *("secret", "endpoint", "environment", "settings", "launcher", "launchers", "run_folder", "rank_check", "host"),
    ],
    "metrics": [
        *("queue_size", "series", "logged_number", "window_queue"),
        *(
            "start_points",
            "window_row",
            "series_state",
            "points",
            "mapping",
            "rising_sums",
            "wait_readings",
            "readings",
        ),
    ],
    "traces": ["budget", "ids", "span_queue", "mapping", "requests"],
    "logs": ["timestamps", "mapping", "requests", "application_events"],
    "sdk": [
        *("preferences", "official_encoders", "record_requests", "metric_requests"),
        *("meter_provider", "processors", "providers", "self_metrics"),
    ],
    "raw": ["sdk_values", "sdk_records", "sdk_spans", "forms", "decoders"],
    "transport": [
        *("answer", "protobuf_fields", "error_body", "partial_success"),
        *("resolver", "wire", "tls", "connection"),
        *("http", "grpc", "factory"),
    ],
    "spool": [
        *("folder", "lock", "position", "rejected", "discovery"),
        *("request_segment", "raw_segment", "segment_writer", "segments", "spool"),
    ],
    "values": ["run_values", "latest", "stored", "file"],
    "ledger": [
        *("run_time", "screen", "shares", "wording", "last_line"),
        *("history", "stored", "step_marks", "run_identity", "starts", "run_folder", "reading", "run_ledger"),
    ],
    "boxes": ["plain", "layout", "room", "box_lock", "place", "discovery"],
    "black_box": [
        *("checked", "own_file", "cut", "event_journal", "request_files", "window_state"),
        *("contents", "activity", "box", "recorder"),
    ],
    "verdict": [
        *("facts", "job_facts", "lateness", "words", "result"),
        *("endings", "evidence", "standstill", "losses", "rules"),
    ],
    "summary": [
        *("report", "stored", "report_folder", "process_report", "box_report", "usual_times"),
        *("jobs", "facts", "job_text", "outcome", "lines", "printed"),
    ],
    "collection": ["kernel_log", "death", "recovered_spool", "target", "collector"],
    "delivery": [
        *("request_splitting", "disk", "retry_queue", "sender"),
        *("delivery", "replay", "leftovers"),
    ],
    "engine": ["encoder", "occasion", "metric_round", "exit_phases", "recording", "engine"],
    "system": ["gpus", "metrics"],
    "run": [
        *("environment", "arguments", "child", "witness", "parent", "process_watch", "exit_status", "repository"),
        *("autostart", "attempt", "ending", "command"),
    ],
    "autopsy": [
        *(
            "kernel_state",
            "findings",
            "records",
            "death_events",
            "box_findings",
            "live_stacks",
            "examination",
            "targets",
        ),
        *("comparison", "lines", "sentences", "report", "as_json"),
    ],
    "top": [
        *("rank", "step_rate", "step_distribution", "numbers", "period", "box_watch", "row"),
        *("departures", "compared_row", "launchers", "jobs", "ranks", "as_json"),
    ],
    "table": ["figures", "columns", "headings", "order", "plain_text"],
    "terminal": [
        *("ending", "line", "widgets", "keys", "listing", "background", "key_screen"),
        *("text_screens", "list_screen", "detail", "detail_screen", "app"),
    ],
    "compare": [
        *("disks", "run", "internal_metrics", "evidence", "telemetry", "assembly", "targets"),
        *("prometheus_api", "prometheus_runs", "text", "rows", "table", "as_json"),
    ],
    "commands": [
        *("output", "doctor", "replay", "cat", "ledger", "compare", "autopsy", "top"),
        *("simulated_stages", "simulation", "simulated_rank", "simulate", "parser"),
    ],
}

MODULES = sorted(file for file in PACKAGE.rglob("*.py") if (file.parent / "__init__.py").exists())
assert MODULES, PACKAGE


def dotted(file: Path) -> str:
    """Return the dotted name of a module below the package."""
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts)


NAMES = {dotted(file) for file in MODULES}


def imports(source: str) -> set[str]:
    """Return the modules of monitel_otlp that a source imports anywhere, including under ``if TYPE_CHECKING``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for path in paths:
            root, _, rest = path.partition(".")
            if root == "monitel_otlp":
                found.add(next((name for name in (rest, rest.rpartition(".")[0]) if name in NAMES), "__init__"))
    return found


def violations(module: str, source: str) -> set[str]:
    """Return the imports of a module that do not come before it."""
    room, _, name = module.rpartition(".")
    before = set(OTLP_LAYERS[: OTLP_LAYERS.index(room or name)])
    siblings = ROOM_LAYERS.get(room, [])
    allowed = set(siblings if name == "__init__" else siblings[: siblings.index(name)]) if room else set()
    wrong = set()
    for imported in imports(source) - {module}:
        other, _, leaf = imported.rpartition(".")
        if leaf not in allowed if other == room and room else (other or leaf) not in before:
            wrong.add(imported)
    return wrong


@pytest.mark.parametrize("file", MODULES, ids=dotted)
def test_imports_run_one_way(file: Path) -> None:
    """A module imports, even in annotations, only modules before it in its room and rooms before its own."""
    assert set() == violations(dotted(file), file.read_text(encoding="utf-8"))


def test_every_module_has_its_layer() -> None:
    """The tables list every folder and module, and nothing else."""
    top = {name.partition(".")[0] for name in NAMES}
    assert sorted(OTLP_LAYERS) == sorted(top)
    rooms = {name.rpartition(".")[0] for name in NAMES} - {""}
    assert rooms == set(ROOM_LAYERS)
    for room, modules in ROOM_LAYERS.items():
        assert sorted([*modules, "__init__"]) == sorted(
            name.rpartition(".")[2] for name in NAMES if name.rpartition(".")[0] == room
        )


def test_folders_are_small() -> None:
    """No folder has more than fourteen modules."""
    counts = {folder: len(list(folder.glob("*.py"))) for folder in {file.parent for file in MODULES}}
    assert {} == {folder: count for folder, count in counts.items() if count > 14}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spool.folder", "from monitel_otlp.delivery.disk import Disk"),
        ("spool.folder", "from monitel_otlp.spool.lock import acquire"),
        ("spool.folder", "from monitel_otlp.spool import lock"),
        ("config.secret", "import monitel_otlp.pipeline"),
        ("messages.request", "from monitel_otlp import __version__"),
        ("accounting", "def late():\n    from monitel_otlp.config.settings import Settings"),
        ("messages.request", "if TYPE_CHECKING:\n    from monitel_otlp.accounting import Account"),
    ],
)
def test_violation_is_found(module: str, source: str) -> None:
    """An import of a later module is reported, wherever it is."""
    assert 1 == len(violations(module, source))
