"""Spans in a trace store, MLflow: found by query, each once, exact to the nanosecond.

The store needs a separate environment: the folder ``.venv-traces`` in the clone, or the one in MONITEL_TRACE_STORE.

    python3 -m venv .venv-traces
    .venv-traces/bin/python -m pip install -r tests/integration/nightly/trace_store.txt
"""

import base64
import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.integration.services import Program, free_port, launched
from tests.support.inbox import DEADLINE
from tests.support.paths import ROOT
from tests.support.scripts import Run
from tests.support.spools import cat

RANKS, STEPS = 2, 4
SPANS_PER_RANK = 8  # of a step: seven ranges below, and the span of the rank
UNSET, ERROR = 0, 2
LIFE = 180  # seconds, at most
STATUS = {None: UNSET, "STATUS_CODE_UNSET": UNSET, "STATUS_CODE_ERROR": ERROR}

#: One rank with step traces; its spans are on disk.
JOB = """\
import sys, threading
from contextlib import suppress
import monitel, monitel_otlp
from monitel.profiler import record_function

def load():
    with record_function("load", {"files": ["a", "b"]}): pass

with monitel_otlp.configure(spool_dir="spool", spans={"step_traces": True}, service_name="job", run_events=False):
    for step in range(int(sys.argv[1])):
        monitel.set_step(step)
        with record_function("forward", {"batch": 32, "text": "straße"}):
            for layer in range(3):
                with record_function("layer", {"index": layer, "rate": 0.5, "last": layer == 2}): pass
            loading = threading.Thread(target=load, name="loader")
            loading.start()
            loading.join()
        with suppress(ValueError), record_function("all_reduce"), record_function("wait"):
            raise ValueError(step)
"""


class Span(NamedTuple):
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]


class Store:
    headers = "x-mlflow-experiment-id=0"  # the experiment that is always there

    def __init__(self, url: str) -> None:
        self.url = url

    def spans(self, query: str) -> list[Span]:
        where = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
        found = self._ask("traces/search", {"locations": [where], "filter": query, "max_results": 100})
        assert "next_page_token" not in found
        traces = [self._ask(f"traces/get?trace_id={each['trace_id']}") for each in found.get("traces", [])]
        return [decoded(span) for each in traces for span in each["trace"]["spans"]]

    def _ask(self, path: str, question: Mapping[str, Any] | None = None) -> Any:
        body = None if question is None else json.dumps(question).encode()
        url = f"{self.url}/api/3.0/mlflow/{path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return json.load(answer)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An MLflow that listens on 127.0.0.1, with an empty database."""
    python = Path(os.environ.get("MONITEL_TRACE_STORE") or ROOT / ".venv-traces") / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no trace store: create {python.parents[1]} as the first lines of {Path(__file__).name} show")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{tmp_path}/traces.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": str(tmp_path),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    serve = ["-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "mlflow.server.fastapi_app:app"]
    command = ["timeout", str(LIFE), str(python), *serve]
    with Program(command, tmp_path / "store.log", f"{url}/health", environment):
        store = Store(url)
        store.spans("")  # the first request creates the tables
        yield store


def decoded(span: Mapping[str, Any]) -> Span:
    ids = [base64.b64decode(span.get(name, "")).hex() for name in ("trace_id", "span_id", "parent_span_id")]
    attributes = {pair["key"]: value_of(pair["value"]) for pair in span["attributes"]}
    del attributes["mlflow.traceRequestId"]  # MLflow's own
    times = span["start_time_unix_nano"], span["end_time_unix_nano"]
    return Span(ids[0], ids[1], ids[2], span["name"], *times, STATUS[span["status"].get("code")], attributes)


def value_of(value: Mapping[str, Any]) -> Any:
    ((kind, found),) = value.items()
    return [value_of(each) for each in found["values"]] if kind == "array_value" else found


def test_spans_of_two_ranks_are_found_by_query(store: Store, run: Run, tmp_path: Path) -> None:
    """By the id of the run: each span once, with ids, parent, name, attributes, status, and times to the nanosecond."""
    run_id, only_traces = str(tmp_path), {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    for rank in range(RANKS):
        run("-c", JOB, STEPS, env=launched(run_id, rank, RANKS, **only_traces))
    truth = [Span(**{name: getattr(each, name) for name in Span._fields}) for each in cat(tmp_path / "spool").spans]
    assert STEPS * (RANKS * SPANS_PER_RANK + 1) == len(truth)
    endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{store.url}/v1/traces"}
    headers = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": store.headers}
    run("-m", "monitel", "replay", "spool", env={**endpoint, **headers})
    of_run = f"tag.`training.run.id` = '{run_id}'"
    assert sorted(truth) == sorted(store.spans(of_run))
    failed = {each.trace_id for each in truth if (each.name, each.status) == ("all_reduce", ERROR)}
    assert STEPS == len(failed)
    by_status = store.spans(f"{of_run} AND span.name = 'all_reduce' AND span.status = 'ERROR'")
    assert failed == {each.trace_id for each in by_status}
    assert [] == store.spans(f"{of_run} AND span.name = 'forward' AND span.status = 'ERROR'")
