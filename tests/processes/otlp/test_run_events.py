"""run.started and run.ended as log records: the status of each way in which a process ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import CONFIGURE, READY

import monitel_otlp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run events are off in other tests."""
    monkeypatch.setenv("MONITEL_RUN_EVENTS", "1")


def statuses(receiver: Receiver) -> list[str]:
    """Return the statuses of the ended runs, each of which must have started."""
    ended = [record.attributes["run.status"] for record in receiver.records("run.ended")]
    assert len(ended) == len(receiver.records("run.started"))
    return ended


HANDLING = "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    sys.exit(1)\n"
CATCHING = "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass\n"
BLOCK = CONFIGURE.replace("pipeline = ", "with ").replace(")\n", "):\n    ")
IN_THREAD = "import threading\nthread = threading.Thread(target=sys.exit, args=[3])\nthread.start()\nthread.join()\n"
INTERACTIVE = "sys.ps1 = '>>> '\n"


@pytest.mark.parametrize(
    ("script", "status", "expected"),
    [
        ("", 0, "completed"),
        ("sys.exit()\n", 0, "completed"),
        ("sys.exit(0)\n", 0, "completed"),
        ("sys.exit(3)\n", 3, "failed"),
        ("sys.exit('no data')\n", 1, "failed"),
        ("sys.exit(['no data'])\n", 1, "failed"),
        (CATCHING, 0, "completed"),
        (CATCHING + "sys.exit(3)\n", 3, "failed"),
        (IN_THREAD, 0, "completed"),
        ("raise ValueError\n", 1, "failed"),
        ("raise KeyboardInterrupt\n", -2, "interrupted"),
        (HANDLING, 1, "interrupted"),
        (CATCHING + HANDLING, 1, "interrupted"),
        (INTERACTIVE + "raise ValueError\n", 1, "completed"),
        ("pipeline.shutdown()\nraise ValueError\n", 1, "completed"),
        ("try:\n    1 / 0\nfinally:\n    pipeline.shutdown()\n", 1, "failed"),
    ],
)
def test_status_is_that_of_the_exit(receiver: Receiver, train: Run, script: str, status: int, expected: str) -> None:
    """Codes of sys.exit(), uncaught exceptions, and exceptions that are being handled during a shutdown."""
    train(CONFIGURE + script, receiver.url, returncode=status)
    assert [expected] == statuses(receiver)


@pytest.mark.parametrize(
    ("script", "status", "expected"),
    [
        ("pass\n", 0, "completed"),
        ("raise ValueError\n", 1, "failed"),
        ("raise KeyboardInterrupt\n", -2, "interrupted"),
        ("sys.exit(0)\n", 0, "completed"),
        ("raise SystemExit(3)\n", 3, "failed"),
        (HANDLING.replace("\n", "\n    ") + "pass\n", 1, "interrupted"),
    ],
)
def test_status_is_that_of_the_block(receiver: Receiver, train: Run, script: str, status: int, expected: str) -> None:
    """The exception that leaves ``with configure()`` decides."""
    train(BLOCK + script, receiver.url, returncode=status)
    assert [expected] == statuses(receiver)


def test_block_inside_an_exception_handler_can_complete(receiver: Receiver, train: Run) -> None:
    """An exception that was handled before the block does not fail the run."""
    indented = "        ".join((BLOCK + "pass\n").splitlines(keepends=True))
    train("try:\n    1 / 0\nexcept ZeroDivisionError:\n        " + indented, receiver.url)
    assert ["completed"] == statuses(receiver)


def test_sigterm_preempts(receiver: Receiver, terminate: Terminate) -> None:
    """The event is delivered with everything else."""
    terminate("import signal\n" + CONFIGURE + READY + "signal.pause()\n", receiver.url)
    assert ["preempted"] == statuses(receiver)


def test_sigterm_that_the_program_handles_preempts(receiver: Receiver, terminate: Terminate) -> None:
    """A framework that calls monitel's handler, and exits by itself, is preempted as well."""
    script = (
        "import signal\n" + CONFIGURE + "previous = signal.getsignal(signal.SIGTERM)\n"
        "def handle(*arguments):\n    previous(*arguments)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, handle)\n" + READY + "while True:\n    signal.pause()\n"
    )
    terminate(script, receiver.url, status=0)
    assert ["preempted"] == statuses(receiver)


def test_second_pipeline_is_a_second_run(receiver: Receiver, train: Run) -> None:
    """As in a notebook."""
    train(CONFIGURE + CONFIGURE, receiver.url)
    assert ["completed", "completed"] == statuses(receiver)


def test_events_describe_the_run(receiver: Receiver, train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command without secrets, host, ranks, versions; duration and step."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    train(CONFIGURE + "monitel.set_step(7)\n", receiver.url, "--lr", "0.1", "--hf-token", "abcdefgh")
    (began,), (ended,) = receiver.records("run.started"), receiver.records("run.ended")
    assert began.attributes["run.command"].endswith("--lr 0.1 --hf-token '***'")
    assert sys.version.split()[0] == began.attributes["run.version.python"]
    assert (4, True) == (began.attributes["run.world_size"], "host.name" in began.attributes)
    assert 0 < ended.attributes["run.duration"] < 60
    assert 7 == ended.attributes["run.step"]


@pytest.mark.parametrize("configure", [CONFIGURE, CONFIGURE.replace(")", ", run_events=True)")])
def test_forked_child_has_no_run(receiver: Receiver, train: Run, configure: str) -> None:
    """Its exit does not end the run of its parent, even if it records something."""
    script = "if os.fork() == 0:\n    monitel.emit('child')\n    sys.exit(3)\nos.wait()\n"
    train(configure + script, receiver.url)
    assert (["completed"], 1) == (statuses(receiver), len(receiver.records("child")))


def test_forked_child_with_a_pipeline_has_a_run(receiver: Receiver, train: Run) -> None:
    """As ranks that a launcher forks."""
    script = "if os.fork() == 0:\n    " + CONFIGURE + "    sys.exit(3)\nos.wait()\n"
    train(script, receiver.url)
    assert ["failed"] == statuses(receiver)


def test_switched_off(receiver: Receiver, train: Run) -> None:
    """By argument, whatever the variable is."""
    train(CONFIGURE.replace(")", ", run_events=False)") + "monitel.emit('event')\n", receiver.url)
    assert ["event"] == receiver.record_names()


def test_launcher_has_no_run(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """A launcher's process is not a rank."""
    script = tmp_path / "torchrun"
    script.write_text("import sys\nimport monitel_otlp\n" + CONFIGURE)
    run(script, receiver.url)
    assert [] == receiver.record_names()


def test_handler_that_hangs_at_the_exit_loses_only_the_event(receiver: Receiver, train: Run) -> None:
    """The pipeline, whose handler comes first, emits run.ended in a thread, and ends in its time."""
    script = (
        CONFIGURE + "monitel.emit('event')\nimport threading\n"
        "def hang(event):\n    if event.name == 'run.ended':\n        threading.Event().wait()\n"
        "monitel.register_event_handler(hang)\n"
    )
    train(script, receiver.url)
    assert ["run.started", "event", "run.ended"] == receiver.record_names()


def test_wrong_argument_is_refused() -> None:
    """Only True, False and None are accepted."""
    wrong: bool = 1  # type: ignore[assignment]
    with pytest.raises(TypeError, match="run_events must be True or False, got 1"):
        monitel_otlp.configure(run_events=wrong)
