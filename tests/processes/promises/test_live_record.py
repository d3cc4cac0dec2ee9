"""A live process as readers see it: its step, waits, activity, values and heartbeat, without disturbing it."""

import os
import platform
import signal
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.processes.promises.jobs import Job, autopsy, running, top
from tests.support.checks import wait_until
from tests.support.commands import command

NOWHERE = "http://127.0.0.1:9"  # refuses connections
RECORD = """\
pipeline = configure(service_name="llm")
loss = Stat("train.loss", [COUNT, SUM], 3600.0, attributes={"split": "train"})
monitel.emit("epoch.start", epoch=1)
monitel.set_step(6)
loss.add(2.0)
monitel.set_step(7)
loss.add(0.5)
monitel.counter("samples", unit="{sample}").add(3)
waiting = monitel.WaitCounter("rendezvous").guard()
waiting.__enter__()
evaluation = monitel.activity("evaluation")
evaluation.__enter__()
"""


@pytest.fixture
def job() -> Iterator[Job]:
    with running(NOWHERE) as job:
        job.do(RECORD)
        job.wait_for_sample(0.5, "train.loss")
        yield job


def test_top_shows_the_number_that_is_asked_for(job: Job) -> None:
    """The Stat or logged number with exactly that name; without a name, the first one that ends with ``loss``."""
    job.do("norm = Stat('grad.norm', [COUNT], 3600.0)\nnorm.add(3.0)\nmonitel.log({'rate': 0.25})")
    job.wait_for_sample(3.0, "grad.norm")
    job.wait_for_sample(0.25, "rate")
    (usual,) = [row for row in top() if row["pid"] == job.pid]
    assert ("train.loss", 0.5) == (usual["value_name"], usual["value"])
    assert ("norm", None) == tuple(job.row("norm")[name] for name in ("value_name", "value"))
    table = command("top", job.pid, "--once", "--show", "rate").output
    assert "0.25" in table


def test_step_and_waits_are_those_of_this_moment(job: Job) -> None:
    """A reader sees each step as soon as set_step() has returned, and a wait while it lasts, not a second later."""
    for step in (8, 1200, 3, 2**62):
        job.do(f"monitel.set_step({step})\nagain = monitel.WaitCounter('wait {step}').guard()\nagain.__enter__()")
        row = job.row()
        assert (step, ["rendezvous", f"wait {step}"]) == (row["step"], [each["key"] for each in row["waits"]])
        job.do("again.__exit__(None, None, None)")
        assert ["rendezvous"] == [each["key"] for each in job.row()["waits"]]


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def test_stopped_process_is_silent_until_it_goes_on(job: Job) -> None:
    """Without a heartbeat for three seconds it is ``silent``, and not dead; its last step and waits stay visible.

    Looking takes no lock and writes nothing: the files of the record stay the same.
    """
    job.process.send_signal(signal.SIGSTOP)
    rows: list[dict[str, Any]] = [job.row()]
    (box,) = (each for each in os.scandir(os.environ["MONITEL_BLACK_BOX_DIR"]) if each.is_dir())
    before = {each.name: each.stat().st_mtime_ns for each in os.scandir(box)}

    def is_silent() -> bool:
        rows.append(job.row())
        return bool(rows[-1]["state"] == "silent")

    wait_until(is_silent, "silence")
    assert before == {each.name: each.stat().st_mtime_ns for each in os.scandir(box)}
    for row in rows:
        age = moment(row["time"]) - moment(row["last_seen"])
        assert age > 2.5 if row["state"] == "silent" else age < 8, row
    assert (7, ["rendezvous"]) == (job.row()["step"], [each["key"] for each in job.row()["waits"]])
    (found,) = autopsy(job.pid)["processes"]
    assert ("silent", "T", None) == (found["state"], found["kernel"]["state"], found["stacks"])
    assert f"kill -CONT {job.pid}" in found["silence"][1]
    job.process.send_signal(signal.SIGCONT)
    wait_until(lambda: job.row()["state"] == "alive", "a heartbeat")
    job.do("monitel.set_step(8)")
    assert 8 == job.row()["step"]


def test_reader_beside_a_writer_sees_whole_values() -> None:
    """While a job sets steps and begins waits without a pause, steps never fall, and no wait is torn."""
    with running(NOWHERE) as job:
        job.do("configure()\nmonitel.emit('ready')\nmonitel.set_step(1)")
        wait_until(top, "a record")
        job.send(
            "for step in range(2, 10**9):\n monitel.set_step(step)\n"
            " with monitel.WaitCounter('x' * 40 + f'{step % 7}' * 5).guard(): pass"
        )
        rows = [job.row() for _ in range(12)]
    steps = [row["step"] for row in rows]
    assert sorted(steps) == steps
    assert steps[0] < steps[-1]
    assert {each["key"] for row in rows for each in row["waits"]} <= {"x" * 40 + str(last) * 5 for last in range(7)}
    assert {"alive", "silent"} >= {row["state"] for row in rows}  # its heart may skip a beat on a busy machine


FORKS = {"x86_64": 56, "aarch64": 220}  # the number of clone()


def test_forked_child_writes_nothing_into_its_parents_record(job: Job) -> None:
    """Neither steps nor the ends of waits, even if C code has forked it without Python's handlers, or the kernel."""
    ways = ["os.fork()", "ctypes.PyDLL(None).fork()"]
    if clone := FORKS.get(platform.machine()):
        ways.append(f"ctypes.PyDLL(None).syscall({clone}, 17, 0, 0, 0, 0)")
    for way in ways:
        job.do(
            f"import ctypes\nchild = {way}\nif not child:\n monitel.set_step(99)\n"
            " waiting.__exit__(None, None, None)\n monitel.WaitCounter('of the child').guard().__enter__()\n"
            " os._exit(0)\nassert (child, 0) == os.waitpid(child, 0)"
        )
        row = job.row()
        assert (7, ["rendezvous"]) == (row["step"], [each["key"] for each in row["waits"]]), way
    job.do("monitel.set_step(8)\nwaiting.__exit__(None, None, None)")
    row = job.row()
    assert (8, []) == (row["step"], row["waits"])


def test_process_without_a_record_has_no_row() -> None:
    """A process that has recorded nothing, or whose box is switched off, leaves no folder, and is named as unknown."""
    with running(NOWHERE) as idle, running(NOWHERE, {"MONITEL_BLACK_BOX": "0"}) as without:
        idle.do("configure()")
        without.do("pipeline = configure()\nmonitel.emit('left')\npipeline.force_flush(0.1)")
        assert [] == top()
        for job in (idle, without):
            printed = command("autopsy", job.pid)
            assert 1 == printed.status
            assert str(job.pid) in printed.errors
