"""Jobs that are killed while they have a black box, and the delivery of what they leave."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.support.scripts import finish, started, write_script

from monitel_otlp.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Lines of a script that define ``kill()``, which waits until everything before it is in the box.
KILL = """\
import signal
from pathlib import Path
from monitel_otlp.black_box import recorder
from monitel_otlp.black_box.contents import read_box
from monitel_otlp.spool.folder import Folder

recorder.INTERVAL = 0.05

def cuts():
    (box,) = Path(os.environ["MONITEL_BLACK_BOX_DIR"]).glob(f"{os.getpid()}-*")
    cut = read_box(Folder.open(box)).cut
    return 0 if cut is None else cut.number

def wait_for_cut():
    monitel.emit("makes the box")
    before = cuts()
    while cuts() < before + 2:  # the next one may have begun already
        time.sleep(0.02)

def kill(number=signal.SIGKILL):
    wait_for_cut()
    os.kill(os.getpid(), number)
"""


def run_killed(
    folder: Path, script: str, *arguments: object, env: Mapping[str, str] | None = None, by: int = signal.SIGKILL
) -> int:
    """Run a script that is killed by a signal, and return its process id."""
    with started(folder, write_script(folder, KILL + script), *arguments, env=env) as process:
        ended = finish(process)
    assert -by == ended.status, ended.stderr
    return process.pid


def replay(folder: Path, url: str) -> None:
    """Collect the boxes, and deliver the spools below a folder."""
    assert 0 == main(["replay", str(folder), "--endpoint", url])
