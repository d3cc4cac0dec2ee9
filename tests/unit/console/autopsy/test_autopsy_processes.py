"""``autopsy`` of real processes: killed, hung, stopped, crashed, collected, replaced by exec."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from subprocess import run
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripts import started, wait_until_ready, write_script

from monitel import crash_stacks
from monitel_otlp.__main__ import main
from monitel_otlp.collection.collector import collect_boxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.support.scripts import Process

PATIENCE_S = 30.0

#: Makes 50 steps, and waits in a function with a name; its truth is printed before ``ready``.
HANG = """
import json
pipeline = monitel_otlp.configure(service_name="llm", spool_dir="spool")
monitel.emit("job.start")  # the box is made with the first item
loss, lr = Stat("train.loss", [MEAN], 60.0), Stat("lr", [COUNT], 60.0, attributes={"group": "head"})
samples = monitel.counter("train.samples")
begin = time.monotonic()
for step in range(50):
    monitel.set_step(step)
    loss.add(1 / (step + 1))
    samples.add(8)
    time.sleep(0.01)
lr.add(float("nan"))
rate = 49 / (time.monotonic() - begin)
monitel.emit("epoch.start", epoch=7)

def stuck_here():
    with monitel.WaitCounter("all_reduce").guard(), monitel.activity("checkpoint.save"):
        print("ready", flush=True)
        hang()

def hang():
    time.sleep(1000)
"""


@contextmanager
def jobs(
    folder: Path, scripts: Mapping[str, str], env: Callable[[str], Mapping[str, str]] | None = None
) -> Iterator[dict[str, Process]]:
    """Start a job for each name and script, and wait until all are ready.

    Args:
        folder: Each has a folder in it.
        scripts: The script of each.
        env: Returns the environment variables of each.
    """
    with ExitStack() as stack:
        processes = {}
        for name, script in scripts.items():
            (folder / name).mkdir(exist_ok=True)
            path = write_script(folder / name, script)
            processes[name] = stack.enter_context(started(folder / name, path, env=env(name) if env else None))
        for process in processes.values():
            wait_until_ready(process)
        yield processes


@contextmanager
def job(folder: Path, script: str) -> Iterator[Process]:
    """Start a job, and wait until it is ready."""
    with jobs(folder, {"job": script}) as processes:
        yield processes["job"]


class Autopsy:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.stderr = ""

    def text(self, *arguments: str, status: int = 0) -> str:
        """Return stdout."""
        self._capsys.readouterr()
        assert status == main(["autopsy", *arguments])
        stdout, self.stderr = self._capsys.readouterr()
        return stdout

    def processes(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the processes of the JSON report."""
        found: list[dict[str, Any]] = json.loads(self.text("--json", *arguments))["processes"]
        return found

    def until(self, expected: Callable[[dict[str, Any]], bool], *arguments: str) -> dict[str, Any]:
        """Return the only process when it is as expected."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.processes(*arguments)
            if len(found) == 1 and expected(found[0]):
                return found[0]
            assert time.monotonic() < deadline, found


@pytest.fixture
def autopsy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Autopsy:
    """The command, on a stream without columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    return Autopsy(capsys)


def kill(process: Process, number: int = signal.SIGKILL) -> None:
    """Kill a process, and wait for its end."""
    process.send_signal(number)
    process.wait(PATIENCE_S)


def check_numbers(found: dict[str, Any]) -> None:
    """Compare the report of a job that hangs with what its script does."""
    assert ("llm", 49) == (found["service"], found["step"])
    assert 20 < found["steps_per_second"] <= 105
    (wait,) = found["waits"]
    assert "all_reduce" == wait["key"]
    assert 0 < wait["seconds"] < 60
    assert wait["seconds"] <= found["step_age_seconds"] < wait["seconds"] + 1
    assert "checkpoint.save" == found["activity"]
    assert 0 < found["activity_age_seconds"] <= wait["seconds"] + 0.1
    lr, loss = found["windows"]
    assert ("lr", {"group": "head"}, 1, "NaN") == (lr["name"], lr["attributes"], lr["count"], lr["last"])
    truth = [1 / (step + 1) for step in range(50)]
    assert ("train.loss", 50, truth[-1], truth[-1], 1.0) == tuple(
        loss[name] for name in ("name", "count", "last", "min", "max")
    )
    assert sum(truth) / 50 == pytest.approx(loss["mean"])
    assert (0, 49) == (loss["first_step"], loss["last_step"])
    assert 400 == next(each["value"] for each in found["counters"] if each["name"] == "train.samples")
    assert ("epoch.start", {"training.step": 49, "epoch": 7}) == (
        found["events"][-1]["name"],
        found["events"][-1]["attributes"],
    )
    assert 51 == found["not_delivered"]["samples"]


