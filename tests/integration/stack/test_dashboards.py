"""The dashboards: what their code makes, and that each of their queries finds something in a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event as Signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.conftest import DEADLINE, ROOT, eventually

from .filling import COMPOSE, filled, sixty_times_faster, store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .filling import Store

BOARDS = ("overview", "stragglers", "waits", "pipeline")
FILES = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))
DEMO = ROOT / "docs" / "examples" / "train_char_model.py"

# Empty by right where all is well, and where nothing has ended.
OF_FAULTS = {"Ranks whose loss is not finite", "Items dropped", "Dropped so far", "Firing"}
OF_ENDS = {"Processes that have stopped in the time shown"}
OF_GPUS = {"Tokens per second", "Share of steps that were skipped", "Model FLOPs utilization"}  # not of the demo


@dataclass(frozen=True)
class Board:
    """A dashboard as Grafana reads it, with the choices that are made when it is opened."""

    content: dict[str, Any]
    store: Store

    def variables(self) -> dict[str, str]:
        """Return the value of each variable in an expression."""
        chosen = {"__rate_interval": "4m", "__range": "10m"}
        for variable in self.content["templating"]["list"]:
            chosen[variable["name"]] = self._chosen(variable, chosen)
        return chosen

    def _chosen(self, variable: dict[str, Any], chosen: dict[str, str]) -> str:
        current = variable.get("current", {}).get("value")
        if variable["type"] == "custom":
            assert current in variable["query"].split(",")
            return str(current)
        options = self.options(variable, chosen)
        if not variable["includeAll"]:
            return current if current in options else next(iter(options), "")
        assert ["$__all"] == current
        return variable.get("allValue") or f"({'|'.join(options)})"

    def options(self, variable: dict[str, Any], chosen: dict[str, str]) -> list[str]:
        """Return the choices of a query variable."""
        found = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", variable["query"]["query"])
        assert found, variable
        values = self.store.get(f"label/{found[2]}/values", **{"match[]": filled(found[1], chosen)})
        pattern = re.compile(variable["regex"].strip("/") or "(.*)")
        return sorted({match[1] for match in map(pattern.search, values) if match})

    def empty(self) -> set[str]:
        """The titles of the panels with a query that finds nothing."""
        return {panel["title"] for panel, target, variables in self._targets() if not self._ask(target, variables)}

    def targets(self, title: str) -> list[dict[str, Any]]:
        """The queries of one panel."""
        return [target for panel in self.content["panels"] if panel["title"] == title for target in panel["targets"]]

    def _targets(self) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, str]]]:
        """Each query to Prometheus with its panel and its choices; of repeated rows and panels, for each choice."""
        variables = self.variables()
        of_row = [variables]
        for panel in self.content["panels"]:
            if panel["type"] == "row":
                of_row = repeated(panel, variables)
                continue
            of_panel = repeated(panel, variables) if "repeat" in panel else of_row
            for target in panel["targets"]:
                if target["datasource"]["uid"] == "prometheus":
                    yield from ((panel, target, choices) for choices in of_panel)

    def _ask(self, target: dict[str, Any], variables: dict[str, str]) -> Any:
        expression = sixty_times_faster(filled(target["expr"], variables))
        if target["instant"]:
            return self.store.query(expression)
        now = time.time()
        times = {"start": str(now - 20), "end": str(now), "step": "1"}
        return self.store.get("query_range", query=expression, **times)["result"]


def repeated(repeats: dict[str, Any], variables: dict[str, str]) -> list[dict[str, str]]:
    """The variables of each repetition of a row or panel."""
    name = repeats.get("repeat")
    values = variables[name].strip("()").split("|") if name else []
    return [{**variables, name: value} for value in values] or [variables]


@pytest.fixture(scope="module")
def prometheus(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A Prometheus that a job of five ranks fills: a slow one, one with a NaN, one that was killed, one with events."""
    folder = tmp_path_factory.mktemp("prometheus")
    with store(backends, folder) as found:
        variables = {
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{found.url}/api/v1/write",
            "OTEL_RESOURCE_ATTRIBUTES": "host.name=node-1",
        }
        ranks = {0: "", 1: "events", 2: "slow", 3: "nan", 4: ""}
        with found.training(folder / "job", "run-7", ranks, variables) as job:
            eventually(lambda: len(found.query("step_time_mean_seconds")) == len(ranks), "not all ranks have begun")
            job.trigger()
            job.kill(4)
            yield found


def board(name: str, prometheus: Store) -> Board:
    """A dashboard."""
    return Board(json.loads((COMPOSE / "grafana" / "dashboards" / f"monitel-{name}.json").read_text()), prometheus)


def settle(opened: Board, allowed: set[str]) -> None:
    """Wait until no panels are empty but these."""
    deadline, pause = time.monotonic() + DEADLINE, Signal()
    while not (empty := opened.empty()) <= allowed:
        assert time.monotonic() < deadline, empty
        pause.wait(0.2)


@pytest.mark.integration
@pytest.mark.parametrize("name", BOARDS)
def test_every_query_finds_something(name: str, prometheus: Store) -> None:
    """With the choices that are made when it is opened."""
    settle(board(name, prometheus), set())


