"""Spans through the official Collector into a file: complete, one trace per step, even if the Collector is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import DEADLINE
from tests.integration.services import Program, eventually, free_port
from tests.integration.spans import Ranks, Span, expected, ranks, read_file

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
    with program:
        yield program, url, file


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
        of_ranges, of_steps = 2 * 3 * 7, 2 * (2 + 1)  # the spans of the last step follow when it is over
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
