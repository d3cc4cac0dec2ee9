"""gRPC at the exit of a process, in forked children and in ``replay``: in time, and without unreported losses."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode
from tests.support.checks import EXIT, limit
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.hostile import refusing_url, url_of
from tests.support.scripts import HUNG, PRINT_TIME, TRAIN, finish, started, write_script
from tests.support.spools import LastLine, folders, last_line, spooled

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tests.support.inbox import Request
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

pytestmark = pytest.mark.timed

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
    assert pipeline.force_flush(60)  # a request for each
"""
COMMAND = ("-m", "monitel_otlp")
EVENTS = [f"event {number}" for number in range(20)]
POISON = b"event 7"


@pytest.fixture(autouse=True)
def no_fork_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts start without the variable that the import of gRPC's transport sets in this process."""
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)


@pytest.fixture
def unreachable(request: pytest.FixtureRequest, blackhole: socket.socket, grpc_receiver: GrpcReceiver) -> str:
    """The URL of an endpoint that refuses connections, never sends a byte, or never answers a call."""
    if request.param == "hangs":
        grpc_receiver.rule(lambda _request: GrpcAnswer(fault="hang"))
        return grpc_receiver.url
    return url_of(blackhole) if request.param == "blackholed" else refusing_url()


def test_everything_is_delivered_at_exit(grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path) -> None:
    """Open windows are closed and delivered, and nothing remains on disk."""
    ended = train(TRAIN, grpc_receiver.url, env=GRPC)
    assert WINDOWS == grpc_receiver.values("loss.count")
    assert ["checkpoint"] == grpc_receiver.record_names()
    assert LastLine(11, 1, None, None, None, None) == last_line(ended.stderr)
    assert [] == list(tmp_path.rglob("*.spool"))


@pytest.mark.parametrize("unreachable", ["refused", "blackholed", "hangs"], indirect=True)
def test_unreachable_endpoint_delays_the_exit_by_at_most_two_seconds(
    unreachable: str, train: Run, tmp_path: Path
) -> None:
    """Everything is in the spool; the last line has the number of items, the folder and the command for replay."""
    ended = train(TRAIN + PRINT_TIME, unreachable, env=GRPC, timeout=20)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert (WINDOWS, ["checkpoint"]) == spooled(tmp_path / "spool")
    (folder,) = (tmp_path / "spool").iterdir()
    command = f"monitel replay {folder}"
    assert LastLine(0, 0, None, 12, str(folder), command) == last_line(ended.stderr)


def test_items_recorded_while_a_call_hangs_are_spooled(grpc_receiver: GrpcReceiver, tmp_path: Path) -> None:
    """If the delivery thread is inside gRPC at the exit, the process still ends in time and with status 0."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(fault="hang"))
    script = write_script(tmp_path, HUNG + PRINT_TIME)
    with started(tmp_path, script, grpc_receiver.url, env=GRPC) as process:
        grpc_receiver.wait_until(lambda: grpc_receiver.requests)
        ended = finish(process, "\n", timeout=20)
    assert 0 == ended.status, ended.stderr
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert (WINDOWS, ["before", "after"]) == spooled(tmp_path / "spool")
    assert 13 == last_line(ended.stderr).spooled


def test_retry_info_does_not_delay_the_exit(grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path) -> None:
    """If the backend asks for a pause of an hour, everything is spooled within two seconds."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(code=StatusCode.UNAVAILABLE, retry_delay=3600))
    ended = train(TRAIN + PRINT_TIME, grpc_receiver.url, env=GRPC)
    assert ended.at - float(ended.stdout) < limit(EXIT)
    assert (WINDOWS, ["checkpoint"]) == spooled(tmp_path / "spool")


FORK = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
loss = monitel.stat("loss", [COUNT], 60.0)
for _ in range(2):
    loss.add(1)
monitel.emit("parent")
if sys.argv[2] == "used":
    assert pipeline.force_flush(60)
