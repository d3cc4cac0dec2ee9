"""The times of activities by replay."""

import pytest
from tests.support.receiver import Receiver
from tests.support.scripts import Run
from tests.support.series import increase

TIME = "training.time"
WORK = """
for step in range(3):
    with monitel.activity("data"):
        time.sleep(0.01)
    monitel.set_step(step)
"""


def test_replay_has_all_time_of_a_process_without_a_backend(receiver: Receiver, train: Run, run: Run) -> None:
    """The points are sent as they were stored, with the start of the process."""
    ended = train(
        'pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=3600.0)\n'
        f"{WORK}print(monitel.ledger().elapsed_ns / 1e9)\n"
    )
    run("-m", "monitel", "replay", "spool", "--endpoint", receiver.url)
    found = {str(point.attributes["training.activity"]): point.value for point in receiver.points(TIME)}
    assert {"startup", "data", "step", "shutdown"} == set(found)
    assert float(ended.stdout) <= sum(found.values()) + 1e-6
    assert sum(found.values()) == pytest.approx(increase(receiver, TIME))
