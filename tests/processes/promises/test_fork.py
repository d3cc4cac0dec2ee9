"""Forks, multiprocessing, workers of a data loader, and exec: nothing counts twice, and nothing is lost."""

from collections import Counter
from pathlib import Path

import pytest
from tests.processes.patience import with_patience
from tests.processes.promises.jobs import replay
from tests.support.checks import wait_until
from tests.support.inbox import TEMPORALITY
from tests.support.receiver import Receiver
from tests.support.scripts import CONFIGURE, Run, finish, started, write_script
from tests.support.series import increase, of_parent_and_child
from tests.support.spools import folders

BEGIN = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
loss = monitel.stat("loss", [COUNT], 1e9)
loss.add(1)
loss.add(1)
monitel.emit("parent")
pipeline.meter_provider.get_meter("mine").create_counter("mine").add(1)
"""


def counts(receiver: Receiver) -> dict[str, list[int | float]]:
    found: dict[str, list[int | float]] = {}
    for point in receiver.points("loss.count"):
        found.setdefault(point.resource["service.instance.id"], []).append(point.value)
    return found


def test_child_without_items_exports_nothing(receiver: Receiver, train: Run) -> None:
    """No item or instrument of the parent, no line at its end, and an account at zero."""
    child = """\
if os.fork() == 0:
    pipeline.meter_provider.get_meter("mine").create_counter("mine").add(10)
    pipeline.logger_provider.get_logger("mine").emit(event_name="mine")
    pipeline.tracer_provider.get_tracer("mine").start_span("mine").end()
    for provider in (pipeline.meter_provider, pipeline.logger_provider, pipeline.tracer_provider):
        provider.force_flush()
    assert pipeline.force_flush(60)
    assert not any(each.recorded for each in pipeline.account().values())
    sys.exit()
sys.exit(os.wait()[1])
"""
    ended = train(BEGIN + child, receiver.url)
    assert ([[2]], ["parent"]) == ([*counts(receiver).values()], receiver.record_names())
    assert ({1}, []) == ({*receiver.values("mine")}, receiver.spans())
    assert 1 == len({point.resource["service.instance.id"] for point in receiver.all_points()})
    assert 1 == ended.stderr.count("monitel: exported")


def test_child_that_configures_again_continues_its_totals(receiver: Receiver, train: Run) -> None:
    """The child is one instance, before and after: a sum over instances has no sample twice."""
    child = """\
if os.fork() == 0:
    things = monitel.counter("things")
    things.add(5)
    loss.add(1)
    loss.flush()
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
    things.add(1)
    loss.add(1)
    sys.exit()
sys.exit(os.wait()[1])
"""
    train(BEGIN + child, receiver.url)
    points = receiver.points("things")
    assert (6, 1) == (points[-1].value, len({point.resource["service.instance.id"] for point in points}))
    assert [[2], [1, 1]] == sorted(counts(receiver).values(), key=len)


def test_child_delivers_what_a_killed_one_has_left(receiver: Receiver, train: Run) -> None:
    """A server that lives for months replaces its children, and their records take memory. One may be looked at."""
    children = """\
import fcntl, struct
from pathlib import Path
from monitel_otlp.export import collector
collector._LOOK_S = 2.0
if not (first := os.fork()):
    monitel.emit("left")
    os.kill(os.getpid(), 9)
os.waitpid(first, 0)
(box,) = Path(os.environ["MONITEL_BLACK_BOX_DIR"]).glob(f"*-{first}-*")
lock = (box / "lock").open("r+")
fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
if not (second := os.fork()):
    monitel.emit("next")
    until = time.monotonic() + 30.0
    while (box.exists() or list(Path("spool").glob(f"*-{first}-*"))) and time.monotonic() < until:
        time.sleep(0.01)
    os._exit(not pipeline.shutdown())
time.sleep(0.2)
fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_UNLCK, 0, 0, 1, 0))
sys.exit(os.waitpid(second, 0)[1])
"""
    train(BEGIN + children, receiver.url)
    assert {"left": 1, "process.died": 1}.items() <= Counter(receiver.record_names()).items()


@pytest.mark.parametrize("leave", ["sys.exit()", "pass", "os._exit(not pipeline.shutdown())"])
def test_child_exports_its_items(receiver: Receiver, train: Run, leave: str) -> None:
    """Its totals and traces are its own, and it is another instance; the parent exports the parent's items once."""
    child = f"""\
import logging
from monitel.profiler import record_function
with record_function("around"):
    pid = os.fork()
    if pid == 0:
        loss.add(1)
        loss.flush()
        logging.error("child")
        with record_function("child"), record_function("child.inner"):
            pass
        {leave}
    else:
        assert os.waitpid(pid, 0)[1] == 0
        print(os.getpid(), pid)
"""
    ended = train(BEGIN.replace("0.05", "0.05, spans=True, logging_level='ERROR'") + child, receiver.url)
    assert [[1], [2]] == sorted(counts(receiver).values())
    assert {"around": "", "child": "", "child.inner": "child"} == receiver.parents()
    resources = {record.name or record.body: record.resource for record in receiver.records()}
    resources |= {span.name: span.resource for span in receiver.spans()}
    assert (2, {"parent", "around", "child", "child.inner"}) == (len(receiver.records()), {*resources})
    pids = {name: each["process.pid"] for name, each in resources.items()}
    assert f"{pids['parent']} {pids['child']}" in ended.stdout
    instances = {name: each["service.instance.id"] for name, each in resources.items()}
    assert instances["child"] == instances["child.inner"] != instances["parent"] == instances["around"]
    assert 1 == len({each["host.name"] for each in resources.values()})


