"""Forks and exits: each process writes its points once, and ends in time."""

import sys
from pathlib import Path

import pytest
from tests.support.scripts import Ended, Run
from tests.unit.tensorboard.files import LEDGER, read, reader_of, shown

STAT = """
import os, sys, threading, time, monitel, monitel_tensorboard
loss = monitel.Stat("loss", [monitel.SUM], 1e9)
"""
INSTALL = 'installed = monitel_tensorboard.install("runs")\n'


@pytest.fixture
def script(run: Run, tmp_path: Path) -> Run:
    def script(text: str, *, returncode: int = 0) -> Ended:
        path = tmp_path / "script.py"
        path.write_text(STAT + text)
        return run("-W", "ignore", path, returncode=returncode)  # Python 3.12 warns of forks beside threads

    return script  # type: ignore[return-value]  # as Run, with the text of the script


def child_of(folder: Path) -> Path:
    (found,) = (folder / "runs").glob("pid-*")
    return found


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)\n", 3)])
def test_exit_writes_open_windows(script: Run, tmp_path: Path, end: str, status: int) -> None:
    """A script that neither flushes nor uninstalls loses no window; an exit handler may still log.

    The end of the run is a text and no chart. The seconds of the activities add up to the life of the process.
    """
    ended = script(
        f"import atexit\nos.environ['MONITEL_RUN_EVENTS'] = '1'\n{INSTALL}"
        "atexit.register(monitel.emit, 'end', ok=True)\nmonitel.set_step(3)\nloss.add(1)\n"
        f"print(monitel.ledger().elapsed_ns)\n{end}",
        returncode=status,
    )
    assert "" == ended.stderr
    points = read(tmp_path / "runs")
    assert ([(3, 1)], {"loss/sum", "events/end"}) == (points["loss/sum"], {*points})
    tags = reader_of(tmp_path / "runs").Tags()
    assert {"loss/sum"} == {tag for tag in tags["scalars"] if not tag.startswith(LEDGER)}
    assert {"events/run.started", "events/end", "events/run.ended"} == {*tags["tensors"]}
    found = read(tmp_path / "runs", ledger=True)
    times = {f"training.time/{name}" for name in ("startup", "step", "shutdown")}
    assert {*times, "training.goodput"} == set(found)
    assert int(ended.stdout) / 1e9 <= sum(float(found[name][-1][1]) for name in times) * (1 + 1e-6)
    assert {3} == {each[-1][0] for each in found.values()}


#: An installation that ends while another one goes on.
OTHER = "monitel_tensorboard.install('other').uninstall()\n"


@pytest.mark.parametrize("order", ["{}", "monitel_otlp.configure()\n{}", "{}monitel_otlp.configure()\n", "{}" + OTHER])
def test_sigterm_writes_open_windows(script: Run, tmp_path: Path, order: str) -> None:
    """Alone, or where monitel-otlp handles it; the process ends as it would have, and the run as preempted."""
    sent = "import monitel_otlp, signal\nos.environ['MONITEL_RUN_EVENTS'] = '1'\n" + order.format(INSTALL)
    sent += "loss.add(2)\nmonitel.emit('last')\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"
    script(sent, returncode=-15)
    points = read(tmp_path / "runs")
    assert ([(0, 2)], True) == (points["loss/sum"], "events/last" in points)
    texts = reader_of(tmp_path / "runs").Tensors("events/run.ended")
    assert "preempted" in str(texts[-1].tensor_proto.string_val)


def test_sigterm_does_not_wait_for_a_lock_that_it_has_interrupted(script: Run, tmp_path: Path) -> None:
    """An event handler of the application holds it; the process ends, and what was queued is written."""
    sent = INSTALL + "import signal, threading\nlock = threading.Lock()\n"
    sent += "def handle(event):\n    with lock:\n        if event.name == 'last':\n"
    sent += "            os.kill(os.getpid(), signal.SIGTERM)\n            time.sleep(60)\n"
    script(sent + "monitel.register_event_handler(handle)\nmonitel.emit('last')\n", returncode=-15)
    assert "events/last" in read(tmp_path / "runs")


def test_ctrl_c_during_the_exit_does_not_cut_it_short(script: Run, own_boxes: Path) -> None:
    """The signal comes when the record in memory is removed, which would otherwise be that of a killed process."""
    again = "sys.addaudithook(lambda name, _: name == 'os.rename' and os.kill(os.getpid(), 2))\n"
    ended = script(f"{INSTALL}loss.add(1)\n{again}raise KeyboardInterrupt\n", returncode=-2)
    assert (1, []) == (ended.stderr.count("Traceback"), [*own_boxes.glob("[!.]*")])


