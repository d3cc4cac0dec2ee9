"""The board of events and the annotations: each query to Loki, in a real Loki as the stack configures it."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from tests.integration.conftest import COMPOSE, Loki
from tests.integration.services import Program, launched, start_python
from tests.integration.stack.filling import filled
from tests.support.inbox import DEADLINE

BOARDS = [json.loads(file.read_text()) for file in sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))]
(EVENTS,) = (each for each in BOARDS if each["uid"] == "monitel-events")
CHOICES = {"service": "board", "namespace": "vision", "run": "run-7", "__auto": "10m"}
ALL_NAMESPACES = {**CHOICES, "namespace": ".*"}
RUNS: tuple[tuple[str, str | None, str, list[str]], ...] = (  # run, namespace, attempt, arguments
    ("run-7", "vision", "0", ["failing"]),
    ("run-7", "vision", "1", []),
    ("run-8", "vision", "0", []),
    ("run-7", None, "0", []),
)

NAMES = ("run.started", "checkpoint", "loss.nan", "run.ended")

JOB = """\
import sys, monitel, monitel_otlp
with monitel_otlp.configure(service_name="board", spool_dir=sys.argv[1]):
    monitel.config({"lr": 0.1, "model": {"layers": [1, 2]}})
    for step in (1, 2, 3):
        monitel.log({"train.loss": 1 / step}, step=step)
    monitel.set_step(3)
    monitel.emit("checkpoint", path="3.pt")
    monitel.emit("loss.nan", severity=monitel.Severity.ERROR)
    if "failing" in sys.argv:
        raise SystemExit(1)
"""


class EventsBoard(Loki):
    """A Loki with the events of two services of one name: one in a namespace, with two runs, and one without."""

    def ask(self, expression: str, choices: Mapping[str, str] = CHOICES) -> list[dict[str, Any]]:
        """Return the streams or series that an expression of a board finds in the last minutes."""
        now = time.time_ns()
        times = {"start": now - 300 * 10**9, "end": now, "step": 60, "limit": 100}
        found: list[dict[str, Any]] = self.get("query_range", query=filled(expression, choices), **times)["result"]
        return found

    def lines(self, expression: str, choices: Mapping[str, str] = CHOICES) -> list[str]:
        return sorted(line for stream in self.ask(expression, choices) for _, line, _ in stream["values"])


@pytest.fixture(scope="module")
def loki(loki_server: tuple[str, Program], tmp_path_factory: pytest.TempPathFactory) -> EventsBoard:
    url, _ = loki_server
    folder = tmp_path_factory.mktemp("events")
    for run, namespace, attempt, words in RUNS:
        own = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{url}/otlp/v1/logs", "TORCHELASTIC_RESTART_COUNT": attempt}
        if namespace:
            own["OTEL_RESOURCE_ATTRIBUTES"] = f"service.namespace={namespace}"
        environment = launched(run, 0, 1, **own)
        with start_python(folder, "-c", JOB, "spool", *words, env=environment) as process:
            assert int(bool(words)) == process.wait(DEADLINE)
    return EventsBoard(url)


def expression(title: str) -> str:
    (panel,) = (panel for panel in EVENTS["panels"] if panel["title"] == title)
    (target,) = panel["targets"]
    text: str = target["expr"]
    return text


def test_events_are_counted_by_name(loki: EventsBoard) -> None:
    """Numbers and configurations are not events; another run, or a service without a namespace, has its own counts."""
    own = dict.fromkeys((("vision", name) for name in NAMES), 2)
    assert own == counted(loki, CHOICES)
    assert own | {("", name): 1 for name in NAMES} == counted(loki, ALL_NAMESPACES)


def counted(loki: EventsBoard, choices: Mapping[str, str]) -> dict[tuple[str, str], int]:
    series = loki.ask(expression("Events by name"), choices)
    labels = [(each["metric"].get("service_namespace", ""), each["metric"]["event"]) for each in series]
    return {name: int(each["values"][-1][1]) for name, each in zip(labels, series, strict=True)}


def test_lists_show_rank_and_step(loki: EventsBoard) -> None:
    """Events, those that are severe, and the calls of log() and config(), each in a list."""
    severe = 2 * ["loss.nan rank=0 step=3"]
    assert severe == loki.lines(expression("Warnings and errors"))
    starts = 2 * ["run.started rank=0"]
    assert sorted(
        [*2 * ["checkpoint rank=0 step=3"], *severe, *2 * ["run.ended rank=0 step=3"], *starts]
    ) == loki.lines(expression("All events"))
    config = '{"lr":0.1,"model":{"layers":[1,2]}} rank=0'
    numbers = [f'{{"train.loss":{value}}} rank=0 step={step}' for step, value in ((1, "1"), (2, "0.5"))]
    found = loki.lines(expression("Logged numbers and configuration"))
    assert 8 == len(found)
    assert {config, *numbers} < set(found)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_starts_and_ends_are_annotations(loki: EventsBoard, board: dict[str, Any]) -> None:
    """Each board marks them, with the status of the end and the attempt of a restart."""
    (annotation,) = board["annotations"]["list"]
    assert "loki" == annotation["datasource"]["uid"]
    first = ["run.ended failed rank=0", "run.started rank=0"]
    second = ["run.ended completed rank=0 attempt=1", "run.started rank=0 attempt=1"]
    assert sorted([*first, *second]) == loki.lines(annotation["expr"])
    elsewhere = ["run.ended completed rank=0", "run.started rank=0"]
    assert sorted([*first, *second, *elsewhere]) == loki.lines(annotation["expr"], ALL_NAMESPACES)