def test_forked_child_has_no_steps(receiver: Receiver, train: Run) -> None:
    """The child inherits an outdated step, so neither sampling nor step traces use it; all ids are unique."""
    script = """\
from monitel.profiler import record_function
monitel.set_step(7)
with record_function("step"):
    pass
if os.fork() == 0:
    with record_function("child"):
        pass
    sys.exit()
os.wait()
"""
    configure = CONFIGURE.replace("export_interval", "spans={'step_traces': True, 'steps': 10}, export_interval")
    train(configure + script, receiver.url)
    assert {"child": ""} == receiver.parents()


def test_threads_of_a_forked_child_share_one_account(receiver: Receiver, train: Run) -> None:
    """Threads that record the child's first items concurrently create one engine."""
    script = """\
import threading
from concurrent.futures import ThreadPoolExecutor
monitel.emit("parent")
sys.setswitchinterval(1e-6)
for _ in range(5):
    if os.fork() == 0:
        barrier = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(lambda: (barrier.wait(), [monitel.emit("child") for _ in range(5)]))
        assert pipeline.shutdown(10)
        found = pipeline.account()["logs"]
        assert (20, 20, 0, {}) == (found.recorded, found.delivered, found.folded, dict(found.dropped)), found
        os._exit(0)
    assert 0 == os.wait()[1]
"""
    train(CONFIGURE + script, receiver.url)
    assert 100 == len(receiver.records("child"))


COUNT = """\
loss, samples, waiting = Stat("loss", [COUNT], 1e9), monitel.counter("samples"), monitel.WaitCounter("loading")
def count(number):
    samples.add(number)
    for _ in range(number):
        loss.add(1)
        with waiting.guard(): pass
count(100)
monitel.flush()
pipeline.force_flush(60)
"""


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_totals_of_a_child_start_at_zero(receiver: Receiver, train: Run, temporality: str) -> None:
    """Counters, waits and Stats of a child that emits nothing; its series have a later start."""
    child = """\
if os.fork() == 0:
    count(7)
    sys.exit()
os.wait()
count(1)
"""
    train(CONFIGURE + COUNT + child, receiver.url, env={TEMPORALITY: temporality})
    for metric in ("samples", "loading.wait.count", "loss.count"):
        parent, child_points = of_parent_and_child(receiver.points(metric))
        assert child_points[0].start_ns > parent[0].start_ns
        if temporality == "cumulative":
            assert (101, {7}) == (parent[-1].value, {point.value for point in child_points}), metric
            assert 108 == increase(receiver, metric)
        else:
            assert (101, 7) == (sum(point.value for point in parent), sum(point.value for point in child_points)), (
                metric
            )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_deliver_at_their_end(receiver: Receiver, train: Run, method: str) -> None:
    """A child, as a worker of a pool, ends without ``atexit``, but by a return, an exception or ``sys.exit()``.

    Spawned ones call ``configure()``.
    """
    script = f"""\
import multiprocessing

def work(url, how):
    if {method!r} != "fork":
        monitel_otlp.configure(endpoint=url, spool_dir="spool", export_interval=3600.0)
    monitel.stat("loss", [COUNT], 1e9).add(1)
    monitel.counter("samples").add(5)
    monitel.emit("child")
    if how == "raise": raise ValueError("why")
    if how == "exit": sys.exit(3)

if __name__ == "__main__":
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=work, args=[sys.argv[1], how]) for how in ("return", "raise", "exit")]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [0, 1, 3] == [child.exitcode for child in children]
    monitel.emit("parent")
"""
    train(script, receiver.url)
    assert [[1], [1], [1]] == [*counts(receiver).values()]
    assert 15 == increase(receiver, "samples")
    assert [*3 * ["child"], "parent"] == sorted(receiver.record_names())


def test_fork_beside_a_callback_that_hangs_does_not_wait(receiver: Receiver, train: Run) -> None:
    """The callback of an instrument, in the thread that collects."""
    script = """\
import threading
entered = threading.Event()
def hang(_options):
    entered.set()
    threading.Event().wait()
pipeline.meter_provider.get_meter("mine").create_observable_gauge("hangs", [hang])
threading.Thread(target=pipeline.force_flush, daemon=True).start()
entered.wait()
begun = time.monotonic()
if os.fork() == 0: os._exit(0)
took = time.monotonic() - begun
os._exit(os.waitstatus_to_exitcode(os.wait()[1]) or took > 5)
"""
    train(CONFIGURE + script, receiver.url, timeout=60)