def test_exit_on_a_hanging_disk_is_bounded(script: Run) -> None:
    """A disk that hangs forever delays the exit by one time limit for all writers, with one warning each."""
    ended = script(
        "from monitel.process import exit\n"
        "from monitel_tensorboard.event_file import EventFile\n"
        "exit.EXIT_TIMEOUT = 1.5\n"
        "EventFile.append = lambda *_: threading.Event().wait()\n"
        "installed = [monitel_tensorboard.install('runs') for _ in range(40)]\n"
        "loss.add(1)\n"
        "print(time.monotonic())\n"
    )
    assert 40 == ended.stderr.count("were dropped, 1 of them by close()")
    assert 1.3 <= ended.exit_s < 40 * 1.5 / 2  # one limit for all, not one for each; LEAST is left


@pytest.mark.parametrize("end", ["os._exit(not installed.uninstall())", "sys.exit()"])
def test_forked_child_writes_to_a_separate_folder(script: Run, tmp_path: Path, end: str) -> None:
    """Parent and child write each of their points once, even those in the queue at the fork; an idle child none."""
    script(f"""
installed = monitel_tensorboard.install("runs", flush_secs=3600)
assert installed.writer.flush()
for step in range(100):
    installed.writer.add_scalar("parent", step, step)
loss.add(1)
pid = os.fork()
if pid == 0:
    installed.writer.add_scalar("child", 1, 1)
    assert installed.writer.flush()
    loss.add(2)
    {end}
assert os.waitpid(pid, 0)[1] == 0
if os.fork() == 0:
    sys.exit()
assert os.wait()[1] == 0
installed.writer.add_scalar("parent", 100, 100)
""")
    assert {
        ".": {"parent": [(step, step) for step in range(101)], "loss/sum": [(0, 1)]},
        child_of(tmp_path).name: {"child": [(1, 1)], "loss/sum": [(0, 2)]},
    } == shown(tmp_path / "runs")


def test_forked_child_closes_the_windows_of_idle_stats(script: Run, tmp_path: Path) -> None:
    """As in the parent, from the child's first event on."""
    script("""
monitel_tensorboard.install("runs", expiry_secs=0.01, flush_secs=0.01)
pid = os.fork()
if pid == 0:
    monitel.emit("child", n=1)
    idle = monitel.Stat("idle", [monitel.SUM], 0.001)
    idle.add(1)
    pause = threading.Event()
    while idle.count:
        pause.wait(0.005)
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
""")
    assert {"events/child", "idle/sum"} == {*read(child_of(tmp_path))}


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="CPython 3.13 may leave a dict locked in a child"
)
def test_forks_while_all_threads_are_busy_do_not_hang(script: Run, tmp_path: Path) -> None:
    """A child has new locks, even if threads of the parent hold them at the fork."""
    script("""
installed = monitel_tensorboard.install("runs", flush_secs=0.0001, expiry_secs=0.0001)
done = threading.Event()
def add():
    while not done.is_set():
        monitel.emit("busy", n=1)
threads = [threading.Thread(target=add) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        monitel.emit("child", n=1)
        os._exit(not installed.uninstall(timeout=60))
    assert os.waitpid(pid, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
""")
    assert 10 == len(list((tmp_path / "runs").glob("pid-*")))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_write_at_exit(script: Run, tmp_path: Path, method: str) -> None:
    """Children that end without atexit, by os._exit, lose no window."""
    script(f"""
import multiprocessing
def train():
    if {method!r} != "fork":
        monitel_tensorboard.install("runs")
    loss.add(2)
if __name__ == "__main__":
    if {method!r} == "fork":
        monitel_tensorboard.install("runs")
    child = multiprocessing.get_context({method!r}).Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
""")
    assert {"loss/sum": [(0, 2)]} == read(child_of(tmp_path) if method == "fork" else tmp_path / "runs")


def test_incomplete_record_is_removed(script: Run, tmp_path: Path) -> None:
    """After a partial write (with RLIMIT_FSIZE) the file can be read, and is continued."""
    script("""
import resource
writer = monitel_tensorboard.SummaryWriter("runs", flush_secs=0.01)
assert writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for step in range(10):
    writer.add_scalar("loss", step, step)
pause = threading.Event()
while writer.failed < 2:
    pause.wait(0.005)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert (writer.close(), writer.dropped) == (True, 0)
""")
    assert 1 == len(list((tmp_path / "runs").iterdir()))
    assert {"loss": [(step, step) for step in range(10)]} == read(tmp_path / "runs")
