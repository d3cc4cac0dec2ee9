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
from typing import Any

import pytest
from tests.integration.conftest import ROOT
from tests.integration.services import Program, free_port
from tests.integration.spans import ERROR, UNSET, Span, expected, ranks

STEPS = 4
LIFE = 180  # seconds, at most
STATUS = {None: UNSET, "STATUS_CODE_UNSET": UNSET, "STATUS_CODE_ERROR": ERROR}


class Store:
    """A running MLflow.

    Args:
        url: Its base URL.
    """

    headers = "x-mlflow-experiment-id=0"  # the experiment that is always there

    def __init__(self, url: str) -> None:
        self.url = url

    def spans(self, query: str) -> list[dict[str, Any]]:
        where = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
        found = self._ask("traces/search", {"locations": [where], "filter": query, "max_results": 100})
        assert "next_page_token" not in found
        traces = [self._ask(f"traces/get?trace_id={each['trace_id']}") for each in found.get("traces", [])]
        return [span for each in traces for span in each["trace"]["spans"]]

    def _ask(self, path: str, question: Mapping[str, Any] | None = None) -> Any:
        body = None if question is None else json.dumps(question).encode()
        url = f"{self.url}/api/3.0/mlflow/{path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An MLflow that listens on 127.0.0.1, with an empty database."""
    python = Path(os.environ.get("MONITEL_TRACE_STORE") or ROOT / ".venv-traces") / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no trace store: create {python.parents[1]} as the first lines of {Path(__file__).name} show")
    folder = tmp_path_factory.mktemp("store")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/traces.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": str(folder),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    serve = ["-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "mlflow.server.fastapi_app:app"]
    program = Program(["timeout", str(LIFE), str(python), *serve], folder / "store.log", f"{url}/health", environment)
    with program:
        store = Store(url)
        store.spans("")  # the first request creates the tables
        yield store


def decoded(span: Mapping[str, Any]) -> Span:
    """Return a span of an answer. The answers have no links, and no resource of each span."""
    ids = [base64.b64decode(span.get(name, "")).hex() for name in ("trace_id", "span_id", "parent_span_id")]
    attributes = {pair["key"]: value_of(pair["value"]) for pair in span["attributes"]}
    del attributes["mlflow.traceRequestId"]  # MLflow's own
    times = span["start_time_unix_nano"], span["end_time_unix_nano"]
    return Span(ids[0], ids[1], ids[2], span["name"], *times, STATUS[span["status"].get("code")], attributes)


def value_of(value: Mapping[str, Any]) -> Any:
    ((kind, found),) = value.items()
    return [value_of(each) for each in found["values"]] if kind == "array_value" else found


def test_spans_of_two_ranks_are_found_by_query(store: Store, tmp_path: Path) -> None:
    """By the id of the run: each span once, with ids, parent, name, attributes, status, and times to the nanosecond."""
    with ranks(store.url, tmp_path, [STEPS], store.headers) as job:
        job.wait_until_recorded()
        job.go_on()
        truth = expected(job.run, job.notes())
    run = f"tag.`training.run.id` = '{job.run}'"
    spans = [decoded(each) for each in store.spans(run)]
    assert len(truth) == len(spans)
    found = {span.span_id: span for span in spans}
    assert {each.span_id: each._replace(rank=0, links=(), events=()) for each in truth.values()} == found
    failed = {each.trace_id for each in truth.values() if (each.name, each.status) == ("all_reduce", ERROR)}
    assert STEPS == len(failed)
    by_status = store.spans(f"{run} AND span.name = 'all_reduce' AND span.status = 'ERROR'")
    assert failed == {decoded(each).trace_id for each in by_status}
    assert [] == store.spans(f"{run} AND span.name = 'forward' AND span.status = 'ERROR'")
