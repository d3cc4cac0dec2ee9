"""Fixtures that make the tests of processes independent of the speed of the machine, and of its terminal.

A process has two seconds for its exit, and for SIGTERM. On a machine whose cores are busy that may be too short for a
delivery: then monitel writes to disk what it had to send, or counts it as dropped, as it promises. Scripts of these
tests therefore have more time, so that what arrives and what is on disk is exact on any machine; see ``patience``.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes.console.jobs import Console
from tests.processes.patience import IN_TIME, LONG, SHORT, with_patience
from tests.support.scripts import Ended, Run, finish, started, wait_until_ready, write_script

Seconds = Callable[[tuple[object, ...], dict[str, Any]], float]
Terminate = Callable[..., Ended]  # type of the fixture ``terminate``


@pytest.fixture(autouse=True)
def wide_terminal(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def seconds_for_exit(request: pytest.FixtureRequest) -> Seconds:
    """Return a function that takes a script's arguments and variables, and returns the time for its exit.

    It is a minute beside a receiver that accepts everything, because the exit ends as soon as that has everything.
    """
    names = {"receiver", "grpc_receiver"} & {*request.fixturenames}
    receivers = [request.getfixturevalue(name) for name in names]

    def seconds(arguments: tuple[object, ...], env: dict[str, Any]) -> float:
        used = " ".join(map(str, [*arguments, *env.values()]))
        return LONG if any(each.url in used and not (each._rules or each._script) for each in receivers) else SHORT

    return seconds


@pytest.fixture
def train(run: Run, tmp_path: Path, seconds_for_exit: Seconds) -> Run:
    def train(script: str, *arguments: object, **options: Any) -> Ended:
        if "monitel_otlp" in script:
            script = with_patience(script, seconds_for_exit(arguments, options.get("env") or {}))
        return run(write_script(tmp_path, script), *arguments, **options)

    return train  # type: ignore[return-value]  # as Run, with a script in front


@pytest.fixture
def terminate(tmp_path: Path, seconds_for_exit: Seconds) -> Terminate:
    """Return a function that sends SIGTERM to a script that has printed ``ready``; the script must end in time."""

    def terminate(script: str, url: str, *, status: int = -signal.SIGTERM, signals: int = 1) -> Ended:
        path = write_script(tmp_path, with_patience(script, seconds_for_exit((url,), {})))
        with started(tmp_path, "-W", "ignore", path, url) as process:  # Python 3.12 warns of forks beside threads
            wait_until_ready(process)
            begin = time.monotonic()
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
            ended = finish(process)
        assert status == ended.status, ended.stderr
        assert ended.at - begin <= IN_TIME
        return ended

    return terminate


@pytest.fixture
def run_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONITEL_RUN_EVENTS")


@pytest.fixture
def console() -> Console:
    return Console()
