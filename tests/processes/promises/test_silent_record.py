"""The record of a process that no exporter reads: with TensorBoard alone, and in a rank that does not export."""

import re
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.commands import RUN, record
from tests.processes.console.jobs import Console
from tests.processes.promises.jobs import autopsy, running, top
from tests.support.checks import wait_until
from tests.support.commands import command
from tests.support.scripts import READY, Process, finish, read_line, started, wait_until_ready, write_line

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
    rows: list[dict[str, Any]] = []

    def is_seen() -> bool:
        rows[:] = [row for row in top("--show", "train.loss") if row["value"] == 0.5]
        return bool(rows and rows[0]["waits"] and rows[0]["event"])

    wait_until(is_seen, "the last sample in the record")
    return rows[0]


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
    json.loads("{{")  # fails
def hang():
    {READY.strip()}
    sys.stdin.readline()
{FAILURES[where]}"""
    line = script.split("\n").index('    json.loads("{")  # fails') + 1
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
