"""gRPC at the end of a process, in forked children and in ``replay``: in time, and nothing is lost silently."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode

from .conftest import PRELUDE
from .grpc_receiver import GrpcAnswer, GrpcReceiver
from .spools import LastLine, folders, last_line, spooled
from .test_exit import CLOCK, HUNG, TRAIN
from .test_faults import names

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Run
    from .inbox import Request
    from .receiver import Receiver

GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
WINDOWS = list(range(1, 12))
OFFLINE = """\
pipeline = monitel_otlp.configure(spool_dir="runs", export_interval=3600.0)
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT, MEAN], 60.0)
tracer = pipeline.tracer_provider.get_tracer("test")
for number in range(20):
    loss.add(number)
    clock.advance(60)
    with tracer.start_as_current_span("step"):
        monitel.emit(f"event {number}", step=number)
    assert pipeline.force_flush(5)  # a request for each
"""
COMMAND = ("-m", "monitel_otlp")
EVENTS = [f"event {number}" for number in range(20)]
POISON = b"event 7"


@pytest.fixture(autouse=True)
def not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts begin without what importing gRPC's sender has set in this process."""
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)


@pytest.fixture
def unreachable(request: pytest.FixtureRequest, blackhole: socket.socket, grpc_receiver: GrpcReceiver) -> str:
    """The URL of an endpoint that refuses, that never says a word, or that never answers a call."""
    if request.param == "blackholed":
        return f"http://127.0.0.1:{blackhole.getsockname()[1]}"
    if request.param == "hangs":
        grpc_receiver.rule(lambda _request: GrpcAnswer(fault="hang"))
        return grpc_receiver.url
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return f"http://127.0.0.1:{gone.getsockname()[1]}"


def test_everything_is_delivered_at_exit(grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path) -> None:
    """Also the window that is still open; nothing is left on disk."""
    ended = train(TRAIN, grpc_receiver.url, env=GRPC)
    assert WINDOWS == grpc_receiver.values("loss.count")
    assert ["checkpoint"] == names(grpc_receiver)
    assert LastLine(11, 1, None, None, None, None) == last_line(ended.stderr)
    assert [] == list(tmp_path.rglob("*.spool"))


@pytest.mark.parametrize("unreachable", ["refused", "blackholed", "hangs"], indirect=True)
def test_an_unreachable_endpoint_costs_two_seconds_at_most(unreachable: str, train: Run, tmp_path: Path) -> None:
    """Then everything is in the spool, and the last line says how much, where, and how to deliver it."""
    ended = train(TRAIN + CLOCK, unreachable, env=GRPC, timeout=20)
    assert ended.at - float(ended.stdout) <= 2.0
    assert (WINDOWS, ["checkpoint"]) == spooled(tmp_path / "spool")
    (folder,) = (tmp_path / "spool").iterdir()
    command = f"python -m monitel_otlp replay {folder}"
    assert LastLine(0, 0, None, 12, str(folder), command) == last_line(ended.stderr)


def test_what_comes_while_a_call_hangs_is_spooled_too(grpc_receiver: GrpcReceiver, tmp_path: Path) -> None:
    """The delivery thread is inside gRPC when the process ends: it ends all the same, in time, and with status 0."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(fault="hang"))
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + "os.environ['OTEL_EXPORTER_OTLP_PROTOCOL'] = 'grpc'\n" + HUNG + CLOCK)
    arguments = [sys.executable, str(script), grpc_receiver.url]
    with Popen(arguments, cwd=tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        grpc_receiver.wait_until(lambda: grpc_receiver.requests)
        stdout, stderr = process.communicate("\n", timeout=20)
        at = time.monotonic()
    assert 0 == process.returncode, stderr
    assert at - float(stdout) <= 2.0
    assert (WINDOWS, ["before", "after"]) == spooled(tmp_path / "spool")
    assert 13 == last_line(stderr).spooled


def test_a_backend_that_asks_for_an_hour_does_not_get_it(
    grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path
) -> None:
    """The exit is bounded whatever RetryInfo says."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(code=StatusCode.UNAVAILABLE, retry_delay=3600))
    ended = train(TRAIN + CLOCK, grpc_receiver.url, env=GRPC)
    assert ended.at - float(ended.stdout) <= 2.0
    assert (WINDOWS, ["checkpoint"]) == spooled(tmp_path / "spool")


FORK = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
loss = monitel.stat("loss", [COUNT], 60.0)
for _ in range(2):
    loss.add(1)