def test_hung_process_from_outside_and_after_its_death(tmp_path: Path, own_boxes: Path, autopsy: Autopsy) -> None:
    """The numbers are those of the script; asking leaves the box as it was, apart from the stacks."""
    with job(tmp_path, HANG + "stuck_here()") as process:
        (box,) = own_boxes.iterdir()
        before = {each.name: each.read_bytes() for each in box.iterdir()}
        found = autopsy.until(lambda found: found["activity"] == "checkpoint.save", str(process.pid))
        assert ("alive", process.pid, None) == (found["state"], found["pid"], found["death"])
        check_numbers(found)
        stuck = found["stacks"].index("in hang"), found["stacks"].index("in stuck_here")
        assert found["stacks"].index("[MainThread]") < stuck[0] < stuck[1]
        assert {*before, "stacks-now"} == {each.name for each in box.iterdir()}
        unchanged = {"header", "lock", "events-a", "events-b"}
        assert all(before[name] == (box / name).read_bytes() for name in unchanged)
        assert "in hang" in autopsy.text()
        kill(process)
        (found,) = autopsy.processes()
        assert ("dead", process.pid, None, None) == tuple(found[each] for each in ("state", "pid", "death", "stacks"))
        check_numbers(found)
        assert [found["source"]] == [each["source"] for each in autopsy.processes(str(box))]
        assert [found["source"]] == [each["source"] for each in autopsy.processes(str(own_boxes))]
        assert "replay" in autopsy.text().splitlines()[-1]


def test_collected_process_is_found_by_its_event(tmp_path: Path, own_boxes: Path, autopsy: Autopsy) -> None:
    """In the spool, by the process id or by the folder."""
    with job(tmp_path, HANG + "stuck_here()") as process:
        kill(process)
        outcome = collect_boxes(own_boxes, fallback=tmp_path)
    assert [] == outcome.problems
    for target in (str(tmp_path / "job/spool"), str(outcome.spools[0])):
        (found,) = autopsy.processes(target)
        assert ("dead", process.pid, 49, "llm") == tuple(found[each] for each in ("state", "pid", "step", "service"))
        assert str(outcome.spools[0]) == found["collected_in"]
        assert ["all_reduce"] == [wait["key"] for wait in found["waits"]]
        assert 0 <= found["waits"][0]["seconds"] < 60
        assert "process.died" in {event["name"] for event in found["events"]}
        assert outcome.items <= found["not_delivered"]["items"]
    os.environ["MONITEL_SPOOL_DIR"] = str(tmp_path / "job/spool")
    try:
        (found,) = autopsy.processes(str(process.pid))
        assert str(outcome.spools[0]) == found["collected_in"]
        assert f"collected in   {outcome.spools[0]}"[:40] in autopsy.text()
    finally:
        del os.environ["MONITEL_SPOOL_DIR"]


def test_processes_that_run_no_python_code(tmp_path: Path, own_boxes: Path, autopsy: Autopsy) -> None:
    """One is stopped by a signal, one holds the GIL while it sleeps, and one while it computes."""
    holds = """
import ctypes
pipeline = monitel_otlp.configure(spool_dir="spool")
monitel.emit("begin")
print("ready", flush=True)
"""
    sleeps = "ctypes.PyDLL(None).sleep(1000)\n"
    computes = "pow(7, 10**100_000, 10**40_000 + 9)\n"  # takes an hour
    scripts = {"stopped": HANG + "stuck_here()", "sleeps": holds + sleeps, "computes": holds + computes}
    with jobs(tmp_path, scripts) as processes:
        processes["stopped"].send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE_S
        found = autopsy.processes()
        while {"silent"} != {each["state"] for each in found}:
            assert time.monotonic() < deadline, found
            found = autopsy.processes()
        assert [] == [*own_boxes.glob("*/stacks-wanted")], "a request that is not answered is withdrawn"
        by_pid = {each["pid"]: each for each in found}
        stopped, sleeping, computing = (by_pid[processes[name].pid] for name in ("stopped", "sleeps", "computes"))
        assert "T" == stopped["kernel"]["state"]
        assert f"kill -CONT {stopped['pid']}" in stopped["silence"][1]
        assert "C code waits without releasing the GIL" in sleeping["silence"][0]
        assert "C code computes without releasing the GIL" in computing["silence"][0]
        for each in (sleeping, computing):
            assert f"py-spy dump --pid {each['pid']}" in each["silence"][-1]
            assert each["stacks"] is None
        assert ["all_reduce"] == [wait["key"] for wait in stopped["waits"]]
        assert "silent: its last heartbeat was" in autopsy.text(str(stopped["pid"]))
        processes["stopped"].send_signal(signal.SIGCONT)
        found_again = autopsy.until(lambda found: found["state"] == "alive" and found["stacks"], str(stopped["pid"]))
        assert "in hang" in found_again["stacks"]


