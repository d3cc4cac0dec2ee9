"""Runs in a Prometheus that a test plays: its queries, its hostile answers, and the secrets in its address."""

from __future__ import annotations

import base64
import json
import logging
import math
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest

from monitel_otlp.compare import prometheus_api
from monitel_otlp.config.environment import parse_headers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.console.compare.jobs import Compare, Compared

SECRET = "s3cret-word"
Series = dict[str, Any]
IDENTITY = {"job": "train", "training_run_id": "run-7", "training_rank": "0"}


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


ALL = "last_over_time({training_run_id="
BY_INSTANCE = "last_over_time({instance=~"
TIMES = "max by (instance) (max_over_time(timestamp("


def test_numbers_of_two_attempts(server: Server, compared: Compared) -> None:
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
    run, _ = compared("run-7", "run-7", "--prometheus", server.url, "--days", "2")
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


def test_values_with_names_like_those_of_monitel_are_shown(server: Server, compared: Compared) -> None:
    """Only the metrics that monitel sends are left out, not all that begin or end like them."""
    own = {"process_reward_mean": 0.5, "system_prompt_loss": 0.25, "queue_wait_seconds": 2.0, "hw_errors_total": 3.0}
    internal = {"process_cpu_time_seconds_total": 9.0, "training_goodput_ratio": 0.5}
    server.answers = {ALL: [*of_process("a"), series("loss", 1.0, **IDENTITY)], TIMES: []}
    server.answers[ALL] += [series(name, value, **IDENTITY) for name, value in {**own, **internal}.items()]
    for run in compared("run-7", "run-7", "--prometheus", server.url):
        assert {**own, "loss": 1.0} == run["values"]


def test_promoted_labels_need_one_query(server: Server, compared: Compared) -> None:
    """If each series has the run id, all series of the run come at once; its labels are not those of values."""
    labels = {**IDENTITY, "instance": "a", "service_name": "train", "host_name": "n04"}
    server.answers = {ALL: [series("loss_mean", 0.5, split="train", **labels), series("target_info", 1, **labels)]}
    for run in compared("run-7", "run-7", "--prometheus", server.url):
        assert {"loss_mean": 0.5} == run["values"]
    assert not any(query.startswith(BY_INSTANCE) for query in server.queries)


def test_run_id_is_quoted(server: Server, compare: Compare) -> None:
    """A run id is data, not a part of the query; and it is printed without control characters."""
    name = 'x"} or up{a="\\\n\x1b[2J'
    compare(name, "run-7", "--prometheus", server.url, returncode=1)
    assert 'training_run_id="x\\"} or up{a=\\"\\\\\\n\\u001b[2J", ' in server.queries[0]
    labels = {**IDENTITY, "instance": "\x1b[2J", "host_name": "\x07"}
    server.answers = {ALL: [series("loss\x1b[2J", 1, **labels), series("target_info", 1, **labels)]}
    printed = compare(name, name, "--prometheus", server.url)
    assert all(each.isprintable() for each in printed.stdout.replace("\n", ""))


