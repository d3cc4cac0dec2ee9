"""Forked and spawned processes: items of the parent are exported once, and items of the child are not lost."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import wait_until
from tests.support.scripts import started, write_script
from tests.support.spools import folders, spooled

from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

BEGIN = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
loss = monitel.stat("loss", [COUNT], 60.0)
loss.add(1)
loss.add(1)
monitel.emit("parent")
pipeline.meter_provider.get_meter("mine").create_counter("mine").add(1)
"""


def counts(receiver: Receiver) -> dict[str, list[int | float]]:
    """Return the values of ``loss.count`` by instance."""
    found: dict[str, list[int | float]] = {}
    for point in receiver.points("loss.count"):
        found.setdefault(point.resource["service.instance.id"], []).append(point.value)
    return found


def test_child_without_items_exports_nothing(receiver: Receiver, train: Run) -> None:
    """The child exports no items or instruments of the parent, and prints no last line."""
    child = """\
if os.fork() == 0:
    pipeline.meter_provider.get_meter("mine").create_counter("mine").add(10)
    assert pipeline.force_flush(60)
    sys.exit()
_, status = os.wait()
sys.exit(status)
"""
    ended = train(BEGIN + child, receiver.url)
    assert [[2]] == list(counts(receiver).values())
    assert ["parent"] == receiver.record_names()
    assert {1} == set(receiver.values("mine"))
    assert 1 == len({point.resource["service.instance.id"] for point in receiver.all_points()})
    assert 1 == ended.stderr.count("monitel: exported")


@pytest.mark.parametrize("leave", ["sys.exit()", "pass", "os._exit(0) if pipeline.shutdown() else os._exit(1)"])
def test_child_exports_its_items(receiver: Receiver, train: Run, leave: str) -> None:
    """The child's totals start at zero, and it is a separate instance; the parent exports the parent's items once."""
    child = f"""\
pid = os.fork()
if pid == 0:
    loss.add(1)
    loss.flush()
    monitel.emit("child")
    {leave}
else:
    _, status = os.waitpid(pid, 0)
    assert status == 0
"""
    train(BEGIN + child, receiver.url)
    assert [[1], [2]] == sorted(counts(receiver).values())
    assert ["child", "parent"] == sorted(record.name for record in receiver.records())
    instances = {record.name: record.resource["service.instance.id"] for record in receiver.records()}
    assert instances["parent"] != instances["child"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_deliver_at_their_end(receiver: Receiver, train: Run, method: str) -> None:
    """Such children end without ``atexit``; spawned ones call ``configure()``."""
    script = f"""\
import multiprocessing

def work(url):
    if {method!r} != "fork":
        monitel_otlp.configure(endpoint=url, spool_dir="spool", export_interval=3600.0)
    monitel.stat("loss", [COUNT], 60.0).add(1)
    monitel.emit("child")

if __name__ == "__main__":
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=work, args=[sys.argv[1]]) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    assert [0, 0] == [child.exitcode for child in children]
    monitel.emit("parent")
"""
    train(script, receiver.url)
    assert [[1], [1]] == list(counts(receiver).values())
    assert ["child", "child", "parent"] == sorted(record.name for record in receiver.records())


def test_each_process_has_a_separate_spool(train: Run, tmp_path: Path) -> None:
    """Without a backend child and parent write to different folders."""
    child = """\
if os.fork() == 0:
    loss.add(1)
    monitel.emit("child")
    sys.exit()
os.wait()
"""
    train(BEGIN + child, "http://127.0.0.1:9")
    values, names = spooled(tmp_path / "spool")
    assert ([1, 2], ["child", "parent"]) == (sorted(values), sorted(names))
    assert 2 == len([folder for folder in (tmp_path / "spool").iterdir() if list(folder.glob("*.spool"))])


LIVES_ON = """\
pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=3600.0)
monitel.emit("parent")
assert pipeline.force_flush(60)
if os.fork() == 0:
    open("child", "x").close()  # it has left the lock to the parent
    sys.stdin.read()  # until the end of the test
    os._exit(0)
"""


def test_child_that_lives_on_does_not_lock_the_parents_spool(tmp_path: Path) -> None:
    """The lock of the folder is not inherited, so the parent's spool can be replayed."""
    with started(tmp_path, write_script(tmp_path, LIVES_ON)) as parent:
        assert 0 == parent.wait(60)
        wait_until((tmp_path / "child").exists, "the start of the child")
        (folder,) = folders(tmp_path / "spool")
        with closing(Spool(folder)) as spool:
            spool.load()
            assert ["logs"] == [request.signal for request in spool.requests() if request.items]