LIVES_ON = """\
pipeline = monitel_otlp.configure(spool_dir="spool", export_interval=3600.0)
monitel.emit("parent")
assert pipeline.force_flush(60)
if os.fork() == 0:
    open("child", "x").close()  # it has left the lock to the parent
    sys.stdin.read()  # until the end of the test
    os._exit(0)
"""


def test_child_that_lives_on_does_not_lock_the_parents_spool(receiver: Receiver, tmp_path: Path) -> None:
    """The spool can be delivered while the child runs."""
    with started(tmp_path, write_script(tmp_path, LIVES_ON)) as parent:
        assert 0 == parent.wait(60)
        wait_until((tmp_path / "child").exists, "the start of the child")
        replay(receiver.url)
        assert ["parent"] == receiver.record_names()


LOADER = """\
import logging
from types import ModuleType
from monitel.profiler import record_function

worker = None
data = ModuleType("torch.utils.data")
data.get_worker_info = lambda: worker
sys.modules["torch.utils.data"] = data

def load():
    for _ in range(3):
        monitel.emit("sample")
    stat = Stat("loss", [COUNT], 1e9)
    stat.add(1)
    stat.flush()
    monitel.log({'accuracy': 0.5})
    logging.getLogger().error("record")
    with record_function("range"): pass
    assert pipeline.force_flush(60) == (not pipeline.dropped)
    print(pipeline.dropped, flush=True)

def in_a_fork(info):
    global worker
    if os.fork() == 0:
        worker = info
        load()
        sys.exit()
    assert os.wait()[1] == 0

"""
TWO_WORKERS = "in_a_fork(object())\nin_a_fork(object())\n"


def test_workers_of_a_data_loader_record_nothing_unless_they_are_asked_to(receiver: Receiver, train: Run) -> None:
    """One line in each; another forked child is not a worker. With ``workers=True`` each is an instance."""
    with_all_kinds = CONFIGURE.replace("export_interval", "spans=True, logging_level='ERROR', export_interval")
    ended = train(LOADER + with_all_kinds + TWO_WORKERS, receiver.url)
    assert 2 == ended.stderr.count("use configure(workers=True) to export it")
    assert ([], [], []) == (receiver.points("loss.count"), receiver.records(), receiver.spans())
    assert [] == folders(Path())
    assert "{}\n" == train(LOADER + CONFIGURE + "in_a_fork(None)\n", receiver.url).stdout
    assert 3 == len(receiver.records("sample"))
    with_workers = CONFIGURE.replace("export_interval", "workers=True, export_interval")
    assert 2 * "{}\n" == train(LOADER + with_workers + TWO_WORKERS, receiver.url).stdout
    assert 3 * [3] == [*Counter(each.resource["service.instance.id"] for each in receiver.records("sample")).values()]
    train(LOADER + "worker = object()\n" + CONFIGURE + "load()\n", receiver.url)  # its own configure()
    assert 12 == len(receiver.records("sample"))


def test_forked_child_with_a_pipeline_has_a_run(receiver: Receiver, train: Run) -> None:
    """As ranks that a launcher forks; a child without one does not end its parent's."""
    child = "if os.fork() == 0:\n    monitel.emit('child')\n    {}sys.exit(3)\nos.wait()\n"
    env = {"MONITEL_RUN_EVENTS": "1"}
    train(CONFIGURE + child.format(""), receiver.url, env=env)
    assert ["completed"] == [each.attributes["run.status"] for each in receiver.records("run.ended")]
    train(child.format(CONFIGURE + "    "), receiver.url, env=env)
    assert ["completed", "failed"] == [each.attributes["run.status"] for each in receiver.records("run.ended")]
    assert 2 == len(receiver.records("run.started"))


EXEC = """\
if len(sys.argv) == 2:
    pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
    monitel.emit("before")
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.05)
monitel.emit("after")
sys.stdin.read()
"""


def test_exec_hands_over_to_the_next_pipeline(receiver: Receiver, tmp_path: Path) -> None:
    """A program that replaces itself: its items arrive once, by the pipeline after it, and nothing has died."""
    with started(tmp_path, write_script(tmp_path, with_patience(EXEC)), receiver.url) as process:
        receiver.wait_until(lambda: receiver.records("before"))
        wait_until(lambda: not folders(tmp_path), "the end of the delivery")
        ended = finish(process, "")
    assert 0 == ended.status, ended.stderr
    assert ["after", "before"] == sorted(receiver.record_names())
    (before,), (after,) = receiver.records("before"), receiver.records("after")
    assert before.resource["process.pid"] == after.resource["process.pid"]
    assert before.resource["service.instance.id"] != after.resource["service.instance.id"]