def test_unknown_run_lists_the_runs(server: Server, compare: Compare) -> None:
    """The message has what was given and what there is."""
    server.answers = {
        "count by": [{"metric": {"training_run_id": f"run-{each}\x1b"}, "value": [0, "1"]} for each in "ba"]
    }
    errors = compare("run-7", "run-8", "--prometheus", server.url, returncode=1).stderr
    assert f"there is no run 'run-7' in {server.url}; the runs are\n  'run-a\\x1b'\n  'run-b\\x1b'\n" in errors
    server.answers = {}
    errors = compare("run-7", "run-8", "--prometheus", server.url, returncode=1).stderr
    assert "and no other series with a training_run_id" in errors


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, "there is no run 'run-7'"),
        ((401, b"no"), "requires credentials: set MONITEL_PROMETHEUS_HEADERS, for instance to Authorization=Bearer%20"),
        ((403, b"no"), "does not permit reading with these credentials: check MONITEL_PROMETHEUS_HEADERS (status 403)"),
        ((422, f'{{"status": "error", "error": "not {SECRET}"}}'.encode()), "(status 422): 'not ***'"),
        ((302, b""), "redirects to another address (status 302)"),
        ((422, b'{"status": "error", "error": "too many\\u001b samples"}'), "(status 422): 'too many\\x1b samples'"),
        ((200, b"<html>"), "is not a Prometheus: unexpected answer (status 200)"),
        ((200, b"[" * 100_000), "is not a Prometheus"),
        (
            (200, b'{"status": "success", "data": {"result": [{"metric": [], "value": [0, "1"]}]}}'),
            "is not a Prometheus",
        ),
        ((200, b'{"status": "success", "data": {"result": [{"metric": {}, "value": [0]}]}}'), "is not a Prometheus"),
        ((503, b""), "is not a Prometheus: unexpected answer (status 503)"),
        ("closed", "does not answer: ConnectionError"),
        ("large", "answers with more than 1,000 bytes"),
    ],
)
def test_secrets_of_the_address_are_sent_and_never_shown(
    raw: Any, message: str, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server answers, user name, password and parameters are in no message."""
    with serving() as server:
        address = server.url.replace("//", f"//admin:{SECRET}@") + f"?token={SECRET}"
        server.raw = (200, b" " * 2000) if raw == "large" else raw if raw != "closed" else None
        if raw == "large":
            monkeypatch.setattr(prometheus_api, "_LARGEST", 1000)
        if raw != "closed":
            printed = compare("run-7", "run-8", "--prometheus", address, returncode=1)
            expected = base64.b64encode(f"admin:{SECRET}".encode()).decode()
            assert {f"Basic {expected}"} == set(server.credentials)
    if raw == "closed":
        printed = compare("run-7", "run-8", "--prometheus", address, returncode=1)
    assert message in printed.stderr
    assert server.url in printed.stderr
    assert SECRET not in printed.stdout + printed.stderr
    assert "admin" not in printed.stdout + printed.stderr
    assert all(each.isprintable() for each in printed.stderr.replace("\n", ""))


@pytest.mark.parametrize(
    "url", [f"ftp://u:{SECRET}@h", f"u:{SECRET}@h:9090", f"http://u:{SECRET}@h:port", "", "http://"]
)
def test_address_that_is_not_one_of_http_is_refused_unseen(url: str, compare: Compare) -> None:
    """The message shows an example, because the address may hold a password."""
    errors = compare("run-7", "run-8", "--prometheus", url, returncode=1).stderr
    assert "--prometheus: expected a URL such as http://localhost:9090" in errors
    assert SECRET not in errors


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose ``.netrc`` has credentials for the server."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login netrc password of-netrc\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("userinfo", "variable", "expected"),
    [
        ("", f"Authorization=Bearer%20{SECRET}, X-Scope-OrgID=team-7", f"Bearer {SECRET}"),
        ("", f"authorization=Bearer {SECRET},X-Scope-OrgID=team-7", f"Bearer {SECRET}"),
        (f"admin:{SECRET}@", "authorization=Bearer of-header,X-Scope-OrgID=team-7", f"admin:{SECRET}"),
        ("", "X-Scope-OrgID=team-7,Content-Length=1", "netrc:of-netrc"),
        ("gr%C3%B6%40:%E2%82%AC@", "X-Scope-OrgID=team-7", "grö@:€"),
    ],
)
@pytest.mark.usefixtures("home")
def test_headers_of_the_variable_are_sent(  # noqa: PLR0917  three parameters and three fixtures
    userinfo: str, variable: str, expected: str, server: Server, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password in the URL comes first, then a header of the variable, then a ``.netrc`` file."""
    monkeypatch.setenv("MONITEL_PROMETHEUS_HEADERS", variable)
    address = server.url.replace("//", f"//{userinfo}")
    printed = compare("run-7", "run-8", "--prometheus", address, returncode=1)
    assert {"team-7"} == set(server.tenants)
    (sent,) = set(server.credentials)
    assert sent is not None
    assert expected == (sent if sent.startswith("Bearer") else base64.b64decode(sent.removeprefix("Basic ")).decode())
    assert SECRET not in printed.stdout + printed.stderr


@pytest.mark.parametrize("answered", [301, 302, 307, 308, 401, 403, 422, 500])
def test_token_is_never_shown(
    answered: int, server: Server, compare: Compare, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the server answers, there is one query, to this address, and no output has the token."""
    monkeypatch.setenv("MONITEL_PROMETHEUS_HEADERS", f"Authorization=Bearer%20{SECRET}")
    caplog.set_level(logging.DEBUG)
    echo = base64.b64encode(f"Bearer {SECRET}".encode()).decode()
    server.raw = answered, json.dumps({"status": "error", "error": f"Bearer {SECRET} {echo}"}).encode()
    printed = compare("run-7", "run-8", "--prometheus", server.url, returncode=1)
    for text in (printed.stdout, printed.stderr, caplog.text):
        assert SECRET not in text
        assert echo not in text
    assert [f"Bearer {SECRET}"] == server.credentials
    headers, _ = parse_headers(f"Authorization=Bearer%20{SECRET}")
    api = prometheus_api.PrometheusApi(server.url, headers)
    assert SECRET not in repr(vars(api)) + repr(headers)


@pytest.mark.parametrize("variable", [SECRET, f"Authorization=Bearer%20x,{SECRET}", f"={SECRET}", f"a={SECRET}%0Ab"])
def test_malformed_headers_are_refused_unseen(
    variable: str, server: Server, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No query is sent without a header that the user has meant."""
    monkeypatch.setenv("MONITEL_PROMETHEUS_HEADERS", variable)
    errors = compare("run-7", "run-8", "--prometheus", server.url, returncode=1).stderr
    assert "MONITEL_PROMETHEUS_HEADERS: expected NAME=VALUE,NAME=VALUE" in errors
    assert SECRET not in errors
    assert [] == server.queries


def test_answer_that_never_ends_has_a_deadline(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then is given up, although each byte is in time."""
    monkeypatch.setattr(prometheus_api, "_WHOLE", 0.5)
    ended = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            while not ended.wait(0.05):
                self.wfile.write(b" ")
                self.wfile.flush()

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{listening.server_port}"
        try:
            errors = compare("run-7", "run-8", "--prometheus", url, returncode=1).stderr
        finally:
            ended.set()
            listening.shutdown()
    assert "has not answered completely within 0.5 s" in errors


def test_impossible_times_and_steps_are_left_out(server: Server, compared: Compared) -> None:
    """Values may be anything; times and numbers of steps are finite."""
    times = [
        series("training_time_seconds_total", value, instance="a", training_activity=name)
        for name, value in {"step": "NaN", "data": "+Inf", "init": "1e300", "other": "-1", "startup": "2"}.items()
    ]
    steps = of_process("a", training_steps_total=math.inf, training_step=math.nan, loss=math.inf, rate=1e300)
    server.answers = {ALL: [*steps, *times], TIMES: [{"metric": {"instance": "a"}, "value": [0, "+Inf"]}]}
    server.answers[BY_INSTANCE] = server.answers[ALL]
    run, _ = compared("run-7", "run-7", "--prometheus", server.url)
    assert {"startup": 2} == run["activities"]
    assert (None, None, None) == (run["steps"], run["last_step"], run["last_seen"])
    assert ("Infinity", 1e300) == (run["values"]["loss"], run["values"]["rate"])


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "1e9"])
def test_period_is_checked(days: str, server: Server, compare: Compare) -> None:
    """A period is positive, and at most ten years."""
    errors = compare("run-7", "run-8", "--prometheus", server.url, "--days", days, returncode=1).stderr
    assert "--days: expected more than 0 and at most 3,650" in errors
    assert [] == server.queries
