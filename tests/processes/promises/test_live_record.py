"""The record of a live process as readers see it: of an exporter, of TensorBoard alone, and of a silent rank."""

import os
import platform
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.commands import RUN, record
from tests.processes.console.jobs import Console
from tests.processes.promises.jobs import Job, autopsy, running, top
from tests.support.checks import wait_for, wait_until
from tests.support.commands import command
from tests.support.scripts import READY, Process, finish, read_line, started, wait_until_ready, write_line

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
    table = command("top", job.pid, "--once", "--show", "rate").stdout
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
            assert str(job.pid) in printed.stderr


TENSORBOARD = """\
import os, sys, time
import monitel, monitel_tensorboard
monitel_tensorboard.install("runs")
assert not [name for name in sys.modules if name.startswith(("monitel_ot", "opentelemetry"))]
"""
#: What a process does, and its wait for the test.
WORK = f"""
loss = monitel.Stat("train.loss", [monitel.MEAN], 1e9)
monitel.emit("epoch.end", epoch=7)
monitel.set_step(41)
loss.add(0.5)
monitel.counter("samples").add(3)
waiting = monitel.WaitCounter("rendezvous").guard()
waiting.__enter__()
{READY}
def stuck():
    sys.stdin.readline()
stuck()
"""
RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
SILENT = """\
import os, sys
import monitel, monitel_otlp
pipeline = monitel_otlp.configure(service_name="llm", ranks="zero")
"""


def working(script: str, env: dict[str, str] | None = None) -> AbstractContextManager[Process]:
    Path("train.py").write_text(script)
    return started(Path.cwd(), "train.py", env=env, fresh=True)


def wait_for_work(process: Process) -> dict[str, Any]:
    wait_until_ready(process)

    def look() -> list[dict[str, Any]]:
        return [row for row in top("--show", "train.loss") if row["value"] == 0.5]

    row, *_ = wait_for(look, lambda rows: rows and rows[0]["waits"] and rows[0]["event"], "the last sample")
    return row


def check(found: dict[str, Any]) -> None:
    assert (41, "step") == (found["step"], found["activity"])
    assert ["rendezvous"] == [each["key"] for each in found["waits"]]
    assert [("train.loss", 1, 0.5)] == [(each["name"], each["count"], each["last"]) for each in found["windows"]]
    assert 3 == next(each["value"] for each in found["counters"] if each["name"] == "samples")
    assert ("epoch.end", {"epoch": 7}) in [(each["name"], each["attributes"]) for each in found["events"]]
    assert "in stuck" in found["stacks"]


@pytest.mark.parametrize(
    ("begin", "env", "rank"), [(TENSORBOARD, {}, None), (SILENT, RANK, 1)], ids=["TensorBoard", "a silent rank"]
)
def test_process_is_seen_while_it_runs_and_after_a_kill(
    own_boxes: Path, begin: str, env: dict[str, str], rank: int | None
) -> None:
    """Its activity, numbers, events and stacks. The end removes the box; after a kill ``replay`` does."""
    with working(begin + WORK, env) as process:
        row = wait_for_work(process)
        assert ("alive", 41, "step", rank) == tuple(row[name] for name in ("state", "step", "activity", "rank"))
        (found,) = autopsy(process.pid)["processes"]
        check(found)
        assert {"items": 0, "events": 0, "windows": 0, "samples": 0} == found["not_delivered"]
        process.kill()
        finish(process)
        (found,) = autopsy(process.pid)["processes"]
        assert ("dead", rank) == (found["state"], found["rank"])
        check(found)
    with working(begin + WORK, env) as process:
        wait_for_work(process)
        assert 0 == finish(process, "\n").status
    assert [found["box"]] == [str(each) for each in own_boxes.iterdir()]
    command("replay", "--endpoint", "http://127.0.0.1:9")
    assert [] == [*own_boxes.iterdir()]


def test_program_without_an_exporter_is_seen_under_run(console: Console) -> None:
    """While it runs; after a kill by its death, which ``monitel run`` observes before its command has ended."""
    Path("train.py").write_text(f"import os, sys\nimport monitel\n{WORK}os.kill(os.getpid(), 9)\n")
    command = ["sh", "-c", f"{sys.executable} train.py; read line"]
    with started(Path.cwd(), *RUN[1:], *command, fresh=True) as process, console.watching() as until:
        pid = wait_for_work(process)["pid"]
        (found,) = autopsy(pid)["processes"]
        check(found)
        write_line(process, "die")
        row = until(lambda rows: rows[None]["death"])[None]
        assert ("dead", "killed by SIGKILL", 41) == (row["state"], row["death"], row["step"])
        assert 0 == finish(process, "end\n").status
    (found,) = autopsy(pid)["processes"]
    assert ("dead", "killed by SIGKILL", 41) == (found["state"], found["death"], found["step"])
    assert "train.py" in found["stacks"]


