"""A training script, the official Collector and Prometheus: asserted by what they have stored, not by what they say."""

import json
import os
import time
import urllib.request
from pathlib import Path

from tests.integration.conftest import Loki, Prometheus, Python, Stack
from tests.integration.training import check, check_events, train

from monitel.blackbox.discovery import find_spools


def test_every_window_is_stored_at_its_own_time(
    collector: str, prometheus: Prometheus, loki: Loki, tmp_path: Path
) -> None:
    """Six windows of an export interval, NaN among them, in a Prometheus that takes nothing out of order."""
    run = train(tmp_path, environment={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector})
    check(prometheus, run)
    assert f"exported {len(run.windows)} windows and numbers, 6 events" in run.stderr
    check_events(loki, run)
    records = loki.records()
    severities = [(each.attributes["severity_number"], each.attributes["severity_text"]) for each in records]
    assert 2 * [("9", "INFO"), ("9", "INFO"), ("13", "WARN")] == severities
    assert run.windows[0]["start_ns"] < records[0].time_ns < records[-1].time_ns < time.time_ns()
    assert ["1"] == prometheus.values('count(step_time_mean_seconds{split="train"})')


def test_all_three_signals(stack: Stack, loki: Loki, tmp_path: Path) -> None:
    """Each event is in the span of its epoch, and launchers' variables are on every series and every event."""
    environment = {**stack.environment, "RANK": "3", "WORLD_SIZE": "8"}
    run = train(tmp_path, environment=environment)
    check(stack.prometheus, run)
    spans = [span for span in stack.receiver.spans() if span.name == "epoch"]
    check_events(loki, run)
    records = loki.records()
    assert [(span.trace_id, span.span_id) for span in spans] == [
        (each.attributes["trace_id"], each.attributes["span_id"]) for each in records
    ]
    assert all(span.start_ns < each.time_ns < span.end_ns for span, each in zip(spans, records, strict=True))
    assert {("3", "8")} == {tuple(each.attributes[f"training_{k}"] for k in ("rank", "world_size")) for each in records}
    run_id = environment["TORCHELASTIC_RUN_ID"]
    selector = f'{{service_name="train", training_rank="3", training_world_size="8", training_run_id="{run_id}"}}'
    assert [str(run.steps)] == stack.prometheus.values(f"sum(train_loss_count_total{selector})")


def test_an_offline_run_is_replayed(
    collector: str, prometheus: Prometheus, loki: Loki, python: Python, tmp_path: Path
) -> None:
    """Afterwards all of it is stored at the times when it happened, and the spool is gone."""
    run = train(tmp_path, environment=os.environ)
    assert "delivered" in python("-m", "monitel", "replay", "spool", "--endpoint", collector).stdout
    check(prometheus, run)
    check_events(loki, run)
    assert [] == find_spools(tmp_path / "spool").folders  # only the ledger of the run is left


def test_the_collector_reads_what_cat_prints(
    collector: str, prometheus: Prometheus, loki: Loki, python: Python, tmp_path: Path
) -> None:
    """Each line, posted as it is, is a JSON request that the Collector takes and forwards."""
    run = train(tmp_path, environment=os.environ)
    paths = {"resourceMetrics": "metrics", "resourceLogs": "logs", "resourceSpans": "traces"}
    for line in python("-m", "monitel", "cat", "spool").stdout.splitlines():
        (kind,) = json.loads(line)
        url, headers = f"{collector}/v1/{paths[kind]}", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, line.encode(), headers), timeout=10) as answer:
            assert (200, {"partialSuccess": {}}) == (answer.status, json.load(answer))
    check(prometheus, run)
    check_events(loki, run)
