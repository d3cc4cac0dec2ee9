"""The end of a pipeline is not a step, whoever ends it and whenever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from monitel_otlp.ledger.reading import read_runs

if TYPE_CHECKING:
    from pathlib import Path

    from exporters.otlp.tests.scripts import Run

#: An event handler that takes 0.5 s at the end of the run.
SLOW = """\
def wait(event):
    if event.name == "run.ended":
        time.sleep(0.5)
def train():
    monitel.register_event_handler(wait)
    begin = time.monotonic_ns()
    monitel.set_step(1)
    time.sleep(0.2)
    return time.monotonic_ns() - begin
"""
ENDS = {
    "with": 'with monitel_otlp.configure(spool_dir="spool"):\n    ns = train()\nprint(ns)\n',
    "shutdown": 'pipeline = monitel_otlp.configure(spool_dir="spool")\nns = train()\npipeline.shutdown()\nprint(ns)\n',
    "exit": 'monitel_otlp.configure(spool_dir="spool")\nprint(train())\n',
}


@pytest.mark.parametrize("end", ENDS)
def test_end_of_the_pipeline_counts_as_shutdown(train: Run, tmp_path: Path, end: str) -> None:
    """The 0.5 s of the handler are not productive."""
    ended = train(SLOW + ENDS[end], env={"MONITEL_RUN_EVENTS": "1"})
    ((run,), _) = read_runs(tmp_path / "spool")
    assert 500_000_000 <= run.activities["shutdown"]
    assert abs(run.activities["step"] - int(ended.stdout)) < 250_000_000  # not the 0.5 s
    assert run.elapsed_ns == sum(run.activities.values())
    assert {"startup", "step", "shutdown"} == {*run.activities}
