"""Spans of processes that fork, and of several ranks: each range is exported once."""

from tests.support.receiver import Receiver
from tests.support.scripts import Run

BEGIN = """\
from monitel.profiler import record_function

pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, OPTIONS)
"""
SPANS = BEGIN.replace("OPTIONS", "spans=True")


def test_forked_child_exports_its_ranges(receiver: Receiver, train: Run) -> None:
    """The child is a separate instance with separate traces; the parent exports the parent's ranges once."""
    script = """\
with record_function("before"):
    pass
with record_function("around"):
    pid = os.fork()
    if pid == 0:
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
