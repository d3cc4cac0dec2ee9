"""CPU time of ``monitel top`` in a terminal: 64 real processes with 50 Stats each, and a refresh each two seconds.

It depends on the load of the machine, because other processes displace the boxes from the caches.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event

from row import Row

import monitel
import monitel_otlp

_RANKS, _STATS = 64, 50
_STEP_S, _DATA_S = 0.5, 0.1
_READY_S = 240.0
_WIDTH, _HEIGHT = 200, 70
_SETTLED_S, _MEASURED_S = 10.0, 60.0  # the start of the command is not measured
_PER_SECOND_NS = 50e6  # 5 % of a core
_WHAT = f"monitel top, {_RANKS} processes with {_STATS} Stats: CPU time of the command in a second, terminal included"


def train(folder: str, rank: int) -> None:
    """Make steps until this process is killed. Never returns."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the lines about the spool
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}", WORLD_SIZE=f"{_RANKS}")
    monitel_otlp.configure(service_name="bench", spool_dir=f"{folder}/spool", black_box=f"{folder}/boxes")
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


def cpu_ns(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
    return 1e9 * (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


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
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
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
            Row(_WHAT, command(folder, boxes), most=_PER_SECOND_NS).put()
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


if __name__ == "__main__":
    main()
