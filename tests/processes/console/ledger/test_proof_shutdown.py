"""The end of a pipeline is not a step, whoever ends it and whenever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from monitel_otlp.ledger.reading import read_runs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripts import Run

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
    assert abs(run.activities["step"] - int(ended.stdout)) < 400_000_000  # not the 0.5 s
    assert run.elapsed_ns == sum(run.activities.values())
    assert {"startup", "step", "shutdown"} == {*run.activities}


EXECUTOR = "from concurrent.futures import ThreadPoolExecutor; ThreadPoolExecutor(1).submit(time.sleep, 0.5)"
EXIT_FUNCTIONS = {
    "registered after configure": "atexit.register(time.sleep, 0.5)",
    "waiting for a thread": "threading.Thread(target=time.sleep, args=(0.5,)).start()",
    "waiting for an executor": EXECUTOR,
}


IN_THREAD = """\
monitel_otlp.configure(spool_dir="spool")
thread = threading.Thread(target=lambda: print(train()))
thread.start()
thread.join()
"""


@pytest.mark.parametrize("action", EXIT_FUNCTIONS)
def test_exit_functions_of_the_application_count_as_shutdown(train: Run, tmp_path: Path, action: str) -> None:
    """Everything after the last statement of the main thread is ``shutdown``."""
    script = SLOW.replace("0.5", "0") + ENDS["exit"] + EXIT_FUNCTIONS[action] + "\n"
    ended = train("import atexit, threading\n" + script)
    ((run,), _) = read_runs(tmp_path / "spool")
    assert 300_000_000 <= run.activities["shutdown"]  # a thread has slept for a moment before it
    assert abs(run.activities["step"] - int(ended.stdout)) < 400_000_000
    assert run.elapsed_ns == sum(run.activities.values())


def test_exit_functions_count_as_shutdown_if_another_thread_has_trained(train: Run, tmp_path: Path) -> None:
    """The training thread has ended, so nothing is a step any more."""
    script = SLOW.replace("0.5", "0") + IN_THREAD + EXIT_FUNCTIONS["registered after configure"] + "\n"
    train("import atexit, threading\n" + script)
    ((run,), _) = read_runs(tmp_path / "spool")
    assert 500_000_000 <= run.activities["shutdown"]


def test_thread_that_outlives_the_main_thread_still_trains(train: Run, tmp_path: Path) -> None:
    """The end of the main thread is not the end of the training, even before the first step."""
    for begin in ("0", "0.2"):
        script = f"""\
import threading
def train():
    time.sleep({begin})
    monitel.set_step(1)
    time.sleep(0.5)
monitel_otlp.configure(spool_dir="spool{begin}")
threading.Thread(target=train).start()
"""
        train(script)
        ((run,), _) = read_runs(tmp_path / f"spool{begin}")
        assert run.activities["step"] >= 500_000_000
        assert 0 < run.activities["shutdown"]
