"""Lock of a spool for one process at a time, with flock and with lock files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import finish, started
from tests.support.spools import drain, load, make_request, names, write

from monitel_otlp.spool import lock
from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def without_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not support flock."""

    def flock(_file: object, _operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_spool_works_without_flock(without_flock: None, tmp_path: Path) -> None:
    """A file that identifies the process is the lock; a second user is refused, and no lock file remains."""
    folder = tmp_path / "spool"
    with closing(Spool(folder)) as spool:
        spool.append(make_request(1))
        with pytest.raises(SpoolError, match="is in use by this process"):
            Spool(folder).load()
    assert ["lock", "metrics-000001.spool"] == names(folder)
    with closing(Spool(folder)) as spool:
        spool.load()
        assert [make_request(1)] == drain(spool)
    assert not folder.exists()
    assert lock.lock_support(tmp_path) == "lock files (this file system does not support flock)"


def test_child_that_was_forked_while_a_spool_was_in_use_does_not_keep_it_locked(tmp_path: Path) -> None:
    """A pipeline may deliver the spool of an earlier process while the job starts its workers."""
    read, written = os.pipe()
    spool = Spool(tmp_path / "spool")
    spool.append(make_request(1))
    child = os.fork()
    if not child:
        os.close(written)
        os.read(read, 1)  # the end of the test
        os._exit(0)
    try:
        spool.close()
        assert [make_request(1)] == load(tmp_path / "spool")
    finally:
        os.close(written)
        os.waitpid(child, 0)
        os.close(read)


def owner_of(pid: int) -> lock.Owner:
    """Return a process of this machine."""
    return lock.this_process()._replace(pid=str(pid), start=lock._start_time(str(pid)) or "0")


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_lock_file_of_a_live_process_is_respected(
    without_flock: None, tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    """The spool can be loaded after the process has ended in any way, and its lock file is removed."""
    folder = tmp_path / "spool"
    write(folder, make_request(1))
    other = folder / owner_of(other_process.pid).file_name
    other.touch(0o600)
    for _ in range(2):
        with pytest.raises(SpoolError, match=rf"is in use by process {other_process.pid} on .*remove lock-"):
            Spool(folder).load()
    other_process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other_process.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing
    assert [make_request(1)] == load(folder)
    assert not other.exists()


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({"start": "1"}, True),
        ({"boot": "0" * 32}, True),
        ({"pid": "4194304"}, True),
        ({"boot": "0" * 32, "host": "other"}, False),
        ({"namespace": "1"}, False),
        ({"boot": "", "namespace": "", "host": "other"}, False),
    ],
    ids=str,
)
def test_ended_owner_is_recognized(*, without_flock: None, tmp_path: Path, change: dict[str, str], dead: bool) -> None:
    """A reused process id and a restart are recognized; processes of other hosts and namespaces count as running."""
    folder = tmp_path / "spool"
    write(folder, make_request(1))
    other = folder / owner_of(os.getppid())._replace(**change).file_name
    other.touch(0o600)
    if dead:
        assert [make_request(1)] == load(folder)
    else:
        with pytest.raises(SpoolError, match="is in use by process"):
            Spool(folder).load()
    assert dead != other.exists()


def test_owner_is_recognized_by_its_process_id_without_proc() -> None:
    """Without /proc the process id decides if the host is the same."""
    own = lock.Owner("host", "", "", "1", "0")
    alive = own._replace(pid=str(os.getpid()))
    assert not alive.has_ended(own)
    assert own._replace(pid="4194305").has_ended(own)
    assert not own._replace(pid="4194305", host="other").has_ended(own)


LOCKING = """\
import errno, fcntl, os, sys
from pathlib import Path
from monitel_otlp.spool.spool import Spool, SpoolError

if sys.argv[2] == "without flock":
    def flock(*_):
        raise OSError(errno.ENOSYS, "no flock")
    fcntl.flock = flock
sent = 0
sys.stdin.readline()
while os.path.exists(sys.argv[1]):
    spool = Spool(Path(sys.argv[1]))
    try:
        spool.load()
    except (SpoolError, OSError):
        continue
    for _ in range(3):
        if (request := spool.oldest("metrics")) is not None:
            print(request.created_ns)
            spool.remove_oldest("metrics")
    spool.close()
"""


@pytest.mark.parametrize("support", ["flock", "without flock"])
def test_competing_processes_take_each_request_once(tmp_path: Path, support: str) -> None:
    """Processes lock the folder in turn until one of them removes it."""
    write(tmp_path / "spool", *map(make_request, range(100)))
    with ExitStack() as stack:
        arguments = ("-c", LOCKING, tmp_path / "spool", support)
        processes = [stack.enter_context(started(tmp_path, *arguments)) for _ in range(3)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        found = sorted(int(line) for process in processes for line in finish(process).stdout.split())
    assert list(range(100)) == found
    assert [] == names(tmp_path)


def test_support_for_locks_is_described(tmp_path: Path) -> None:
    """The description is for ``doctor``; nothing remains in the folder."""
    assert lock.lock_support(tmp_path) == "flock"
    assert lock.lock_support(tmp_path / "typo") == "unknown (No such file or directory)"
    assert [] == names(tmp_path)


def test_forked_child_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    """The child closes its copies of the files, and the parent continues."""
    with closing(Spool(tmp_path / "spool")) as spool:
        spool.append(make_request(1))
        pid = os.fork()
        if not pid:
            spool.abandon()
            os._exit(0)
        assert 0 == os.waitpid(pid, 0)[1]
        with pytest.raises(SpoolError, match="is in use"):
            Spool(tmp_path / "spool").load()
        spool.append(make_request(2))
        assert [make_request(1), make_request(2)] == drain(spool)