@pytest.mark.skipif(crash_stacks._c is None, reason="the handler of crashes needs the C extension")
def test_crash_has_its_signal_and_stacks(tmp_path: Path, autopsy: Autopsy) -> None:
    """After SIGSEGV. A pipe that is closed early, as with ``| head``, is fine."""
    with job(tmp_path, HANG + "stuck_here()") as process:
        kill(process, signal.SIGSEGV)
        (found,) = autopsy.processes()
        assert "killed by SIGSEGV" == found["death"]
        assert "stuck_here" in found["stacks"]
        assert "dead: killed by SIGSEGV" in autopsy.text()
        command = f"{sys.executable} -m monitel_otlp autopsy --json --all | head -c 1; exit ${{PIPESTATUS[0]}}"
        ended = run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "{", "") == (ended.returncode, ended.stdout, ended.stderr)


def test_late_rank_is_in_the_first_lines(tmp_path: Path, autopsy: Autopsy) -> None:
    """Two of three ranks wait for the third."""
    late = HANG + "monitel.set_step(48)\nprint('ready', flush=True)\ntime.sleep(1000)\n"
    scripts = {str(rank): late if rank == 1 else HANG + "stuck_here()" for rank in range(3)}
    with jobs(
        tmp_path,
        scripts,
        lambda rank: {"RANK": rank, "WORLD_SIZE": "3", "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "run-7"},
    ):
        summary, waiting, named, steps, *_ = autopsy.text().splitlines()
        deadline = time.monotonic() + PATIENCE_S
        while not named.startswith("late"):  # the wait is not long yet
            assert time.monotonic() < deadline, named
            summary, waiting, named, steps, *_ = autopsy.text().splitlines()
        (job_report,) = json.loads(autopsy.text("--json"))["jobs"]
    assert "3 processes: 3 alive" == summary
    assert waiting.startswith("ranks 0 and 2 wait in all_reduce, the first one for ")
    assert named.startswith("late: rank 1 is not in all_reduce: ")
    assert "last steps differ: 49 (ranks 0 and 2), 48 (rank 1)" == steps
    assert ("run-7", [1]) == (job_report["run"], job_report["late"])


def test_exec_is_not_a_death(tmp_path: Path, autopsy: Autopsy) -> None:
    """The telemetry of the former program has ended, the process has not."""
    script = HANG + "os.execv(sys.executable, [sys.executable, '-c', 'print(\"ready\", flush=True); input()'])\n"
    with job(tmp_path, script) as process:
        (found,) = autopsy.processes(str(process.pid))
        assert ("dead", True) == (found["state"], found["replaced_by_exec"])
        assert "replaced by exec" in autopsy.text()


def test_nothing_and_unknown_targets(
    tmp_path: Path, own_boxes: Path, autopsy: Autopsy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a box there is a sentence; an unknown process or folder is an error with advice."""
    assert autopsy.text().startswith("no black boxes")
    assert [] == autopsy.processes()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for target, words in {
        str(1 << 22): "no such process runs",
        str(os.getpid()): "the process runs, but",
        str(tmp_path / "missing"): "there is no folder",
        str(tmp_path / "file"): "is not a folder",
        str(tmp_path / "empty"): "it holds no black box",
        "9" * 30: "no such process runs",
    }.items():
        assert "" == autopsy.text(target, status=1)
        assert words in autopsy.stderr, target
        assert autopsy.stderr.startswith("monitel: ")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert "" == autopsy.text(str(os.getpid()), status=1)
    assert "belongs to another user" in autopsy.stderr
    own_boxes.mkdir(mode=0o700)
    autopsy.text(str(own_boxes), status=1)
    assert autopsy.stderr
