"""Events that Loki refuses, and old events that it accepts."""

import json
from pathlib import Path

import pytest
from tests.integration.conftest import Loki, Python, Stack

REFUSED = """\
import json, monitel, monitel_otlp
pipeline = monitel_otlp.configure(service_name="train", export_interval=3600.0, spool_dir="spool")
for number in range(40):
    monitel.emit("good", number=number)
    if number == 10:
        monitel.emit("large", text="x" * 70_000)
    if number == 30:
        monitel.config({"text": "x" * 270_000})
        monitel.emit("wide", **{f"key.{each}": each for each in range(128)})
pipeline.shutdown()
account = pipeline.account()["logs"]
print(json.dumps([account.recorded, account.delivered, dict(account.dropped)]))
"""


def test_refused_events_are_counted_and_the_others_are_stored(
    stack: Stack, loki: Loki, python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two events beyond Loki's limits among 43: only these two are dropped, and each is set aside with its reason."""
    from tests.support.spools import rejected_in

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", stack.endpoint)
    (tmp_path / "refused.py").write_text(REFUSED)
    done = python("refused.py")
    assert [43, 41, {"rejected": 2}] == json.loads(done.stdout)
    records = loki.records()
    good = [each.attributes["number"] for each in records if each.line == "good"]
    assert [str(number) for number in range(40)] == good
    (wide,) = (each for each in records if each.line != "good")
    assert {str(number) for number in range(128)} == {wide.attributes[f"key_{number}"] for number in range(128)}
    for reason in ("structured metadata too large", "max entry size"):
        (line,) = (each for each in done.stderr.splitlines() if reason in each.lower())
        assert "a request was rejected" in line
    names = [
        record.event_name
        for each in rejected_in(tmp_path)
        for record in each.resource_logs[0].scope_logs[0].log_records
    ]
    assert {"large", "run.config"} <= set(names)  # one or two stored ones may be beside them


OLD = """\
import sys, time

age_ns = int(float(sys.argv[1]) * 3600 * 10**9)
now_ns = time.time_ns
time.time_ns = lambda: now_ns() - age_ns  # before anything takes it from there

import json, monitel, monitel_otlp
from datetime import datetime

times = []
with monitel_otlp.configure(service_name="train", export_interval=3600.0, spool_dir="spool"):
    for number in range(3):
        at_us = time.time_ns() // 1000
        event = monitel.Event("old", datetime.fromtimestamp(at_us / 10**6), {"number": number})
        monitel.log_event(event)
        times.append(at_us * 1000)
print(json.dumps(times))
"""


def test_old_events_are_stored_with_their_own_times(loki: Loki, python: Python, tmp_path: Path) -> None:
    """A replay after newer events of the same run: stored if they are up to 24 hours older, else set aside."""
    (tmp_path / "train.py").write_text(OLD)
    times = {}
    for hours in (0, 23, 26):
        times[hours] = json.loads(python("train.py", hours).stdout)
        command = ("-m", "monitel", "replay", "spool", "--endpoint", f"{loki.url}/otlp")
        printed = python(*command, returncode=int(hours > 24)).stdout
        assert ("delivered 3 items" if hours < 24 else "set aside in the spool: 3") in printed
    expected = [*times[23], *times[0]]
    assert expected == [record.time_ns for record in loki.records(hours=30)]
