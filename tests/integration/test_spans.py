"""Spans through the official Collector: complete, one trace per step, even after an outage of the Collector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.conftest import DEADLINE
from tests.integration.services import Program, eventually, free_port
from tests.integration.spans import expected, ranks, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.conftest import Collector
    from tests.integration.spans import Ranks, Span
    from tests.support.receiver import Receiver

RANKS, STEPS = 4, 5

JOB = """\
import json, os, sys
import monitel, monitel_otlp
from monitel.profiler import ranges, record_function

url, steps = sys.argv[1], int(sys.argv[2])
received = []
pipeline = monitel_otlp.configure(endpoint=url, spool_dir="spool", step_traces=True, service_name="job")
with ranges.listen(ended=received.append):
    for step in range(steps):
        monitel.set_step(step)
        with record_function("forward", {"batch": 32, "text": "straße"}):
            with record_function("attention"):
                monitel.emit("attention", step=step)
        with record_function("all_reduce"):
            pass
pipeline.shutdown(float(sys.argv[3]))
print(json.dumps([[each.name, each.step, each.start_ns, each.end_ns] for each in received]))
"""


def run_job(url: str, folder: Path, timeout: float) -> dict[int, list[Any]]:
    """Run all ranks at once; return the ranges that each rank's listener received."""
    script = folder / "job.py"
    script.write_text(JOB, encoding="utf-8")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), url, str(STEPS), str(timeout)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": f"{folder}"},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    received = {}
    for rank, process in enumerate(ranks):
        stdout, stderr = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, stderr
        received[rank] = json.loads(stdout)
    return received


def check(receiver: Receiver, received: dict[int, list[Any]]) -> None:
    """Each range of each rank is a span at its own time, and each step one trace with a subtree a rank."""
    spans = receiver.spans()
    assert STEPS == len({span.trace_id for span in spans})
    for rank, own in received.items():
        found = [
            [span.name, span.attributes["training.step"], span.start_ns, span.end_ns]
            for span in spans
            if span.resource["training.rank"] == rank and not span.name.startswith("training.")
        ]
        assert sorted(own) == sorted(found)
    for trace_id in {span.trace_id for span in spans}:
        ids = {span.span_id: span for span in spans if span.trace_id == trace_id}
        assert 1 + RANKS * 4 == len(ids)
        (root,) = [span for span in ids.values() if not span.parent_id]
        assert "training.step" == root.name
        tops = [span for span in ids.values() if span.parent_id == root.span_id]
        assert set(range(RANKS)) == {span.attributes["training.rank"] for span in tops}
        for top in tops:
            rank = top.attributes["training.rank"]
            below = [each for each in ids.values() if each.resource["training.rank"] == rank and each.parent_id]
            edges = Counter((each.name, ids[each.parent_id].name) for each in below)
            expected = {("forward", "training.rank"), ("all_reduce", "training.rank"), ("attention", "forward")}
            assert dict.fromkeys([*expected, ("training.rank", "training.step")], 1) == edges
    logged = sorted(record.span_id for record in receiver.records("attention"))
    assert sorted(span.span_id for span in spans if span.name == "attention") == logged
    assert {(32, "straße")} == {
        (span.attributes["batch"], span.attributes["text"]) for span in spans if span.name == "forward"
    }


def test_four_ranks_show_one_trace_a_step_at_the_backend(
    collector: Collector, receiver: Receiver, tmp_path: Path
) -> None:
    """Spans that the Collector forwards are decoded: none is missing, none is there twice."""
    with collector.run():
        received = run_job(collector.url, tmp_path, 20.0)
    check(receiver, received)
    assert not list(tmp_path.rglob("*.spool"))


def test_an_outage_of_the_collector_loses_no_span(
    collector: Collector, receiver: Receiver, tmp_path: Path, python: Callable[..., Any]
) -> None:
    """Without a Collector for the whole job, all spans are on disk, and a replay gives the same traces."""
    received = run_job(collector.url, tmp_path, 2.0)
    assert [] == receiver.spans()
    with collector.run():
        for folder in {path.parent for path in (tmp_path / "spool").rglob("*.spool")}:
            python("-m", "monitel_otlp", "replay", folder, "--endpoint", collector.url)
    check(receiver, received)


FILE = """\
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}}
exporters: {file: {path: %s, append: true, flush_interval: 10ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [file]}}
"""


@pytest.fixture
def filing(backends: Path, tmp_path: Path) -> Iterator[tuple[Program, str, Path]]:
    """A Collector that appends the spans to a file: the program, its URL, and the file."""
    program_path = backends / "otelcol-contrib"
    if not program_path.exists():
        pytest.skip(f"no Collector with a file exporter: put the program otelcol-contrib into {backends}")
    port, file = free_port(), tmp_path / "spans.jsonl"
    config = tmp_path / "filing.yaml"
    config.write_text(FILE % (port, file))
    url = f"http://127.0.0.1:{port}"
    program = Program([str(program_path), f"--config={config}"], tmp_path / "filing.log", f"{url}/")
    try:
        program.start()
        yield program, url, file
    finally:
        program.stop()


def check_file(program: Program, file: Path, job: Ranks) -> dict[str, Span]:
    """Wait for the end of the ranks and of the Collector; check that its file has each span once; return them by id."""
    truth = expected(job.run, job.notes())
    program.stop()
    found = read_file(file)
    assert len(truth) == len(found)
    spans = {span.span_id: span for span in found}
    assert truth == spans
    return spans


def test_spans_in_the_file_of_a_collector_are_those_that_the_ranks_noted(
    filing: tuple[Program, str, Path], tmp_path: Path
) -> None:
    """Each span once, with its ids, parent, times, status, attributes, links and events; inside its parent."""
    program, url, file = filing
    with ranks(url, tmp_path, [5]) as job:
        job.wait_until_recorded()
        job.go_on()
        spans = check_file(program, file, job)
    steps, of_application = 5 + 1, 1
    assert steps + of_application == len({span.trace_id for span in spans.values()})
    for span in spans.values():
        if span.parent_id:
            parent = spans[span.parent_id]
            assert parent.trace_id == span.trace_id
            assert parent.rank in {span.rank, 0}
            same_clock = parent.rank == span.rank
            assert not same_clock or parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns


def test_collector_that_is_killed_in_mid_run_loses_no_span(filing: tuple[Program, str, Path], tmp_path: Path) -> None:
    """Requests hang when it is killed, and are sent again when it is back: each span is in the file once."""
    program, url, file = filing
    with ranks(url, tmp_path, [3, 3, 3]) as job:
        job.wait_until_recorded()
        assert ["True", "True"] == job.flush(DEADLINE)
        of_ranges, of_steps = 2 * (3 * 7 + 1), 2 * (2 + 1)  # the spans of the last step follow when it is over
        eventually(lambda: len(read_file(file)) == of_ranges + of_steps, "the Collector does not write its file")
        program.pause()
        job.go_on()
        job.wait_until_recorded()
        assert ["False", "False"] == job.flush(0.5)
        program.kill()
        job.go_on()
        job.wait_until_recorded()
        program.start()
        job.go_on()
        check_file(program, file, job)
