"""Training jobs in separate processes, the truth that they note themselves, and the command ``monitel``."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from tests.processes.patience import SHORT, with_patience
from tests.support.checks import wait_for
from tests.support.commands import Printed, command
from tests.support.inbox import DEADLINE
from tests.support.scripts import Process, read_line, started, wait_until_ready, write_script

MONITEL = ("-m", "monitel")

#: Makes steps of about 50 ms until it is ended. A line of the notes: step, monotonic time, loss, seconds of data.
_LOOP = """
import json
pipeline = monitel_otlp.configure(service_name=SERVICE, spool_dir="spool")
stages = [
    (Stat("training.stage.duration", [MEAN], 1e9, unit="s", attributes={"training.stage": stage}), seconds)
    for stage, seconds in STAGES.items()
]
loss = Stat("train.loss", [MEAN], 1e9)
samples = monitel.counter("train.samples")
data = 0.0
with open("notes.jsonl", "w", buffering=1) as notes:
    for step in range(1_000_000):
        if step == UNTIL:
            exec(THEN)
            break
        monitel.set_step(step)
        loss.add(1 / (step + 1))
        samples.add(8)
        notes.write(json.dumps([step, time.monotonic(), 1 / (step + 1), data]) + "\\n")
        if step == 3:
            monitel.emit("epoch.start", epoch=1)
            print("ready", flush=True)
        begin = time.monotonic()
        with monitel.activity("data"):
            time.sleep(0.02)
        data += time.monotonic() - begin
        time.sleep(0.03)
        for stat, seconds in stages:
            stat.add(seconds)
"""
#: Seconds of the stages of two ranks, of which the second one is late by 30 ms in data.
EQUAL = {"optimizer": 0.005, "data": 0.005, "forward": 0.03, "backward": 0.06, "sync": 0.0}
WAITS, IS_LATE = {**EQUAL, "sync": 0.03}, {**EQUAL, "data": 0.035}
#: A function with a name, in which a process waits forever.
HANG = """
def stuck_here():
    with monitel.WaitCounter("all_reduce").guard(), monitel.activity("stuck"):
        time.sleep(1000)
stuck_here()
"""


def loop(stages: Mapping[str, float] | None = None, *, until: int = -1, then: str = "", service: str = "llm") -> str:
    """Return a script that makes steps until one, and does something then; without end if ``until`` is not given."""
    names = {"SERVICE": service, "STAGES": dict(stages or {}), "UNTIL": until, "THEN": then}
    return "".join(f"{name} = {value!r}\n" for name, value in names.items()) + _LOOP


class Note(NamedTuple):
    step: int
    set_s: float
    loss: float
    data_s: float


class Job(NamedTuple):
    process: Process
    folder: Path

    @property
    def notes(self) -> list[Note]:
        text = (self.folder / "notes.jsonl").read_text(encoding="utf-8")
        return [Note(*json.loads(each)) for each in text[: text.rfind("\n") + 1].splitlines()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)


@contextmanager
def jobs(folder: Path, *scripts: str, env: Callable[[int], Mapping[str, str]] = lambda _: {}) -> Iterator[list[Job]]:
    with ExitStack() as stack:
        found = []
        for number, script in enumerate(scripts):
            own = folder / f"job{number}-{time.monotonic_ns()}"
            own.mkdir()
            path = write_script(own, with_patience(script, SHORT))
            process = stack.enter_context(started(own, path, env=env(number)))
            found.append(Job(process, own))
        for each in found:
            wait_until_ready(each.process)
        yield found


@contextmanager
def ranks(folder: Path, *scripts: str, **env: str) -> Iterator[list[Job]]:
    size = {"WORLD_SIZE": f"{len(scripts)}", "TORCHELASTIC_RUN_ID": "run-7", **env}
    with jobs(folder, *scripts, env=lambda rank: {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", **size}) as found:
        yield found


class Console:
    """Runs the command ``monitel``."""

    def __call__(self, *arguments: object, status: int = 0, env: Mapping[str, str] | None = None) -> Printed:
        """Return what a command prints, which must have this status; it runs in this process."""
        with patch.dict(os.environ, env or {}):
            printed = command(*arguments)
        assert status == printed.status, printed.stderr
        assert "Traceback" not in printed.stderr
        return printed

    def json(self, *arguments: object) -> Any:
        """Return what a command prints with ``--json``, which must be JSON by the standard."""
        return json.loads(self(*arguments, "--json").stdout, parse_constant=pytest.fail)

    def compare(self, *names: str, spool_dir: str = "spool") -> list[dict[str, Any]]:
        """Return the runs of ``monitel compare``, each with its values by name."""
        runs = self.json("compare", *names, "--spool-dir", spool_dir)["runs"]
        return [{**each, "values": {value["name"]: value["value"] for value in each["values"]}} for each in runs]

    def top(self, *arguments: object, env: Mapping[str, str] | None = None) -> str:
        return self("top", "--once", "--interval", "0.1", *arguments, env=env).stdout

    def rows(self, *arguments: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("top", "--once", "--interval", "0.1", *arguments)
        return found

    def until(self, expected: Callable[[Any], object], *arguments: object) -> Any:
        return wait_for(lambda: self.json(*arguments), expected)

    @contextmanager
    def watching(self, *targets: object) -> Iterator[Callable[[Callable[[dict[Any, Any]], object]], dict[Any, Any]]]:
        """Run ``monitel top --json``; yield a function that returns the first look, by rank, that is as expected."""
        with started(Path.cwd(), *MONITEL, "top", *targets, "--json", "--interval", "0.2") as process:

            def look() -> dict[Any, Any]:
                return {row["rank"]: row for row in json.loads(read_line(process))}

            yield lambda expected: wait_for(look, lambda rows: rows and expected(rows))
