"""Jobs where memory is scarce: a full file system for the boxes, and the kernel's OOM killer."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.processes.promises.jobs import replay, running
from tests.support.receiver import Receiver

_GROUPS = Path("/sys/fs/cgroup")
_LIMIT = 120 << 20  # bytes


@contextmanager
def small_group(limit: int) -> Iterator[Path]:
    version_1 = (_GROUPS / "memory" / "memory.limit_in_bytes").exists()
    group = (_GROUPS / "memory" if version_1 else _GROUPS) / f"monitel-tests-{os.getpid()}"
    limits = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
    with ExitStack() as stack:
        try:
            group.mkdir()
            stack.callback(group.rmdir)
            limits.write_text(str(limit), encoding="utf-8")
        except OSError as error:
            pytest.skip(f"this process may not make a cgroup with a limit of memory: {error.strerror}")
        yield group


def test_killed_for_its_memory(receiver: Receiver) -> None:
    """The record survives the OOM killer, and the death has its reason; the box does not cause it."""
    with small_group(_LIMIT) as group:
        with running(receiver.url) as job:
            job.do(f"open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\nconfigure()\nmonitel.set_step(5)")
            job.do("for n in range(100): monitel.emit('left', number=n, text='x' * 900)")
            job.send("kept = []\nwhile True: kept.append(b'x' * (1 << 20))")
            job.ended()
        replay(receiver.url)
    assert [*range(100)] == receiver.numbers("left")
    (died,) = receiver.records("process.died")
    assert 5 == died.attributes["training.step"]
    assert "SIGKILL" == died.attributes["process.exit.signal"]
    assert "out_of_memory" == died.attributes["process.exit.reason"]