def test_run_names_a_silent_rank(own_boxes: Path) -> None:
    """Its steps if it ends well, or is preempted; the signal, and the command that shows more, if it is killed.

    Multiprocessing, which ends before the functions of ``atexit`` that were registered earlier, changes nothing.
    """
    for end, status, words in (
        ("", 0, "1 of 2 ranks (those with reports on this machine), 3 steps"),
        ("from multiprocessing import get_context\nget_context('fork').Process(target=int).start()", 0, ", 3 steps"),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM, "ended rank 1 preempted"),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, "died rank 1 killed by SIGKILL at step 2"),
    ):
        ended = record(f"{SILENT}for step in range(3): monitel.set_step(step)\nmonitel.emit('a')\n{end}\n", **RANK)
        assert (status, True) == (ended.status, words in ended.words), ended
        assert not re.search("exported|deliver with", ended.summary)
        assert ("died" in words) == bool([*own_boxes.iterdir()])
    (found,) = autopsy()["processes"]
    assert f"monitel autopsy {found['box']}" in ended.words


def test_later_exporter_handles_sigterm() -> None:
    """The handler of the silent rank is in nobody's way."""
    later = "monitel_otlp.configure(spool_dir='own')\nmonitel.set_step(1)\nos.kill(os.getpid(), 15)\n"
    ended = record(f"{SILENT}monitel.emit('a')\n{later}", **RANK)
    assert -signal.SIGTERM == ended.status
    assert re.search("rank 1 preempted.* deliver with", ended.words)


INSTALL = "import monitel_tensorboard\nboard = monitel_tensorboard.install('runs')\nmonitel.emit('a')"
CONFIGURE = "configure()\nmonitel.emit('b')"


@pytest.mark.parametrize("order", [(INSTALL, CONFIGURE), (CONFIGURE, INSTALL)], ids=["later", "earlier"])
def test_exporter_takes_over(own_boxes: Path, order: tuple[str, str]) -> None:
    """A process has one record at a time: that of the exporter that reads it."""
    with running("http://127.0.0.1:9") as job:
        for statements in order:
            job.do(statements)
        (box,) = own_boxes.iterdir()
        assert "b" in [each["name"] for each in autopsy(box)["processes"][0]["events"]]


def test_forked_child_leaves_the_record_to_its_parent(own_boxes: Path) -> None:
    """The child has none, and its end does not touch that of the parent."""
    child = """
if (pid := os.fork()) == 0:
    monitel.emit("of the child")
    monitel.set_step(7)
    sys.exit()
assert 0 == os.waitpid(pid, 0)[1]
"""
    begin = f"{TENSORBOARD}monitel.emit('before')\n{child}"
    with working(begin + WORK) as process:
        wait_for_work(process)
        (found,) = autopsy()["processes"]
        assert process.pid == found["pid"]
        check(found)
        assert "of the child" not in [each["name"] for each in found["events"]]
        assert 0 == finish(process, "\n").status
    assert [] == [*own_boxes.iterdir()]


def test_records_of_many_kills_stay_few(own_boxes: Path) -> None:
    """The newest 16 stay, and no collector is needed."""
    script = f"""\
{TENSORBOARD}
for number in range(20):
    if (pid := os.fork()) == 0:
        monitel_tensorboard.install(f"runs-{{number}}")
        monitel.emit("last", number=number)
        os._exit(1)
    os.waitpid(pid, 0)
"""
    with working(script) as process:
        assert 0 == finish(process).status
    assert 16 <= len([*own_boxes.iterdir()]) <= 17


#: A function that fails is called by the main thread, by another one, and within a block of an exporter.
FAILURES = {
    "main": "threading.Thread(target=hang).start()\nfail()\n",
    "a thread": "thread = threading.Thread(target=fail)\nthread.start()\nthread.join()\nhang()\n",
    "a with": "try:\n    with monitel_tensorboard.install('other'): fail()\nexcept ValueError: hang()\n",
}


@pytest.mark.parametrize("where", FAILURES)
def test_last_exception(where: str) -> None:
    """Type, message and the application's line are in the record of a process that then hangs, and hooks are called."""
    script = f"""\
{TENSORBOARD}
import json, threading
monitel.emit("a")
previous = threading.excepthook
threading.excepthook = lambda arguments: (os.write(1, b"called\\n"), previous(arguments))
def fail():
    monitel.activity("load")(json.loads)("{{")  # fails
def hang():
    {READY.strip()}
    sys.stdin.readline()
{FAILURES[where]}"""
    line = script.split("\n").index('    monitel.activity("load")(json.loads)("{")  # fails') + 1
    with working(script) as process:
        if where == "a thread":
            assert "called" == read_line(process)
        wait_until_ready(process)
        wait_until(lambda: autopsy(process.pid)["processes"][0]["exception"] is not None, "the exception in the record")
        process.kill()
        ended = finish(process)
    assert ("JSONDecodeError" in ended.stderr) == (where != "a with")
    exception = autopsy(process.pid)["processes"][0]["exception"]
    assert "json.decoder.JSONDecodeError" == exception["type"]
    assert exception["message"].startswith("Expecting property name")
    assert str(Path.cwd() / f"train.py:{line}") == exception["place"]
