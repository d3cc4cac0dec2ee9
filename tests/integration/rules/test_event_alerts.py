"""The alert rules of Loki: each fires on its own events, names their run and rank, and ends; others stay silent."""

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.conftest import Loki
from tests.integration.services import Program, launched, start_python
from tests.support.checks import wait_until

JOB = """\
import logging, sys, threading, monitel, monitel_otlp
with monitel_otlp.configure(service_name="alerts", export_interval=0.2, spool_dir="spool", logging_level="INFO"):
    logging.getLogger("library").error("a record of logging, not an event")
    monitel.emit("checkpoint", severity=monitel.Severity.WARN)
    for word in sys.argv[1:]:
        if word == "nan":
            monitel.emit("loss.nan", severity=monitel.Severity.ERROR)
        elif word == "strange":
            monitel.emit("own.rank", {"training.rank": "last"}, severity=monitel.Severity.ERROR)
        elif word == "fail":
            raise ValueError("a bad batch")
        elif word == "wait":
            print("waiting", flush=True)
            threading.Event().wait(60)
        elif word == "interrupt":
            raise KeyboardInterrupt
"""

# For each run the fault of each rank, and the alerts that must fire: name, event, rank in the summary, severity. The
# attributes of a strange run have the names of those that the rules read. The first one waits for a signal.
RUNS = {
    "preempted": ({"1": "wait"}, {("TrainingRunPreempted", "", ": ended by SIGTERM on rank 1", "warning")}),
    "healthy": ({"0": "", "1": ""}, set()),
    "interrupted": ({"0": "interrupt"}, set()),
    "nan": ({"3": "nan", "5": "nan"}, {("TrainingEventError", "loss.nan", ": loss.nan on rank 3", "critical")}),
    "strange": ({"": "strange"}, {("TrainingEventError", "own.rank", ": own.rank", "critical")}),
    "": ({"7": "nan"}, {("TrainingEventError", "loss.nan", ": loss.nan on rank 7", "critical")}),
    "single": ({"": "nan"}, {("TrainingEventError", "loss.nan", ": loss.nan", "critical")}),
    "failed": ({"0": "", "2": "fail"}, {("TrainingRunFailed", "", ": failed on rank 2", "critical")}),
}


@pytest.fixture(scope="module")
def loki(loki_server: tuple[str, Program]) -> Loki:
    return Loki(loki_server[0])


def test_each_event_fires_its_alert_and_no_other(loki: Loki, tmp_path: Path) -> None:
    """Runs with a fault each and healthy ones, at the same time, until their alerts end; each says what to do."""
    fired: dict[str, set[tuple[str, str, str, str]]] = {run: set() for run in RUNS}

    def look() -> bool:
        """Note the alerts that fire now; return True if there are any."""
        alerts = [each for each in loki.alerts() if each["labels"].get("service_name") == "alerts"]
        for each in alerts:
            labels = each["labels"]
            run = labels.get("training_run_id", "")
            summary = each["annotations"]["summary"].removeprefix(f"space/alerts {run}".rstrip())
            board = "/d/monitel-events?var-namespace=space&var-service=alerts" + (f"&var-run={run}" if run else "")
            assert board == each["annotations"]["dashboard"]
            fired[run].add((labels["alertname"], labels.get("event", ""), summary, labels["severity"]))
        return bool(alerts)

    expected = {run: alerts for run, (_, alerts) in RUNS.items()}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(rank_of(run, rank, fault, loki.url, tmp_path))
            for run, (faults, _) in RUNS.items()
            for rank, fault in faults.items()
        ]
        for each in ranks:
            stack.callback(each.kill)

        def all_fired() -> bool:
            look()  # from the start on: an alert fires for 5 s, and a rank may end later than that
            return all(expected[run] <= alerts for run, alerts in fired.items()) and all(
                each.poll() is not None for each in ranks
            )

        wait_until(all_fired, "not all alerts have fired, or not all ranks have ended")
    wait_until(lambda: not look(), "alerts do not end")
    # The event of rank 5 may arrive first, or be the newer one.
    fired["nan"].discard(("TrainingEventError", "loss.nan", ": loss.nan on rank 5", "critical"))
    assert expected == fired
    alerts = loki.rules()
    assert {name for _, expected in RUNS.values() for name, *_ in expected} == {rule["name"] for rule in alerts}
    for rule in alerts:
        assert ("ok", True) == (rule["health"], rule["labels"]["severity"] in {"warning", "critical"})
        assert {"summary", "description", "dashboard"} == set(rule["annotations"])


def rank_of(run: str, rank: str, fault: str, url: str, folder: Path) -> subprocess.Popen[str]:
    """Start a rank; one that is to be preempted gets SIGTERM. Its output is a line at most."""
    own = {"OTEL_RESOURCE_ATTRIBUTES": "service.namespace=space"}
    environment = launched(run, rank, 8, OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=f"{url}/otlp/v1/logs", **own)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = start_python(folder, "-c", JOB, fault, env=environment, **streams)
    if fault == "wait":
        assert process.stdout is not None
        assert "waiting" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
    return process
