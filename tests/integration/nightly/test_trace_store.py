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
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.integration.conftest import ROOT, Python
from tests.integration.services import Program, free_port, launched

JOB = Path(__file__).parents[1] / "jobs" / "spans_job.py"
RANKS, STEPS = 2, 4
UNSET, ERROR = 0, 2
LIFE = 180  # seconds, at most
STATUS = {None: UNSET, "STATUS_CODE_UNSET": UNSET, "STATUS_CODE_ERROR": ERROR}


class Span(NamedTuple):
    """One span. Ids are hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]


def expected(run: str, notes: list[list[Any]]) -> dict[str, Span]:
    """Return the spans that the store must have of the notes of each rank, by id. Ids are the documented hashes."""
    found: dict[str, Span] = {}

    def extend(span: Span) -> None:
        """Let the span of a step or of a rank last from its first range to its last."""
        known = found.get(span.span_id, span)
        start_ns, end_ns = min(known.start_ns, span.start_ns), max(known.end_ns, span.end_ns)
        found[span.span_id] = span._replace(start_ns=start_ns, end_ns=end_ns)

    for rank, of_rank in enumerate(notes):
        for path, step, start_ns, end_ns, noted in of_rank:
            trace_id = digest(16, run.encode(), b"0", str(step).encode())
            root_id = digest(8, trace_id)
            parent_id = top_id = digest(8, trace_id, str(rank).encode())
            for name, number in path[:-1]:
                parent_id = digest(8, parent_id, name.encode(), str(number).encode())
            name, number = path[-1]
            span_id = digest(8, parent_id, name.encode(), str(number).encode()).hex()
            assert span_id not in found, f"{path} has the id of {found[span_id]}"
            trace, times, own = trace_id.hex(), (start_ns, end_ns), {"training.step": step}
            status = ERROR if "error.type" in noted else UNSET
            found[span_id] = Span(trace, span_id, parent_id.hex(), name, *times, status, {**noted, **own})
            of_rank_span = {**own, "training.rank": rank}
            extend(Span(trace, top_id.hex(), root_id.hex(), "training.rank", *times, UNSET, of_rank_span))
            if rank == 0:
                extend(Span(trace, root_id.hex(), "", "training.step", *times, UNSET, own))
    return found


def digest(size: int, *words: bytes) -> bytes:
    return blake2b(b"\0".join(words), digest_size=size).digest()


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
    ids = [base64.b64decode(span.get(name, "")).hex() for name in ("trace_id", "span_id", "parent_span_id")]
    attributes = {pair["key"]: value_of(pair["value"]) for pair in span["attributes"]}
    del attributes["mlflow.traceRequestId"]  # MLflow's own
    times = span["start_time_unix_nano"], span["end_time_unix_nano"]
    return Span(ids[0], ids[1], ids[2], span["name"], *times, STATUS[span["status"].get("code")], attributes)


def value_of(value: Mapping[str, Any]) -> Any:
    ((kind, found),) = value.items()
    return [value_of(each) for each in found["values"]] if kind == "array_value" else found


def test_spans_of_two_ranks_are_found_by_query(store: Store, python: Python, tmp_path: Path) -> None:
    """By the id of the run: each span once, with ids, parent, name, attributes, status, and times to the nanosecond."""
    exports = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{store.url}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": store.headers,
    }
    run_id = str(tmp_path)
    environments = [launched(run_id, rank, RANKS, **exports) for rank in range(RANKS)]
    truth = expected(run_id, [json.loads(python(JOB, STEPS, environment=each).stdout) for each in environments])
    run = f"tag.`training.run.id` = '{run_id}'"
    spans = [decoded(each) for each in store.spans(run)]
    assert len(truth) == len(spans)
    assert truth == {span.span_id: span for span in spans}
    failed = {each.trace_id for each in truth.values() if (each.name, each.status) == ("all_reduce", ERROR)}
    assert STEPS == len(failed)
    by_status = store.spans(f"{run} AND span.name = 'all_reduce' AND span.status = 'ERROR'")
    assert failed == {decoded(each).trace_id for each in by_status}
    assert [] == store.spans(f"{run} AND span.name = 'forward' AND span.status = 'ERROR'")
