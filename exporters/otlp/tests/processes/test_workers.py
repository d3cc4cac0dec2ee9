"""Workers of a data loader, and forks at the worst of times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .spools import folders

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Run
    from .receiver import Receiver

CHILDREN = 20

STRESS = f"""\
import signal
signal.alarm(50)  # children inherit no alarm: each sets its own
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.002)
busy = monitel.stat("busy", [COUNT], 0.001)
loss = Stat("loss", [COUNT], 60.0)
children = []
for _ in range({CHILDREN}):
    for number in range(50):
        busy.add(1)
        monitel.emit("parent")
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        loss.add(1)
        loss.flush()
        assert pipeline.force_flush(20)
        sys.exit()
    children.append(pid)
statuses = [os.waitpid(pid, 0)[1] for pid in children]
assert statuses == [0] * {CHILDREN}, statuses
"""


def test_forks_in_the_middle_of_exports(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """The parent exports every few milliseconds: no child hangs, nothing is missing, nothing is sent twice."""
    train(STRESS, receiver.url)
    points = receiver.points("loss.count")
    assert [1] * CHILDREN == [point.value for point in points]
    assert CHILDREN == len({point.resource["service.instance.id"] for point in points})
    assert CHILDREN * 50 == len(receiver.records("parent"))
    assert CHILDREN * 50 == receiver.values("busy.count")[-1]
    assert 1 == len({point.resource["service.instance.id"] for point in receiver.points("busy.count")})
    assert [] == folders(tmp_path)


LOADER = """\
from types import ModuleType

worker = None
data = ModuleType("torch.utils.data")
data.get_worker_info = lambda: worker
sys.modules["torch.utils.data"] = data

def load():
    for _ in range(3):
        monitel.emit("sample")
    with monitel.testing.ManualClock() as clock:
        stat = Stat("loss", [COUNT], 60.0)
        stat.add(1)
        clock.advance(60)
        stat.add(1)
        stat.flush()
    assert pipeline.force_flush(10) == (not pipeline.dropped)
    print(pipeline.dropped, flush=True)

def in_a_fork(info):
    global worker
    if os.fork() == 0:
        worker = info
        load()
        sys.exit()
    _, status = os.wait()
    assert status == 0

"""
CONFIGURE = 'pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)\n'
WITH_WORKERS = CONFIGURE.replace("export_interval", "workers=True, export_interval")


def test_what_a_worker_records_is_dropped(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Counted as ``worker`` each, said once a worker; nothing is sent and no folder is made."""
    ended = train(LOADER + CONFIGURE + "in_a_fork(object())\nin_a_fork(object())\n", receiver.url)
    assert "{'worker': 5}\n{'worker': 5}\n" == ended.stdout
    assert 2 == ended.stderr.count("configure(workers=True) exports it")
    assert ([], []) == (receiver.points("loss.count"), receiver.records())
    assert [] == folders(tmp_path)
    assert 1 == ended.stderr.count("monitel: ")


def test_workers_export_when_asked(receiver: Receiver, train: Run) -> None:
    """Each as an instance of its own."""
    ended = train(LOADER + WITH_WORKERS + "in_a_fork(object())\nin_a_fork(object())\n", receiver.url)
    assert "{}\n{}\n" == ended.stdout
    assert 6 == len(receiver.records("sample"))
    assert 2 == len({record.resource["service.instance.id"] for record in receiver.records("sample")})
    assert 2 == len({point.resource["service.instance.id"] for point in receiver.points("loss.count")})


def test_a_fork_that_is_no_worker_exports(receiver: Receiver, train: Run) -> None:
    """That torch is imported makes no process a worker."""
    ended = train(LOADER + CONFIGURE + "in_a_fork(None)\n", receiver.url)
    assert ("{}\n", 3) == (ended.stdout, len(receiver.records("sample")))


def test_a_worker_needs_not_be_forked_by_torch(receiver: Receiver, train: Run) -> None:
    """A process that configures for itself, as a spawned worker may, exports: it has asked to."""
    train(LOADER + "worker = object()\n" + CONFIGURE + "load()\n", receiver.url)
    assert 3 == len(receiver.records("sample"))


OPEN = """\
loss = monitel.stat("loss", [COUNT], 60.0)
if os.fork() == 0:
    loss.add(1)
    sys.exit()
os.wait()
"""


def test_a_child_whose_first_window_closes_at_exit(receiver: Receiver, train: Run) -> None:
    """It has no thread until then, and exports it all the same."""
    ended = train(CONFIGURE + OPEN, receiver.url)
    assert ([1], 0) == (receiver.values("loss.count"), ended.stderr.count("Traceback"))
