"""CPU time of ``monitel top``: 64 processes with 50 Stats each, and a refresh each two seconds.

The processes are real: each has a pipeline with a black box, makes two steps a second, and cuts once a second. Measured
are the whole command in a terminal of 200 columns and 70 lines, by the system's account of its process, and the
readings alone, without a terminal. Both depend on the load of the machine, because other processes displace the boxes
from the caches.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

from processes import cpu_ns
from race import optional
from row import Row

import monitel

_RANKS, _STATS = 64, 50
_STEP_S, _DATA_S = 0.5, 0.1
_LOOKS = 12
_READY_S = 240.0
_WIDTH, _HEIGHT = 200, 70
_SETTLED_S, _MEASURED_S = 10.0, 60.0  # the start of the command is not measured
_PER_SECOND_NS = 50e6  # 5 % of a core
_PER_LOOK_NS = 2 * _PER_SECOND_NS  # of a look each two seconds
_MEMORY = Path("/dev/shm")
_WHAT = f"monitel top, {_RANKS} processes with {_STATS} Stats"
_COMMAND = f"{_WHAT}: CPU time of the command in a second, terminal included"


def train(folder: str, rank: int) -> None:
    """Make steps until this process is killed. Never returns."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the lines about the spool
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}", WORLD_SIZE=f"{_RANKS}")
    otlp: Any = optional("monitel_otlp")
    otlp.configure(service_name="bench", spool_dir=f"{folder}/spool", black_box=f"{folder}/boxes")
    stats = [monitel.Stat(f"stat.{number}", [monitel.MEAN], 60.0) for number in range(_STATS - 1)]
    stats.append(monitel.Stat("loss", [monitel.MEAN], 60.0))
    monitel.emit("job.start")
    step, pause = 0, Event()
    while True:
        monitel.set_step(step)
        for stat in stats:
            stat.add(step)
        with monitel.activity("data"):
            pause.wait(_DATA_S)
        pause.wait(_STEP_S - _DATA_S)
        step += 1


def looks(boxes: Path) -> list[float]:
    """Return the CPU time of each look, ns."""
    from monitel.console.live import Live
    from monitel.runs.process import State

    ranks = Live([str(boxes)])
    ranks.look()
    found: list[float] = []
    for _ in range(_LOOKS):
        Event().wait(1.0)
        begin = time.process_time_ns()
        look = ranks.look()
        found.append(time.process_time_ns() - begin)
    if len([each for each in look.processes if each.state is not State.DEAD]) != _RANKS:
        raise SystemExit("a process has died")
    return found


def command(folder: str, boxes: Path) -> float:
    """Return the CPU time of the whole command in a second, ns: user and system, from /proc."""
    server = ["tmux", "-S", f"{folder}/tmux", "-f", os.devnull]
    shown = [sys.executable, "-m", "monitel", "top", str(boxes)]
    environment = {**os.environ, "TERM": "screen-256color", "LANG": "C.UTF-8"}
    size = ["-x", f"{_WIDTH}", "-y", f"{_HEIGHT}"]
    subprocess.run([*server, "new-session", "-d", *size, *shown], env=environment, check=True)
    try:
        answer = subprocess.run([*server, "display-message", "-p", "#{pane_pid}"], capture_output=True, check=True)
        pid = int(answer.stdout)
        Event().wait(_SETTLED_S)
        begin, before_ns = time.monotonic(), cpu_ns(pid)
        Event().wait(_MEASURED_S)
        per_second = (cpu_ns(pid) - before_ns) / (time.monotonic() - begin)
        screen = subprocess.run([*server, "capture-pane", "-p"], capture_output=True, check=True).stdout.decode()
        if f"{_RANKS} alive" not in screen:
            raise SystemExit(f"the screen does not show {_RANKS} processes that are alive:\n{screen}")
        return per_second
    finally:
        subprocess.run([*server, "kill-server"], check=False)


def wait_for_boxes(boxes: Path) -> None:
    end = time.monotonic() + _READY_S
    while sum(1 for _ in boxes.glob("[0-9]*")) < _RANKS:
        if time.monotonic() > end:
            raise SystemExit("the processes do not start")
        Event().wait(0.1)


def main() -> None:
    """Fork the processes before anything is started here, look, and kill them."""
    if optional("monitel_otlp.pipeline") is None:  # it imports what the processes need
        Row(_WHAT, None).put()
        return
    has_screen = (
        optional("textual") is not None and shutil.which("tmux") is not None and Path("/proc/self/stat").exists()
    )
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        boxes = Path(folder, "boxes")
        boxes.mkdir(0o700)
        children = []
        try:
            for rank in range(_RANKS):
                child = os.fork()
                if child == 0:
                    train(folder, rank)
                children.append(child)
            wait_for_boxes(boxes)
            shown = command(folder, boxes) if has_screen else None
            looked = looks(boxes)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    Row(_COMMAND, shown, most=_PER_SECOND_NS).put()
    Row(f"{_WHAT}: CPU time per look", median(looked), most=_PER_LOOK_NS).put()


if __name__ == "__main__":
    main()