monitel.emit("parent")
if sys.argv[2] == "used":
    assert pipeline.force_flush(10)
pid = os.fork()
if pid == 0:
    loss.add(1)
    loss.flush()
    monitel.emit("child")
    assert pipeline.force_flush(5)
    sys.exit()
_, status = os.waitpid(pid, 0)
assert status == 0
monitel.emit("later")
"""


@pytest.mark.parametrize("channel", ["unused", "used"])
def test_a_forked_child_spools_and_says_so(
    grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path, channel: str
) -> None:
    """Whether the parent has a connection or not; the parent's own delivery goes on."""
    ended = train(FORK, grpc_receiver.url, channel, env=GRPC)
    assert ["parent", "later"] == names(grpc_receiver)
    assert [2] == grpc_receiver.values("loss.count")
    assert ([1], ["child"]) == spooled(tmp_path / "spool")
    (folder,) = folders(tmp_path / "spool")
    (warning,) = (line for line in ended.stderr.splitlines() if "forked process" in line)
    assert "gRPC does not work" in warning
    assert str(folder) in warning
    (goodbye,) = (line for line in ended.stderr.splitlines() if f"replay {folder}" in line)
    assert "2 in" in goodbye


def test_many_forks_do_not_hang(grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path) -> None:
    """While the delivery thread is inside gRPC most of the time."""
    script = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.001)
pids = []
for number in range(20):
    monitel.emit(f"parent {number}")
    pid = os.fork()
    if pid == 0:
        monitel.emit(f"child {number}")
        sys.exit()
    pids.append(pid)
assert [0] * 20 == [os.waitpid(pid, 0)[1] for pid in pids]
"""
    grpc_receiver.rule(lambda _request: GrpcAnswer(delay=0.005))
    train(script, grpc_receiver.url, env=GRPC)
    assert [f"parent {number}" for number in range(20)] == names(grpc_receiver)
    assert sorted(f"child {number}" for number in range(20)) == sorted(spooled(tmp_path / "spool")[1])


def test_http_alone_does_not_import_grpc(receiver: Receiver, train: Run) -> None:
    """Its import has effects on the process: what it does at a fork is set by then."""
    quiet = "print('grpc' in sys.modules, os.environ.get('GRPC_ENABLE_FORK_SUPPORT'))\n"
    assert "False None\n" == train(TRAIN + quiet, receiver.url).stdout


@pytest.fixture
def runs(train: Run, tmp_path: Path) -> Path:
    """What a run without a backend has left: 20 windows, 20 events, 20 spans."""
    train(OFFLINE)
    return tmp_path / "runs"


def test_replay_delivers_over_grpc(grpc_receiver: GrpcReceiver, run: Run, runs: Path) -> None:
    """By option, and by the variables with an address without a scheme; what was delivered is removed."""
    again = shutil.copytree(runs, runs.parent / "again")
    ended = run(*COMMAND, "replay", runs, "--protocol", "grpc", "--endpoint", grpc_receiver.url, "--header", "A=b")
    assert (EVENTS, 20) == (names(grpc_receiver), len(grpc_receiver.spans()))
    assert list(range(1, 21)) == grpc_receiver.values("loss.count")
    assert {"b"} == {request.headers["a"] for request in grpc_receiver.requests}
    assert "delivered 60 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert [] == folders(runs)
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": grpc_receiver.address, "OTEL_EXPORTER_OTLP_INSECURE": "true"}
    run(*COMMAND, "replay", again, env={**GRPC, **address})
    assert EVENTS * 2 == names(grpc_receiver)


def test_replay_over_grpc_stops_where_it_is_refused(grpc_receiver: GrpcReceiver, run: Run, runs: Path) -> None:
    """It says why in one line, keeps the rest, and goes on from there the next time."""

    def refuse(request: Request) -> GrpcAnswer | None:
        return GrpcAnswer(code=StatusCode.UNAUTHENTICATED) if POISON in request.body else None

    command = (*COMMAND, "replay", runs, "--protocol", "grpc", "--endpoint", grpc_receiver.url)
    grpc_receiver.rule(refuse)
    ended = run(*command, returncode=1)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("monitel_otlp: ")]
    assert 1 == len([line for line in lines if "UNAUTHENTICATED" in line and "run this again" in line])
    assert (EVENTS[:7], EVENTS[7:]) == (names(grpc_receiver), spooled(runs)[1])
    grpc_receiver.forget_rules()
    run(*command)
    assert EVENTS == names(grpc_receiver)
