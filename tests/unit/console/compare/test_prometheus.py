"""Runs in a Prometheus that a test plays: their numbers, and the secrets in its address and headers."""

from __future__ import annotations

import base64
import json
import math
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from tests.processes.promises.recorded_runs import Commands, commands

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["commands"]

SECRET = "s3cret-word"
Series = dict[str, Any]
IDENTITY = {"job": "train", "training_run_id": "run-7", "training_rank": "0"}
ALL = "last_over_time({training_run_id="
BY_INSTANCE = "last_over_time({instance=~"
TIMES = "max by (instance) (max_over_time(timestamp("


def series(name: str, value: object, **labels: str) -> Series:
    """Return a series of an answer."""
    return {"metric": {"__name__": name, **labels}, "value": [0, str(value)]}


def of_process(instance: str, **values: float) -> list[Series]:
    """Return the series of one process, whose resource is in target_info."""
    found = [series(name, value, job="train", instance=instance) for name, value in values.items()]
    target = series("target_info", 1, instance=instance, host_name="n04", training_world_size="8", **IDENTITY)
    return [target, *found]


class Server:
    """A server that answers queries.

    Attributes:
        answers: The answers by the beginnings of queries, or complete ones as status and body.
        queries: The queries that were asked.
        credentials: The headers ``Authorization`` of the queries.
        tenants: The headers ``X-Scope-OrgID`` of the queries.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Series]] = {}
        self.raw: tuple[int, bytes] | None = None
        self.queries: list[str] = []
        self.credentials: list[str | None] = []
        self.tenants: list[str | None] = []
        self.url = ""

    def answer(self, query: str) -> tuple[int, bytes]:
        """Return status and body."""
        if self.raw is not None:
            return self.raw
        found = next((each for start, each in self.answers.items() if query.startswith(start)), [])
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode()


@contextmanager
def serving() -> Iterator[Server]:
    """Serve in a thread."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            server.queries += form["query"]
            server.credentials.append(self.headers["Authorization"])
            server.tenants.append(self.headers["X-Scope-OrgID"])
            known = self.path.partition("?")[0] == "/prom/api/v1/query"
            status, body = server.answer(form["query"][0]) if known else (404, b"")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{listening.server_port}/prom"
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server without runs."""
    with serving() as found:
        yield found


def test_numbers_of_two_attempts(server: Server, commands: Commands) -> None:
    """Totals are added up over the processes, gauges are those of the process that has sent last."""
    first = of_process("a", loss_mean=0.5, training_samples_total=80, training_goodput_ratio=0.25, training_step=9)
    second = of_process("b", loss_mean=0.25, training_samples_total=40, training_goodput_ratio=0.5, training_step=14)
    activities = [
        series("training_time_seconds_total", value, instance=instance, training_activity=name)
        for instance, name, value in (("a", "step", 6), ("a", "startup", 2), ("b", "step", 3), ("b", "down", 1))
    ]
    steps = [series("training_steps_total", 10, instance="a"), series("training_steps_total", 5, instance="b")]
    internal = ("monitel_queue_size", "barrier_wait_count_total", "barrier_wait_active", "hw_power_watts")
    hidden = [
        *(series(name, 1, instance="b") for name in internal),
        series("training:late", 1, instance="b"),
        series("loss_bucket", math.nan, instance="b", otel_scope_name="monitel", le="1"),
        {"metric": {"__name__": "step_time_histogram"}, "histogram": [0, {}]},
    ]
    server.answers = {
        ALL: [each for each in (*first, *second) if each["metric"]["__name__"] == "target_info"],
        BY_INSTANCE: [*second, *first, *activities, *steps, *hidden],
        TIMES: [{"metric": {"instance": name}, "value": [0, at]} for name, at in (("a", "1000"), ("b", "1020.5"))],
    }
    run, _ = commands.compared("run-7", "run-7", "--prometheus", server.url, "--days", "2")
    assert ("run-7", 2, 0.5, 15, 14) == tuple(
        run[name] for name in ("run", "attempts", "goodput", "steps", "last_step")
    )
    assert {"startup": 2, "step": 9, "down": 1} == run["activities"]
    assert ("1970-01-01T00:16:48.500000Z", "1970-01-01T00:17:00.500000Z") == (run["started"], run["last_seen"])
    assert 15 / 9 == pytest.approx(run["steps_per_second"])
    values = {"loss_mean": 0.25, "training_samples_total": 120, "training_steps_total": 15, "loss_bucket": "NaN"}
    assert values == run["values"]
    assert ("8", "n04") == (run["attributes"]["training_world_size"], run["attributes"]["host_name"])
    assert '{training_run_id="run-7", training_rank=~"0|"}[172800s]' in server.queries[0]
    assert any('{instance=~"a|b"}[172800s]' in query for query in server.queries)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ((401, b"no"), "requires credentials: set MONITEL_PROMETHEUS_HEADERS, for instance to Authorization=Bearer%20"),
        ((422, f'{{"status": "error", "error": "not {SECRET}"}}'.encode()), "(status 422): 'not ***'"),
        ((200, b"<html>"), "is not a Prometheus: unexpected answer (status 200)"),
    ],
)
def test_secrets_are_sent_and_never_shown(
    raw: tuple[int, bytes], message: str, server: Server, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server answers, neither the password of the URL nor a header is in any message."""
    server.raw = raw
    monkeypatch.setenv("MONITEL_PROMETHEUS_HEADERS", f"X-Scope-OrgID={SECRET}")
    address = server.url.replace("//", f"//admin:{SECRET}@") + f"?token={SECRET}"
    printed = commands.run("compare", "run-7", "run-8", "--prometheus", address, status=1)
    assert [base64.b64encode(f"admin:{SECRET}".encode()).decode()] == [
        (each or "").removeprefix("Basic ") for each in server.credentials
    ]
    assert [SECRET] == server.tenants
    assert message in printed.err
    assert server.url in printed.err
    assert SECRET not in printed.out + printed.err
    assert "admin" not in printed.out + printed.err
