"""The end of a pipeline and of a process is not a step, whoever ends it and whenever."""

import pytest
from tests.processes.promises.recorded_runs import Commands
from tests.support.scripts import Run

#: An event handler that takes 0.5 s at the end of the run.
SLOW = """\
import atexit, threading
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
CONFIGURE = 'monitel_otlp.configure(spool_dir="spool", resource_attributes={"training.run.id": "run-7"})'
ENDS = {
    "with": f"with {CONFIGURE}:\n    ns = train()\nprint(ns)\n",
    "exit": f"{CONFIGURE}\nprint(train())\n",
    "exit function": f"{CONFIGURE}\natexit.register(time.sleep, 0.5)\nprint(train())\n",
    "waiting for a thread": f"{CONFIGURE}\nprint(train())\nthreading.Thread(target=time.sleep, args=(0.5,)).start()\n",
    "another thread has trained": (
        f"{CONFIGURE}\nthread = threading.Thread(target=lambda: print(train()))\nthread.start()\nthread.join()\n"
        "atexit.register(time.sleep, 0.5)\n"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_everything_after_the_training_is_shutdown(train: Run, commands: Commands, end: str) -> None:
    """The handler of the last event, waiting for threads, and the functions of the exit are not productive."""
    events = "1" if end in {"with", "exit"} else "0"
    ended = train(SLOW + ENDS[end], env={"MONITEL_RUN_EVENTS": events})
    activities = commands.run_of("run-7")["activities"]
    assert {"startup", "step", "shutdown"} == {*activities}
    assert activities["shutdown"] >= (0.3 if end == "waiting for a thread" else 0.5)  # it has slept for a moment before
    assert activities["step"] - int(ended.stdout) / 1e9 < 0.5 + activities["shutdown"]
    assert activities["step"] >= 0.2


def test_thread_that_outlives_the_main_thread_still_trains(train: Run, commands: Commands) -> None:
    """The end of the main thread is not the end of the training."""
    script = "def train():\n    monitel.set_step(1)\n    time.sleep(0.5)\n"
    train("import threading\n" + script + f"{CONFIGURE}\nthreading.Thread(target=train).start()\n")
    activities = commands.run_of("run-7")["activities"]
    assert (True, True) == (activities["step"] >= 0.5, "shutdown" in activities)
