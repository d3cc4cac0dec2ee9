"""Spans of processes that fork, and of several ranks: each range is exported once."""

from collections import Counter
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

from tests.processes.patience import with_patience
from tests.support.receiver import Receiver
from tests.support.scripts import Run, finish, started, write_script

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


RANKS, STEPS = 3, 2
STEP_TRACES = f"""\
from monitel.profiler import record_function

with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", spans={{"step_traces": True}}):
    for step in range({STEPS}):
        monitel.set_step(step)
        with record_function("forward"):
            for layer in range(2):
                with record_function("layer"):
                    pass
        with record_function("all_reduce"):
            monitel.emit("reduced")
"""


def test_ranks_share_one_trace_for_each_step_and_no_series(receiver: Receiver, tmp_path: Path) -> None:
    """Rank 0 exports the root, each rank a subtree, without communication; each process is another instance."""
    path = write_script(tmp_path, with_patience(STEP_TRACES))
    environment = {"WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": "run-7"}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started(tmp_path, path, receiver.url, env={**environment, "RANK": str(rank)}))
            for rank in range(RANKS)
        ]
        assert [0] * RANKS == [finish(process).status for process in processes]
    spans = receiver.spans()
    for step in range(STEPS):
        trace_id = blake2b(f"run-7\0{0}\0{step}".encode(), digest_size=16).hexdigest()
        own = [span for span in spans if span.trace_id == trace_id]
        names = {span.span_id: (span.name, span.resource["training.rank"]) for span in own}
        assert 1 + RANKS * 5 == len(own) == len(names)
        assert {step} == {span.attributes["training.step"] for span in own}
        expected: dict[tuple[object, ...], int] = {("training.step", 0, None): 1}
        for rank in range(RANKS):
            expected |= {("training.rank", rank, ("training.step", 0)): 1}
            expected |= {(name, rank, ("training.rank", rank)): 1 for name in ("forward", "all_reduce")}
            expected |= {("layer", rank, ("forward", rank)): 2}
        assert expected == Counter((*names[span.span_id], names.get(span.parent_id)) for span in own)
    reduced = [span.span_id for span in spans if span.name == "all_reduce"]
    assert sorted(reduced) == sorted(record.span_id for record in receiver.records("reduced"))
    assert RANKS == len({span.resource["service.instance.id"] for span in spans})
    series = {(p.resource["service.instance.id"], p.resource["training.rank"]) for p in receiver.all_points()}
    assert RANKS == len(series)
