"""The alert rules of the stack: each fires on its own fault, and none on a healthy run or its end."""

import re
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.integration.stack.filling import store
from tests.support.checks import wait_until
from tests.support.receiver import Receiver

# For each run the faults of its ranks, and what must fire. The one event of "rejected" is dropped at once: a counter
# that is there from then on, and never rises.
RUNS = {
    "healthy": (["", "", ""], set()),
    "late": (["", "", "late"], {"TrainingRankLate"}),
    "nan": (["nan"], {"TrainingLossNotFinite", "TrainingStatNotFinite"}),
    "hang": (["hang"], {"TrainingWithoutSteps"}),
    "silent": (["", ""], {"TrainingRankSilent"}),
    "starved": (["", "starved"], {"TrainingGoodputLow"}),
    "rejected": (["event"], {"TelemetryDropped"}),
    "offline": (["events"], {"TelemetryNotDelivered"}),
}


def test_each_fault_fires_its_alert_and_no_other(backends: Path, tmp_path: Path, receiver: Receiver) -> None:
    """Runs with a fault each and a healthy one, at the same time, to their ends and until they are forgotten."""
    with store(backends, tmp_path) as prometheus, ExitStack() as ranks:

        def fired() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {run: set() for run in RUNS}
            for each in prometheus.query('count_over_time(ALERTS{alertstate="firing"}[10m])'):
                found[each["metric"]["training_run_id"]].add(each["metric"]["alertname"])
            return found

        jobs = {}
        for run, (faults, _) in RUNS.items():
            logs = f"{prometheus.url}/api/v1/write" if run == "rejected" else f"{receiver.url}/v1/logs"
            variables = {"OTEL_RESOURCE_ATTRIBUTES": "service.namespace=vision"}
            if run != "offline":
                variables["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"] = logs
            job = prometheus.training(tmp_path / run, run, dict(enumerate(faults)), variables)
            jobs[run] = ranks.enter_context(job)
        number = sum(len(faults) for faults, _ in RUNS.values())
        wait_until(lambda: len(prometheus.query("training_steps_total")) == number, "not all ranks have begun")
        for run in ("nan", "hang"):
            jobs[run].trigger()
        jobs["silent"].kill(1)
        expected = {run: alerts for run, (_, alerts) in RUNS.items()}
        with suppress(AssertionError):
            wait_until(lambda: all(expected[run] <= alerts for run, alerts in fired().items()), "some have not fired")
        assert {} == {run: expected[run] - alerts for run, alerts in fired().items() if expected[run] - alerts}
        summaries = {
            each["labels"]["alertname"]: each["annotations"]["summary"] for each in prometheus.get("alerts")["alerts"]
        }
        ranks.close()
        wait_until(lambda: not prometheus.query("monitel_queue_size"), "the runs are still there")
        wait_until(lambda: not prometheus.query("ALERTS"), "alerts do not end")
        assert expected == fired()
        assert re.fullmatch(
            r"vision/train starved: steps take \d+ % of the time of rank 1 on \S+, data takes \d+ %",
            summaries["TrainingGoodputLow"],
        )
        assert re.fullmatch(
            r"vision/train late: rank 2 of group all on \S+ is late in data by 60.0 ms per step, 63 % of the step",
            summaries["TrainingRankLate"],
        )
        losses = prometheus.query('count_over_time(ALERTS{alertname="TrainingLossNotFinite"}[10m])')
        assert {"loss_mean", "train_loss"} == {each["metric"]["metric"] for each in losses}
        labels = [each["metric"] for each in prometheus.query('count_over_time(ALERTS{alertstate="firing"}[10m])')]
        assert {("vision", "train")} == {(each["service_namespace"], each["service_name"]) for each in labels}
        assert [] == [rule for rule in prometheus.rules() if rule["health"] != "ok"]
