"""Workers of a data loader, and forks during exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.spools import folders

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

CHILDREN = 10  # more of them ask more of the receiver than it can answer on a busy machine

STRESS = f"""\
import signal
signal.alarm(100)  # children inherit no alarm: each sets its own
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
        signal.alarm(90)
        loss.add(1)
        loss.flush()
        assert pipeline.force_flush(80)
        sys.exit()
    children.append(pid)
statuses = [os.waitpid(pid, 0)[1] for pid in children]
assert statuses == [0] * {CHILDREN}, statuses
"""


def test_forks_during_exports(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """If the parent exports every few milliseconds, no child hangs, and each item is sent once."""
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
    assert pipeline.force_flush(60) == (not pipeline.dropped)
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


def test_items_of_a_worker_are_dropped(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """Each item counts with the reason ``worker``, each worker logs one line, and no folder is created."""
    ended = train(LOADER + CONFIGURE + "in_a_fork(object())\nin_a_fork(object())\n", receiver.url)
    assert "{'worker': 5}\n{'worker': 5}\n" == ended.stdout
    assert 2 == ended.stderr.count("use configure(workers=True) to export it")
    assert ([], []) == (receiver.points("loss.count"), receiver.records())
    assert [] == folders(tmp_path)
    assert 1 == ended.stderr.count("monitel: ")


def test_numbers_of_a_worker_are_dropped(receiver: Receiver, train: Run) -> None:
    """Each number counts, and so does the record of the call."""
    script = LOADER + "def load():\n    monitel.log({'loss': 0.5, 'lr': 1})\n    print(pipeline.dropped, flush=True)\n"
    ended = train(script + CONFIGURE + "in_a_fork(object())\n", receiver.url)
    assert "{'worker': 3}\n" == ended.stdout
    assert ([], []) == (receiver.points("loss"), receiver.records())


def test_workers_export_on_request(receiver: Receiver, train: Run) -> None:
    """With ``workers=True`` each worker is a separate instance."""
    ended = train(LOADER + WITH_WORKERS + "in_a_fork(object())\nin_a_fork(object())\n", receiver.url)
    assert "{}\n{}\n" == ended.stdout
    assert 6 == len(receiver.records("sample"))
    assert 2 == len({record.resource["service.instance.id"] for record in receiver.records("sample")})
    assert 2 == len({point.resource["service.instance.id"] for point in receiver.points("loss.count")})


def test_fork_that_is_not_a_worker_exports(receiver: Receiver, train: Run) -> None:
    """An import of torch alone does not make a process a worker."""
    ended = train(LOADER + CONFIGURE + "in_a_fork(None)\n", receiver.url)
    assert ("{}\n", 3) == (ended.stdout, len(receiver.records("sample")))


def test_worker_that_calls_configure_exports(receiver: Receiver, train: Run) -> None:
    """A spawned worker may call ``configure()`` itself."""
    train(LOADER + "worker = object()\n" + CONFIGURE + "load()\n", receiver.url)
    assert 3 == len(receiver.records("sample"))


OPEN = """\
loss = monitel.stat("loss", [COUNT], 60.0)
if os.fork() == 0:
    loss.add(1)
    sys.exit()
os.wait()
"""


def test_child_exports_its_first_window_at_exit(receiver: Receiver, train: Run) -> None:
    """The child has no delivery thread before its first window closes."""
    ended = train(CONFIGURE + OPEN, receiver.url)
    assert ([1], 0) == (receiver.values("loss.count"), ended.stderr.count("Traceback"))
