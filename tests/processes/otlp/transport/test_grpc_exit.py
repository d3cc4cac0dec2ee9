"""gRPC at the exit of a process, in forked children and in ``replay``: in time, and without unreported losses."""

from pathlib import Path

import grpc
import pytest
import trustme
from tests.processes.patience import with_patience
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.receiver import Receiver
from tests.support.scripts import TRAIN, Run
from tests.support.spools import folders, last_line, spooled

GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


@pytest.fixture(autouse=True)
def no_fork_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts start without the variables that the import of gRPC's transport sets in this process."""
    for variable in ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY"):
        monkeypatch.delenv(variable, raising=False)


FORK = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
loss = monitel.stat("loss", [COUNT], 1e9)
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
def test_forked_child_spools_with_a_warning(grpc_receiver: GrpcReceiver, train: Run, channel: str) -> None:
    """The child spools even if the parent has no connection yet; the parent still delivers."""
    ended = train(FORK, grpc_receiver.url, channel, env=GRPC)
    assert ["parent", "later"] == grpc_receiver.record_names()
    assert [2] == grpc_receiver.values("loss.count")
    assert ([1], ["child"]) == spooled(Path("spool"))
    (folder,) = folders(Path("spool").resolve())
    (warning,) = (line for line in ended.stderr.splitlines() if "forked process" in line)
    assert f"gRPC does not work in a forked process: its telemetry goes to {folder.parent}" == warning
    (goodbye,) = (line for line in ended.stderr.splitlines() if f"replay {folder}" in line)
    assert "2 items in" in goodbye


def test_many_forks_do_not_hang(grpc_receiver: GrpcReceiver, train: Run, tmp_path: Path) -> None:
    """Forks may happen while the delivery thread is inside gRPC."""
    script = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.001)
pids = []
for number in range(6):
    monitel.emit(f"parent {number}")
    pid = os.fork()
    if pid == 0:
        monitel.emit(f"child {number}")
        sys.exit()
    pids.append(pid)
assert [0] * 6 == [os.waitpid(pid, 0)[1] for pid in pids]
"""
    grpc_receiver.rule(lambda _request: GrpcAnswer(delay=0.005))
    # A fork may cost an answer: then a request is sent again after its deadline.
    train(with_patience(script), grpc_receiver.url, env=GRPC)
    names = dict.fromkeys(grpc_receiver.record_names())
    assert [f"parent {number}" for number in range(6)] == [*names]
    assert sorted(f"child {number}" for number in range(6)) == sorted(spooled(tmp_path / "spool")[1])


def test_grpc_is_imported_without_its_fork_handlers(receiver: Receiver, train: Run) -> None:
    """The handlers disturb the calls of the parent. The core of gRPC reads the variable when it is imported."""
    script = """\
class Finder:
    def find_spec(self, name, *_):
        if name == "grpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
sys.meta_path.insert(0, Finder())
"""
    assert "0" == train(script + TRAIN, receiver.url, env=GRPC).stdout.split()[-1]  # others ask whether it is installed


def test_core_of_grpc_prints_no_information(train: Run) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    pair = certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes()
    with GrpcReceiver(credentials=grpc.ssl_server_credentials([pair])) as receiver:
        ended = train(TRAIN, receiver.url, env=GRPC)
    assert "TLS failed" in ended.stderr
    assert "ssl_transport_security" not in ended.stderr


def test_http_does_not_import_grpc(receiver: Receiver, train: Run) -> None:
    """The import of gRPC installs fork handlers in the process."""
    quiet = "print('grpc' in sys.modules, os.environ.get('GRPC_ENABLE_FORK_SUPPORT'))\n"
    assert "False None\n" == train(TRAIN + quiet, receiver.url).stdout


def test_half_a_client_certificate_does_not_end_the_run(train: Run, tmp_path: Path) -> None:
    """With a certificate without its key, gRPC's core would abort the process."""
    authority = trustme.CA()
    authority.issue_cert("trainer@example.org").cert_chain_pems[0].write_to_path(str(tmp_path / "half.pem"))
    script = """\
pipeline = monitel_otlp.configure(endpoint="https://127.0.0.1:9", spool_dir="spool", export_interval=3600.0)
monitel.emit("event")
assert not pipeline.force_flush(0.5)
print("trained")
"""
    ended = train(script, env={**GRPC, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(tmp_path / "half.pem")})
    assert ("trained\n", 1) == (ended.stdout, last_line(ended.stderr).spooled)