@pytest.mark.integration
def test_all_samples_are_shown(prometheus: Store) -> None:
    """One rank of five takes three times as long: p99 is its steps, and the heat map, one series, has all of them."""
    opened = board("overview", prometheus)
    (cells,) = opened.targets("$histogram, heat map")
    percentiles = {each["legendFormat"].split()[-1]: each for each in opened.targets("$histogram, percentiles")}
    variables = opened.variables()
    assert {"p50", "p90", "p99"} == set(percentiles)

    def shown() -> bool:
        """Return True if the newest percentiles differ, and the newest column has samples of both kinds of ranks."""
        found = {name: opened._ask(target, variables) for name, target in percentiles.items()}
        columns = opened._ask(cells, variables)
        if not columns or not all(found.values()):
            return False
        p50, p90, p99 = (float(found[name][0]["values"][-1][1]) for name in ("p50", "p90", "p99"))
        (column,) = columns
        samples = [(float(low), float(count)) for _, low, _, count in column["histograms"][-1][1]["buckets"]]
        quick = sum(count for low, count in samples if low < 0.08)
        slow = sum(count for low, count in samples if low >= 0.08)
        return 0.025 < p50 <= p90 <= p99 and p99 > 2 * p50 and quick > slow > 0

    eventually(shown, "neither the slow rank's steps nor the others' are shown")


@pytest.mark.integration
def test_each_rank_run_and_metric_is_offered(prometheus: Store) -> None:
    """The variables offer what there is, and the demo's names are chosen."""
    opened = board("overview", prometheus)
    chosen = opened.variables()
    offered = {
        variable["name"]: opened.options(variable, chosen)
        for variable in opened.content["templating"]["list"]
        if variable["type"] == "query"
    }
    means = {"loss": "loss_mean", "step": "step_time_mean_seconds", "gradient": "gradient_norm_mean"}
    assert {
        "job": ["train"],
        "run": ["run-7"],
        "rank": ["0", "1", "2", "3", "4"],
        "loss": ["loss_mean", "train_loss"],
        "step": ["step_time_mean_seconds"],
        "gradient": ["gradient_norm_mean"],
        "histogram": ["step_time_histogram_seconds"],
        "number": ["train_loss"],
        "metric": sorted([*means.values(), "train_loss", "training_mfu", "training_samples_rate", "training_step"]),
    } == offered
    assert means == {name: chosen[name] for name in means}


@pytest.mark.integration
def test_a_wrong_name_is_found(prometheus: Store) -> None:
    """A query for a metric that there is not is empty, and so these tests would fail."""
    opened = board("pipeline", prometheus)
    content = json.loads(json.dumps(opened.content).replace("monitel_spool_size_bytes", "monitel_spool_bytes"))
    assert {"On disk"} <= Board(content, prometheus).empty()


@contextmanager
def telling(command: Sequence[str], prometheus: Store, folder: Path) -> Iterator[None]:
    """Run a command in a folder, with its metrics going to this Prometheus, until Ctrl-C."""
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{prometheus.url}/api/v1/otlp/v1/metrics",
        "OTEL_METRIC_EXPORT_INTERVAL": "250",
    }
    with (folder / "command.log").open("w") as output:
        running = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
    try:
        yield
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(DEADLINE)


@pytest.mark.integration
def test_the_demo_is_shown(backends: Path, tmp_path: Path) -> None:
    """A process without a launcher, that says neither a run nor a rank: all that is there is on the boards."""
    with store(backends, tmp_path) as prometheus:
        choices = ["--seconds=60", "--hidden=32", f"--run-dir={tmp_path / 'run'}", "--distributions=both"]
        command = [sys.executable, str(DEMO), *choices]
        with telling(command, prometheus, tmp_path):
            for name in BOARDS:
                settle(board(name, prometheus), OF_FAULTS | OF_ENDS | OF_GPUS)


@pytest.mark.integration
def test_a_simulation_is_shown(backends: Path, tmp_path: Path) -> None:
    """With histograms of its step times nothing is empty but what is so where all is well."""
    with store(backends, tmp_path) as prometheus:
        size = ("--ranks=4", "--stats=5", "--windows=1000", "--window=0.25")
        command = [sys.executable, "-m", "monitel_otlp", "simulate", *size, "--distributions=histogram"]
        with telling(command, prometheus, tmp_path):
            for name in BOARDS:
                settle(board(name, prometheus), OF_FAULTS | OF_ENDS)


def test_the_files_are_what_the_code_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change: python compose/grafana/dashboards.py."""
    pytest.importorskip("grafana_foundation_sdk", reason="Grafana's builder library needs Python 3.11")
    monkeypatch.syspath_prepend(str(COMPOSE / "grafana"))
    made = runpy.run_path(str(COMPOSE / "grafana" / "dashboards.py"))["made"]()
    assert made == {file.name: file.read_text() for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_panel_says_what_it_shows(file: Path) -> None:
    """Each panel has a title, a unit, a description and a query; untested ones and those for histograms are marked."""
    content = json.loads(file.read_text())
    assert file.stem == content["uid"]
    for panel in content["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        assert letters
        (source,) = {target["datasource"]["uid"] for target in panel["targets"]}
        assert source == panel["datasource"]["uid"]
        assert source in {"prometheus", "loki", "tempo"}
        assert (source == "tempo") == ("no test has run it" in panel["description"])
        assert source != "prometheus" or panel["fieldConfig"]["defaults"]["unit"]
        of_histograms = "$histogram" in json.dumps(panel["targets"])
        for needed in ("HISTOGRAM", 'distributions="histogram"'):
            assert of_histograms == (needed in panel["description"])
