"""A training script, the official Collector and Prometheus: asserted by what they have stored, not by what they say."""

import json
import os
import urllib.request
from pathlib import Path

from tests.integration.conftest import Loki, Prometheus
from tests.integration.training import check, check_events, train
from tests.support.receiver import Receiver
from tests.support.scripts import Run


def test_each_window_event_and_span_is_stored(
    collector: str, prometheus: Prometheus, loki: Loki, receiver: Receiver, tmp_path: Path
) -> None:
    """Six windows of an export interval, NaN among them, in a Prometheus that takes nothing out of order.

    Each event is in the span of its epoch, and launchers' variables are in the resource of series and events.
    """
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "RANK": "3", "WORLD_SIZE": "8"}
    run = train(tmp_path, env=endpoint)
    check(prometheus, run)
    assert f"exported {len(run.windows)} windows and numbers, 6 events" in run.stderr
    check_events(loki, run)
    records, spans = loki.records(), [span for span in receiver.spans() if span.name == "epoch"]
    kept = ("severity_number", "severity_text", "training_rank", "training_world_size", "trace_id", "span_id")
    severities = 2 * [("9", "INFO"), ("9", "INFO"), ("13", "WARN")]
    assert [
        (*severity, "3", "8", span.trace_id, span.span_id) for severity, span in zip(severities, spans, strict=True)
    ] == [tuple(each.attributes[name] for name in kept) for each in records]
    assert all(span.start_ns < each.time_ns < span.end_ns for span, each in zip(spans, records, strict=True))
    run_id = os.environ["TORCHELASTIC_RUN_ID"]
    selector = f'{{training_rank="3", training_world_size="8", training_run_id="{run_id}"}}'
    assert ["1"] == prometheus.values(f"count(train_loss_count_total * on (instance) target_info{selector})")


def test_the_collector_reads_what_cat_prints(
    collector: str, prometheus: Prometheus, loki: Loki, run: Run, tmp_path: Path
) -> None:
    """Each line, posted as it is, is a JSON request that the Collector takes and forwards."""
    trained = train(tmp_path)
    paths = {"resourceMetrics": "metrics", "resourceLogs": "logs", "resourceSpans": "traces"}
    for line in run("-m", "monitel", "cat", "spool").stdout.splitlines():
        (kind,) = json.loads(line)
        url, headers = f"{collector}/v1/{paths[kind]}", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, line.encode(), headers), timeout=10) as answer:
            assert (200, {"partialSuccess": {}}) == (answer.status, json.load(answer))
    check(prometheus, trained)
    check_events(loki, trained)
