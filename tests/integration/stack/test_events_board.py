"""The board of events and the annotations: each query to Loki, in a real Loki as the stack configures it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.conftest import COMPOSE, DEADLINE, eventually, free_port, running

from .filling import filled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

BOARDS = [json.loads(file.read_text()) for file in sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))]
(EVENTS,) = (each for each in BOARDS if each["uid"] == "monitel-events")
CHOICES = {"job": "train", "run": "run-7", "__auto": "10m"}

JOB = """\
import sys, monitel, monitel_otlp
with monitel_otlp.configure(service_name="train", spool_dir=sys.argv[1]):
    monitel.config({"lr": 0.1, "model": {"layers": [1, 2]}})
    for step in (1, 2, 3):
        monitel.log({"train.loss": 1 / step}, step=step)
    monitel.set_step(3)
    monitel.emit("checkpoint", path="3.pt")
    monitel.emit("loss.nan", severity=monitel.Severity.ERROR)
    if "failing" in sys.argv:
        raise SystemExit(1)
"""


@dataclass(frozen=True)
class Loki:
    """A Loki with the events of two runs: of each job one that completed and one that failed."""

    url: str

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the streams or series that an expression of a board finds in the last minutes."""
        now = time.time_ns()
        times = {"start": now - 300 * 10**9, "end": now, "step": 60, "limit": 100}
        query = urllib.parse.urlencode({"query": filled(expression, CHOICES), **times})
        try:
            with urllib.request.urlopen(f"{self.url}/loki/api/v1/query_range?{query}", timeout=30) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return found

    def lines(self, expression: str) -> list[str]:
        """Return the lines that an expression finds, in alphabetical order."""
        return sorted(line for stream in self.ask(expression) for _, line in stream["values"])


@pytest.fixture(scope="module")
def loki(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loki]:
    """The only Loki of this file, after two runs."""
    program = backends / "loki"
    if not program.exists():
        pytest.skip(f"no Loki: put the program loki into {backends}")
    folder = tmp_path_factory.mktemp("loki")
    config = folder / "loki.yaml"
    config.write_text((COMPOSE / "loki.yaml").read_text().replace("/loki", str(folder / "data")))
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        program,
        f"-config.file={config}",
        f"-server.http-listen-port={url.rpartition(':')[2]}",
        f"-server.grpc-listen-port={free_port()}",
        *(f"-server.{kind}-listen-address=127.0.0.1" for kind in ("http", "grpc")),
    ]
    with running(*command, log=folder / "loki.log", ready=f"{url}/ready"):
        eventually(lambda: answers(f"{url}/ready"), "Loki is not ready")
        for run, words in (("run-7", []), ("run-7", ["failing"]), ("run-8", [])):
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))},
                "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{url}/otlp/v1/logs",
                "TORCHELASTIC_RUN_ID": run,
                "RANK": "0",
                "WORLD_SIZE": "1",
            }
            script = [sys.executable, "-c", JOB, str(folder / "spool"), *words]
            done = subprocess.run(script, env=environment, capture_output=True, timeout=DEADLINE, check=False)
            assert bool(words) == bool(done.returncode), done.stderr
        yield Loki(url)


def answers(url: str) -> bool:
    """Return True if a page answers with 200."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def expression(title: str) -> str:
    """Return the query of a panel of the board of events."""
    (panel,) = (panel for panel in EVENTS["panels"] if panel["title"] == title)
    (target,) = panel["targets"]
    text: str = target["expr"]
    return text


def test_events_are_counted_by_name(loki: Loki) -> None:
    """Numbers and configurations are not events, and another run does not count."""
    found = {each["metric"]["event"]: int(each["values"][-1][1]) for each in loki.ask(expression("Events by name"))}
    assert dict.fromkeys(("run.started", "checkpoint", "loss.nan", "run.ended"), 2) == found


def test_lists_show_rank_and_step(loki: Loki) -> None:
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
def test_starts_and_ends_are_annotations(loki: Loki, board: dict[str, Any]) -> None:
    """Each board marks them, with the status of the end."""
    (annotation,) = board["annotations"]["list"]
    assert "loki" == annotation["datasource"]["uid"]
    ends = ["run.ended completed rank=0", "run.ended failed rank=0"]
    assert [*ends, *2 * ["run.started rank=0"]] == loki.lines(annotation["expr"])
