"""Counters and the times of activities: in forked children, and by replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import CONFIGURE
from tests.support.series import increase

if TYPE_CHECKING:
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

TIME = "training.time"
WORK = """
for step in range(3):
    with monitel.activity("data"):
        time.sleep(0.01)
    monitel.set_step(step)
"""


@pytest.mark.parametrize("steps", [False, True])
def test_forked_child_has_a_ledger_from_its_first_step_on(receiver: Receiver, train: Run, *, steps: bool) -> None:
    """Activities of other children are not part of the training; the parent's time is not in the child's."""
    child = f"""\
pipeline.force_flush()
if (pid := os.fork()) == 0:
    with monitel.activity("evaluation"): pass
    if {steps}: monitel.set_step(9)
    with monitel.activity("checkpoint.save"): pass
    monitel.emit("child")
    sys.exit()
os.waitpid(pid, 0)
"""
    train(CONFIGURE + WORK + child, receiver.url)
    points = receiver.points(TIME)
    parent, *others = dict.fromkeys(point.resource["process.pid"] for point in points)
    of_child = [point for point in points if point.resource["process.pid"] in others]
    assert "child" in receiver.record_names()
    expected = {"startup", "step", "checkpoint.save", "shutdown"} if steps else set()
    assert expected == {point.attributes["training.activity"] for point in of_child}
    starts = {point.start_ns for point in points if point.resource["process.pid"] == parent}
    assert all(point.start_ns > max(starts) for point in of_child)


def test_replay_has_all_time_of_a_process_without_a_backend(receiver: Receiver, train: Run, run: Run) -> None:
    """The points are sent as they were stored, with the start of the process."""
    ended = train(
        'pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=3600.0)\n'
        f"{WORK}print(monitel.ledger().elapsed_ns / 1e9)\n"
    )
    run("-m", "monitel_otlp", "replay", "spool", "--endpoint", receiver.url)
    found = {str(point.attributes["training.activity"]): point.value for point in receiver.points(TIME)}
    assert {"startup", "data", "step", "shutdown"} == set(found)
    assert float(ended.stdout) <= sum(found.values()) + 1e-6
    assert sum(found.values()) == pytest.approx(increase(receiver, TIME))
