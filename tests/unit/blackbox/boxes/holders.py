"""Processes that have a black box, or try to lock one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import finish, started

from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.scripts import Process

#: Makes a box in the folder of the first argument, prints its name, and waits for lines.
MAKE = """\
import json, os, sys
from pathlib import Path
from monitel_otlp.boxes.place import choose_root, new_box, remove_box
from monitel_otlp.boxes.box_lock import claim, is_alive
from monitel_otlp.spool.folder import Folder
root = choose_root(Path(sys.argv[1]))
box = new_box(root)
print(json.dumps(box.folder.path.name), flush=True)
"""
WAIT = "sys.stdin.readline()\n"
#: Tries to lock the first byte of a file, as the process of a box does, without any code of monitel.
TRY = """\
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        print("refused")
    else:
        print("locked")
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file, and mount")


@dataclass
class Holder:
    """A process with a box.

    Attributes:
        process: The process.
        path: The box.
    """

    process: Process
    path: Path

    def exchange(self, line: str = "") -> str:
        """Send a line, and return the line that the process prints next."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the process, which stays a zombie."""
        self.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)


@contextmanager
def holding(root: Path, script: str = WAIT, *, env: Mapping[str, str] | None = None) -> Iterator[Holder]:
    """Start a process that makes a box in a folder, and then runs a script."""
    with started(root.parent, "-W", "ignore", "-c", MAKE + script, root, env=env) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, finish(process).stderr
        yield Holder(process, root / json.loads(line))


def kill_with_box(root: Path) -> Path:
    """Return the box of a process that was killed."""
    with holding(root) as holder:
        holder.kill()
    return holder.path


def another_process_can_lock(box: Path) -> bool:
    """Return True if a process without any code of monitel can lock a box, as the process of the box would."""
    command = [sys.executable, "-S", "-c", TRY, str(box / "lock")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {"locked": True, "refused": False}[ended.stdout.strip()]


def open_box(path: Path) -> Folder:
    """Open a box."""
    return Folder.open(path)


@contextmanager
def mounted(point: Path, options: str) -> Iterator[Path]:
    """Mount an empty file system in memory, or skip the test."""
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(point)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        pytest.skip(f"cannot mount: {error}")
    if ended.returncode:
        pytest.skip(f"cannot mount: {ended.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], capture_output=True, timeout=60, check=True)
