"""Jobs where memory is scarce: a full file system for the boxes, and the kernel's OOM killer."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.processes.promises.jobs import replay, running
from tests.support.commands import command
from tests.support.receiver import Receiver
from tests.support.scripts import finish

_GROUPS = Path("/sys/fs/cgroup")
_LIMIT = 120 << 20  # bytes


@contextmanager
def small_memory(boxes: Path, size: str) -> Iterator[None]:
    boxes.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700,uid={os.geteuid()}", "monitel", str(boxes)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this process may not mount a file system: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(boxes)], check=True)


def _fill(boxes: Path) -> None:
    """Write until no byte is free."""
    with (boxes / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


@pytest.mark.parametrize(("size", "killed"), [("256k", False), ("32m", False), ("32m", True)])
def test_full_memory_disturbs_nothing(
    tmp_path: Path, own_boxes: Path, receiver: Receiver, size: str, killed: bool
) -> None:
    """A job goes on, and ends as without a box; a killed one may lose more, and nothing of it arrives twice."""
    with small_memory(own_boxes, size):
        with running(tmp_path, receiver.url) as job:
            job.do("configure()\nfor n in range(100): monitel.emit('left', number=n)")
            _fill(own_boxes)
            job.do("for n in range(100, 2000): monitel.emit('left', number=n, text='x' * 1000)")
            if killed:
                job.kill()
            else:
                assert 0 == finish(job.process).status
        (own_boxes / "filler").unlink()
        if killed:
            command("replay", tmp_path, "--endpoint", receiver.url)
    found = [record.attributes["number"] for record in receiver.records("left")]
    assert sorted({*found}) == found
    assert killed or [*range(2000)] == found


@contextmanager
def small_group(limit: int) -> Iterator[Path]:
    version_1 = (_GROUPS / "memory" / "memory.limit_in_bytes").exists()
    group = (_GROUPS / "memory" if version_1 else _GROUPS) / f"monitel-tests-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this process may not make a cgroup: {error.strerror}")
    try:
        try:
            (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(limit), encoding="utf-8")
        except OSError as error:
            pytest.skip(f"there is no memory controller: {error.strerror}")
        yield group
    finally:
        group.rmdir()


def test_killed_for_its_memory(tmp_path: Path, receiver: Receiver) -> None:
    """The record survives the OOM killer, and the death has its reason; the box does not cause it."""
    with small_group(_LIMIT) as group:
        with running(tmp_path, receiver.url) as job:
            job.do(f"open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\nconfigure()\nmonitel.set_step(5)")
            job.do("for n in range(100): monitel.emit('left', number=n, text='x' * 900)")
            job.send("kept = []\nwhile True: kept.append(b'x' * (1 << 20))")
            job.ended()
        replay(tmp_path / "spool", receiver.url)
    assert [*range(100)] == [record.attributes["number"] for record in receiver.records("left")]
    (died,) = receiver.records("process.died")
    assert 5 == died.attributes["training.step"]
    assert "SIGKILL" == died.attributes["process.exit.signal"]
    assert "out_of_memory" == died.attributes["process.exit.reason"]
