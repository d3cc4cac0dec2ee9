"""Forked children: each has an account and spans from its first item on, of any kind and in any thread."""

from tests.support.receiver import Receiver
from tests.support.scripts import Run

CHILD = """\
import json
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600,
                                  spans={"budget": 1}, logging_level="WARNING")
monitel.emit("parent")
def account(signal):
    found = pipeline.account()[signal]
    return [found.recorded, found.delivered, found.folded, dict(found.dropped)]
"""


def test_threads_of_a_forked_child_share_one_account(receiver: Receiver, train: Run) -> None:
    """Threads that record the child's first items concurrently create one engine."""
    script = """\
import threading
sys.setswitchinterval(1e-6)
for _ in range(5):
    if os.fork() == 0:
        barrier = threading.Barrier(4)
        def emit():
            barrier.wait()
            for _ in range(5):
                monitel.emit("child")
        threads = [threading.Thread(target=emit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        complete = pipeline.shutdown(10)
        assert (complete, account("logs")) == (True, [20, 20, 0, {}]), account("logs")
        os._exit(0)
    assert 0 == os.wait()[1]
"""
    train(CHILD + script, receiver.url)
    assert 100 == len([record for record in receiver.records() if record.name == "child"])


BEGIN = """\
import logging
from monitel.profiler import record_function

pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, OPTIONS)
"""
SPANS = BEGIN.replace("OPTIONS", "spans=True, logging_level='WARNING'")


def test_forked_child_exports_its_ranges_and_log_records(receiver: Receiver, train: Run) -> None:
    """The child is a separate instance with separate traces; the parent exports the parent's ranges once.

    The first log record starts the child's pipeline, as an event does.
    """
    script = """\
with record_function("before"):
    logging.warning("parent")
with record_function("around"):
    pid = os.fork()
    if pid == 0:
        logging.warning("child")
        with record_function("child"), record_function("child.inner"):
            pass
        sys.exit()
    else:
        _, status = os.waitpid(pid, 0)
        assert status == 0
        if os.fork() == 0:
            sys.exit()  # without a range: it sends nothing, and prints no last line
        os.wait()
        with record_function("parent"):
            pass
"""
    ended = train(SPANS + script, receiver.url)
    expected = {"before": "", "around": "", "child": "", "child.inner": "child", "parent": "around"}
    assert expected == receiver.parents()
    assert ["child", "parent"] == sorted(str(record.body) for record in receiver.records())
    instances = {span.name: span.resource["service.instance.id"] for span in receiver.spans()}
    assert instances["child"] == instances["child.inner"] != instances["parent"] == instances["before"]
    assert 2 == len({span.resource["process.pid"] for span in receiver.spans()})
    assert ended.stderr.count("monitel: exported ") <= 2


def test_forked_child_has_no_steps(receiver: Receiver, train: Run) -> None:
    """The child inherits an outdated step, so neither sampling nor step traces use it; all ids are unique."""
    script = """\
monitel.set_step(7)
with record_function("step"):
    pass
if os.fork() == 0:
    with record_function("child"):
        pass
    sys.exit()
os.wait()
"""
    train(BEGIN.replace("OPTIONS", "spans={'step_traces': True, 'steps': 10}") + script, receiver.url)
    assert {"child": ""} == receiver.parents()
