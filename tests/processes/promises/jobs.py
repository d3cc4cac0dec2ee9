"""Jobs that a test drives line by line and kills, and the commands with which a user looks at them."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes.console.jobs import Console
from tests.processes.patience import with_patience
from tests.support.checks import wait_until
from tests.support.commands import Printed, command
from tests.support.scripts import Ended, Process, finish, read_line, started, write_line, write_script

#: Runs the statements that the test sends, and answers each with a line.
_SERVE = """\
def configure(**options):
    usual = {"endpoint": sys.argv[1], "spool_dir": "spool", "export_interval": 3600.0}
    return monitel_otlp.configure(**{**usual, **options})

def die(number=9):
    os.kill(os.getpid(), number)

for line in sys.stdin:
    exec(eval(line), globals())
    print("done", flush=True)
"""


class Job:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.pid = process.pid

    def send(self, statements: str) -> None:
        write_line(self.process, f"{statements!r}")

    def do(self, statements: str) -> None:
        self.send(statements)
        assert "done" == read_line(self.process), finish(self.process).stderr

    def row(self, show: str = "loss") -> dict[str, Any]:
        """Return what ``monitel top`` shows of the job, with the last sample of a Stat; no value without a record."""
        rows = [row for row in top("--show", show) if row["pid"] == self.pid]
        return rows[0] if rows else {"value": None}

    def wait_for_sample(self, sample: float, name: str = "loss") -> None:
        """Wait until a reader sees this sample as the last one of a Stat: everything before it is in the record."""
        wait_until(lambda: self.row(name)["value"] == sample, f"the sample {sample} of {name} in the record")

    def kill(self, number: int = signal.SIGKILL) -> Ended:
        self.process.send_signal(number)
        return self.ended(number)

    def ended(self, number: int = signal.SIGKILL) -> Ended:
        ended = finish(self.process)
        assert -number == ended.status, ended.stderr
        return ended


@contextmanager
def running(url: str, env: Mapping[str, str] | None = None) -> Iterator[Job]:
    folder = Path.cwd()
    with started(folder, "-W", "ignore", write_script(folder, with_patience(_SERVE)), url, env=env) as process:
        yield Job(process)


def replay(url: str, folder: str = "spool") -> Printed:
    """Deliver everything that dead processes have left; nothing may remain."""
    printed = command("replay", folder, "--endpoint", url)
    assert 0 == printed.status, printed.stderr
    assert [] == [each for each in Path(os.environ["MONITEL_BLACK_BOX_DIR"]).iterdir() if each.is_dir()]
    return printed


def autopsy(*arguments: object) -> dict[str, Any]:
    report: dict[str, Any] = Console().json("autopsy", *arguments)
    return report


def top(*arguments: object) -> list[dict[str, Any]]:
    return Console().rows(*arguments)
