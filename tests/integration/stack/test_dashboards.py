"""The dashboards: the results of each of their queries in a real Prometheus."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.stack.boards import board, nodes, settle, unknown_labels
from tests.integration.stack.filling import RATE, Store, filled, store
from tests.support.checks import wait_until
from tests.support.paths import EXAMPLES
from tests.support.scripts import started

BOARDS = ("overview", "time", "ranks", "waits", "pipeline")
DEMO = EXAMPLES / "train_char_model.py"

# Empty by right: where all is well, nothing has ended and nothing was started again; and what only GPUs have, or
# configure(system=True).
EMPTY = {
    *("Ranks whose loss is not finite", "Items dropped", "Dropped so far", "Firing", "Time spent on restarts"),
    *("Processes that have stopped in the time shown", "Memory of the processes"),
    *("Tokens per second", "Share of steps that were skipped", "Model FLOPs utilization"),
    *("CPUs that are busy, the ten busiest hosts", "CPUs that wait for disks, the ten highest hosts"),
    *("GPUs: time in which a kernel ran", "GPUs: memory in use", "Temperature, the ten hottest GPUs"),
}


@pytest.fixture(scope="module")
def prometheus(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A Prometheus that two services of one name fill: five ranks with faults in a namespace, and one rank without one.

    The first job is at its second attempt, and has a slow rank, one with a NaN, one that is killed, and one with events
    that are rejected.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    with store(backends, folder) as found:
        faulty = {
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{found.url}/api/v1/write",
            "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=vision,k8s.pod.name=pod-1",
        }
        lost = 'training_time_seconds_total{training_activity="step"} > 0.5'
        with found.training(folder / "job", "run-7", {0: ""}, faulty):
            wait_until(lambda: found.query(lost), "the first attempt makes no steps")
        ranks = {0: "", 1: "events", 2: "slow,late", 3: "nan", 4: ""}
        with (
            found.training(folder / "job", "run-7", ranks, {**faulty, "TORCHELASTIC_RESTART_COUNT": "1"}) as job,
            found.training(folder / "other", "run-7", {0: ""}),
        ):
            begun = "changes(step_time_mean_seconds[10m]) > 2"  # with several requests everything of a rank is there
            wait_until(lambda: len(found.query(begun)) == len(ranks) + 1, "not all ranks have begun")
            job.trigger()
            job.kill(4)
            yield found


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_finds_something(name: str, prometheus: Store) -> None:
    """With the choices of a board that was just opened, and with one namespace.

    No query groups or matches by a label that none of its series has, and no legend shows one. Services of one name
    are never added up: each aggregation keeps the namespace; ``topk`` and ``bottomk`` keep whole series.
    """
    settle(board(name, prometheus), set())
    opened = board(name, prometheus, "vision")
    settle(opened, set())
    for expression in opened.expressions():
        without_split = expression.replace(", split)", ")")  # the choice of the user
        assert set() == unknown_labels(prometheus, without_split), expression
        for node in nodes(prometheus.get("parse_query", query=expression)):
            if node.get("type") == "aggregation" and node["op"] not in {"topk", "bottomk"}:
                assert not node["without"]
                assert "service_namespace" in node["grouping"], expression
    for result in opened.results():
        shown = set(re.findall(r"\{\{(\w+)\}\}", result.target.get("legendFormat") or ""))
        assert all(any(label in series["metric"] for series in result.found) for label in shown), result


def test_alerts_group_by_labels_that_series_have(prometheus: Store) -> None:
    """No rule groups or matches by a label that none of its series has; each that groups keeps the service."""

    def unknown() -> set[str]:
        return {label for rule in rules for label in unknown_labels(prometheus, rule["query"])}

    rules = prometheus.rules()
    wait_until(lambda: not unknown(), "rules group by labels that no series has")
    for rule in rules:
        for node in nodes(prometheus.get("parse_query", query=rule["query"])):
            if node.get("type") == "aggregation" and not node["without"]:
                assert {"service_namespace", "service_name", "training_run_id"} <= set(node["grouping"]), rule["name"]


def test_stopped_processes_are_listed(prometheus: Store) -> None:
    """The killed rank and the rank of the first attempt have stopped; the longest silence of the others is short."""
    opened = board("ranks", prometheus, "vision")

    def stopped() -> set[tuple[str, str]]:
        (series,) = opened.shown("Processes that have stopped in the time shown")
        return {(each["metric"]["training_attempt"], each["metric"]["training_rank"]) for each in series}

    wait_until(lambda: {("0", "0"), ("1", "4")} == stopped(), "not the processes that have stopped are listed")
    (series,) = opened.shown("The longest silences")
    silences = {each["metric"]["training_rank"]: each["values"] for each in series}
    assert all(0 <= float(silences[rank][-1][1]) < 5 for rank in "0123")


def test_values_are_joined_with_their_steps(prometheus: Store) -> None:
    """In a panel by step, both queries return the same times and curves, and a value belongs to its step."""
    opened = board("overview", prometheus)

    def joined() -> bool:
        """Return True if each panel has points, and the learning rates of one process fit its steps."""
        tables: dict[str, list[dict[tuple[str, float], str]]] = {}
        for result in opened.results():
            if result.panel["type"] == "xychart":
                points = {(each["metric"]["curve"], at): value for each in result.found for at, value in each["values"]}
                tables.setdefault(filled(result.panel["title"], result.choices), []).append(points)
        rates = tables["learning_rate by step"]
        found = [
            (float(step), float(rates[1][point]) / RATE)
            for point, step in rates[0].items()
            if point[0].startswith(" run-7 ") and point in rates[1]
        ]
        return (
            all(steps and steps.keys() == values.keys() for steps, values in tables.values())
            and max(step for step, _ in found) > 100
            and all(abs(step - belongs) < 60 for step, belongs in found)  # two seconds
        )

    wait_until(joined, "steps and values do not fit")


def test_all_samples_are_shown(prometheus: Store) -> None:
    """One rank of five takes three times as long: p99 is its steps, and the heat map, one series, has all of them."""
    opened = board("overview", prometheus, "vision")
    legends = [each["legendFormat"].split()[-1] for each in opened.targets("$histogram, percentiles")]
    assert ["p99", "p90", "p50"] == legends

    def shown() -> bool:
        """Return True if the newest percentiles differ, and the newest column has samples of both kinds of ranks."""
        found = opened.shown("$histogram, percentiles")
        (columns,) = opened.shown("$histogram, heat map")
        if not columns or not all(found):
            return False
        p99, p90, p50 = (float(each[0]["values"][-1][1]) for each in found)
        (column,) = columns
        samples = [(float(low), float(count)) for _, low, _, count in column["histograms"][-1][1]["buckets"]]
        quick = sum(count for low, count in samples if low < 0.08)
        slow = sum(count for low, count in samples if low >= 0.08)
        return 0.025 < p50 <= p90 <= p99 and p99 > 2 * p50 and quick > slow > 0

    wait_until(shown, "neither the slow rank's steps nor the others' are shown")


def test_usual_names_are_chosen(prometheus: Store) -> None:
    chosen = board("overview", prometheus).variables()
    usual = ("loss_mean", "step_time_mean_seconds", "gradient_norm_mean")
    assert usual == tuple(chosen[name] for name in ("loss", "step", "gradient"))


def test_the_demo_is_shown(backends: Path, tmp_path: Path) -> None:
    """A process without a launcher, a run, a rank and stages: all that is there is on the boards."""
    with store(backends, tmp_path) as prometheus:
        ranks = board("ranks", prometheus)
        of_stages = {each["title"] for each in ranks.content["panels"] if "training:" in json.dumps(each)}
        own = {**prometheus.variables, "OTEL_METRIC_EXPORT_INTERVAL": "250", "MONITEL_DISTRIBUTIONS": "both"}
        with started(tmp_path, DEMO, "--seconds=60", "--hidden=32", env=own, fresh=True):
            for name in BOARDS:
                settle(board(name, prometheus), EMPTY | of_stages)