pid = os.fork()
if pid == 0:
    loss.add(1)
    loss.flush()
    monitel.emit("child")
    assert pipeline.force_flush(60)
    sys.exit()
_, status = os.waitpid(pid, 0)
assert status == 0
monitel.emit("later")
"""


@pytest.mark.parametrize("channel", ["unused", "used"])
def test_forked_child_spools_with_a_warning(
    grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path, channel: str
) -> None:
    """The child spools even if the parent has no connection yet; the parent still delivers."""
    ended = train(FORK, grpc_receiver.url, channel, env=GRPC)
    assert ["parent", "later"] == grpc_receiver.record_names()
    assert [2] == grpc_receiver.values("loss.count")
    assert ([1], ["child"]) == spooled(tmp_path / "spool")
    (folder,) = folders(tmp_path / "spool")
    (warning,) = (line for line in ended.stderr.splitlines() if "forked process" in line)
    assert "gRPC does not work" in warning
    assert str(folder) in warning
    (goodbye,) = (line for line in ended.stderr.splitlines() if f"replay {folder}" in line)
    assert "2 items in" in goodbye


def test_many_forks_do_not_hang(grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path) -> None:
    """Forks may happen while the delivery thread is inside gRPC."""
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
    assert [f"parent {number}" for number in range(20)] == grpc_receiver.record_names()
    assert sorted(f"child {number}" for number in range(20)) == sorted(spooled(tmp_path / "spool")[1])


def test_http_does_not_import_grpc(receiver: Receiver, train: Run) -> None:
    """The import of gRPC installs fork handlers in the process."""
    quiet = "print('grpc' in sys.modules, os.environ.get('GRPC_ENABLE_FORK_SUPPORT'))\n"
    assert "False None\n" == train(TRAIN + quiet, receiver.url).stdout


@pytest.fixture
def runs(train: Run, tmp_path: Path) -> Path:
    """A folder with the spool of a run without a backend: 20 windows, 20 events and 20 spans."""
    train(OFFLINE)
    return tmp_path / "runs"


def test_replay_delivers_over_grpc(grpc_receiver: GrpcReceiver, run: Run, runs: Path) -> None:
    """The protocol may be set by an option or by the variable, and delivered requests are removed."""
    again = shutil.copytree(runs, runs.parent / "again")
    ended = run(*COMMAND, "replay", runs, "--protocol", "grpc", "--endpoint", grpc_receiver.url, "--header", "A=b")
    assert (EVENTS, 20) == (grpc_receiver.record_names(), len(grpc_receiver.spans()))
    assert list(range(1, 21)) == grpc_receiver.values("loss.count")
    assert {"b"} == {request.headers["a"] for request in grpc_receiver.requests}
    assert "delivered 60 items from 1 spool" == ended.stdout.splitlines()[-1]
    assert [] == folders(runs)
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": grpc_receiver.address, "OTEL_EXPORTER_OTLP_INSECURE": "true"}
    run(*COMMAND, "replay", again, env={**GRPC, **address})
    assert EVENTS * 2 == grpc_receiver.record_names()


def test_replay_over_grpc_stops_at_a_refusal(grpc_receiver: GrpcReceiver, run: Run, runs: Path) -> None:
    """One line has the reason, the remaining requests stay, and the next replay resumes there."""

    def refuse(request: Request) -> GrpcAnswer | None:
        return GrpcAnswer(code=StatusCode.UNAUTHENTICATED) if POISON in request.body else None

    command = (*COMMAND, "replay", runs, "--protocol", "grpc", "--endpoint", grpc_receiver.url)
    grpc_receiver.rule(refuse)
    ended = run(*command, returncode=1)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("monitel: ")]
    assert 1 == len([line for line in lines if "UNAUTHENTICATED" in line and "run this command again" in line])
    assert (EVENTS[:7], EVENTS[7:]) == (grpc_receiver.record_names(), spooled(runs)[1])
    grpc_receiver.forget_rules()
    run(*command)
    assert EVENTS == grpc_receiver.record_names()
