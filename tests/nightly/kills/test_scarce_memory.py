"""Black boxes where memory is scarce: a full file system, a small cgroup, and the kernel's OOM killer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import pytest
from tests.nightly.kills.batch import run_batch
from tests.support.scripts import write_script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nightly.kills.nursery import Nursery

_GROUPS = Path("/sys/fs/cgroup/memory")  # of version 1
_UNIFIED = Path("/sys/fs/cgroup")
_LIMIT = 120 << 20  # bytes
_LIFE = 1.7  # seconds
_PLAIN: dict[str, Any] = {"forks": "never", "fresh": False, "busy": True, "threads": 2}
_ENDING: dict[str, Any] = {**_PLAIN, "life": _LIFE, "ending": "shutdown", "kill_after": 60.0}
_KILLED: dict[str, Any] = {**_PLAIN, "life": None, "kill_after": _LIFE}


@contextmanager
def small_memory(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory for boxes."""
    boxes = folder / "boxes"
    boxes.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700,uid={os.geteuid()}", "monitel", str(boxes)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this process may not mount a file system: {mounted.stderr.strip()}")
    try:
        yield boxes
    finally:
        subprocess.run(["umount", "-l", str(boxes)], check=True)


def _fill(boxes: Path) -> None:
    """Write until no byte is free."""
    with (boxes / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


@pytest.mark.parametrize("size", ["32m", "256k"])
def test_full_memory_disturbs_nothing(nursery: Nursery, own_boxes: Path, size: str) -> None:
    """A job ends as without a box when its file system fills up; a killed one loses more, and nothing arrives twice."""
    with small_memory(own_boxes, size) as boxes:
        filling = Timer(0.7, _fill, [boxes])
        filling.start()
        own_boxes.chmod(0o700)
        batch = run_batch(nursery, own_boxes, 3, 2, modes=("refuse",), changes=[_ENDING, _KILLED])
        filling.join()
        (boxes / "filler").unlink()
    assert 0 == batch.job(0).death.status
    assert [] == batch.job(0).verdict.problems
    assert -signal.SIGKILL == batch.job(1).death.status
    kept = [each for each in batch.job(1).verdict.problems if "are promised" not in each and "is missing" not in each]
    assert [] == kept
    assert not list(boxes.iterdir())


LOADERS = """\
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset
import monitel, monitel_otlp

class Images(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((128, 1024), float(index))  # half a megabyte, in shared memory

def train():
    pipeline = monitel_otlp.configure(spool_dir=os.path.join(sys.argv[1], str(os.getpid())), export_interval=3600.0)
    for batch in DataLoader(Images(), 2, num_workers=2):
        monitel.log({"mean": float(batch.mean())})
        for _ in range(20):
            monitel.emit("batch", text="x" * 100)
    box = pipeline.engine.box
    assert box.path and not box.problem, box.problem
    assert os.path.dirname(box.path).startswith("/dev/shm/monitel-"), box.path
    pipeline.shutdown()

children = []
for _ in range(8):
    children.append(os.fork())
    if not children[-1]:
        train()
        os._exit(0)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_eight_boxes_leave_room_for_data_loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 64 MB of shared memory of a Docker container suffice for eight boxes and the tensors of all workers."""
    monkeypatch.delenv("MONITEL_BLACK_BOX_DIR")
    mount = 'mount -t tmpfs -o size=64m,mode=1777 shm /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount a file system")
    script = write_script(tmp_path, LOADERS)
    ended = subprocess.run(
        [*command, sys.executable, "-W", "ignore", script, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert 0 == ended.returncode, ended.stderr


@contextmanager
def small_group(limit: int) -> Iterator[Path]:
    """Make a memory cgroup."""
    version_1 = (_GROUPS / "memory.limit_in_bytes").exists()
    group = (_GROUPS if version_1 else _UNIFIED) / f"monitel-tests-{os.getpid()}"
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


def test_killed_for_its_memory(nursery: Nursery, own_boxes: Path) -> None:
    """The box survives the OOM killer, and does not cause it: the job lives until it fills its memory itself."""
    with small_group(_LIMIT) as group:
        job = {**_ENDING, "ending": "out of memory", "cgroup": str(group)}
        batch = run_batch(nursery, own_boxes, 4, 1, modes=("refuse", "stall"), changes=[job])
    assert [] == batch.problems
    job_0 = batch.job(0)
    assert -signal.SIGKILL == job_0.death.status
    assert job_0.death.at_ns - job_0.history.configured_ns > _LIFE * 1e9
    assert 1 == len(job_0.deaths)
