"""Kills at random, and situations in which an earlier form of the record lost, repeated or disturbed something."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.processes.promises.jobs import running
from tests.support.commands import command
from tests.support.paths import ROOT
from tests.support.receiver import Receiver
from tests.support.scripts import CONFIGURE, Run, finish


def test_twenty_kills() -> None:
    """Twenty jobs die within seconds, beside a backend with faults; a thousand do so each night."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.nightly.kills.campaign", "--kills", "20"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "problems: 0" in ended.stdout


CLOSE_ALL = """\
import marshal
from pathlib import Path
import monitel.blackbox.box
from monitel.blackbox.folder import Folder
from monitel.blackbox.record import EVENT
monitel.blackbox.box._RETRY_S = 0.0
root = Path(os.environ["MONITEL_BLACK_BOX_DIR"])
box = monitel.blackbox.box.Box(Path("spool"), root, {}, interval_s=0.05)
box.open()
box.start()
journal, lost = box.journals["logs"], box.folder
def emit(number): journal.append(EVENT, marshal.dumps(number, 2))
def wait_until(holds):
    while not holds(): time.sleep(0.01)
emit(1)
wait_until(lambda: journal._spare is not None)  # no thread opens a file now
os.closerange(3, 256)
files = [open(f"{number}.data", "w+b") for number in range(20)]
emit(2)
wait_until(lambda: box.folder not in {lost, None} and Folder.open(root / box.name).is_locked())
emit(3)
found = []
def deliver():
    items = journal.read()
    if items: journal.settle(items[-1].last, delivered=len(items))
    found.extend(item.value for item in items)
    return len(found) == 3
wait_until(deliver)
print(found, {*(file.read() for file in files)})
assert box.close(5.0)
"""


def test_closed_descriptors_are_not_used_any_more(train: Run) -> None:
    """An application that closes all descriptors, and opens files, keeps its files; the box is made again."""
    assert "[1, 2, 3] {b''}\n" == train(CLOSE_ALL).stdout


@pytest.mark.parametrize(("order", "size"), [("before", 4), ("after", 32)])
def test_limited_file_size_loses_nothing(receiver: Receiver, train: Run, order: str, size: int) -> None:
    """With RLIMIT_FSIZE, items are kept in anonymous memory, and sent though no disk takes them either."""
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({size} << 10, {size} << 10))\n"
    emit = "for number in range(6000): monitel.emit('event', number=number, text='x' * 100)\n"
    script = limit + CONFIGURE if order == "before" else CONFIGURE + limit
    train(script + emit + "monitel.stat('loss').add(0.5)\n", receiver.url)
    assert [*range(6000)] == receiver.numbers("event")
    assert [0.5] == receiver.values("loss.mean")


@contextmanager
def small_memory(boxes: Path, size: str) -> Iterator[None]:
    boxes.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=0700,uid={os.geteuid()}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "monitel", boxes], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", boxes], check=True)


@pytest.mark.parametrize("killed", [False, True])
def test_full_memory_file_system_ends_no_process(own_boxes: Path, receiver: Receiver, killed: bool) -> None:
    """A job goes on, and ends as without a box; a killed one may lose more, and nothing of it arrives twice."""
    with small_memory(own_boxes, "1m"):
        with running(receiver.url) as job:
            job.do("configure()\nfor n in range(100): monitel.emit('event', number=n)")
            with (own_boxes / "filler").open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass
            job.do("for n in range(100, 2000): monitel.emit('event', number=n, text='x' * 1000)")
            if killed:
                job.kill()
            else:
                assert 0 == finish(job.process).status
        (own_boxes / "filler").unlink()
        if killed:
            command("replay", ".", "--endpoint", receiver.url)
    assert sorted({*receiver.numbers("event")}) == receiver.numbers("event")
    assert killed or [*range(2000)] == receiver.numbers("event")
