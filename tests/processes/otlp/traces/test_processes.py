"""Spans of processes that fork, exit or receive SIGTERM: each range is exported once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.spools import folders

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run, Terminate

BEGIN = """\
from monitel.profiler import record_function

pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, {})
"""
SPANS = BEGIN.format("spans=True")


@pytest.mark.parametrize("leave", ["pass", "sys.exit()", "raise SystemExit"])
def test_everything_is_delivered_at_exit(receiver: Receiver, train: Run, tmp_path: Path, leave: str) -> None:
    """Ranges that an exception or the exit ends are complete, and the summary counts the spans."""
    script = f"""\
monitel.set_step(1)
with record_function("step"), record_function("forward"):
    {leave}
"""
    ended = train(SPANS + script, receiver.url)
    assert {"step": "", "forward": "step"} == receiver.parents()
    assert not any("monitel.unfinished" in span.attributes for span in receiver.spans())
    summary, ledger = ended.stderr.splitlines()
    assert "monitel: exported 0 windows and numbers, 0 events, 2 spans" == summary
    assert ledger.startswith("monitel ledger: ")
    assert [] == folders(tmp_path)


def test_profiler_is_imported_only_for_spans(run: Run) -> None:
    """A job without spans does not spend time on the import."""
    script = (
        "import sys, monitel_otel, monitel_otlp\n"
        "def loaded(): return any(name.startswith('monitel.profiler') for name in sys.modules)\n"
        "found = []\n"
        "with monitel_otlp.configure(spool_dir='spool'), monitel_otel.install(): found.append(loaded())\n"
        "with monitel_otlp.configure(spool_dir='spool', spans=True): found.append(loaded())\n"
        "print(found)"
    )
    assert "[False, True]\n" == run("-c", script).stdout


def test_unfinished_ranges_are_exported_at_sigterm(receiver: Receiver, terminate: Terminate) -> None:
    """Ranges that still run at the signal end there, and have the attribute ``monitel.unfinished``."""
    script = """\
import signal
with record_function("step"):
    with record_function("forward"):
        pass
    with record_function("all_reduce"):
        print("ready", flush=True)
        signal.pause()
"""
    terminate(BEGIN.format("spans=True, sigterm=True") + script, receiver.url, within=20)
    assert {"step": "", "forward": "step", "all_reduce": "step"} == receiver.parents()
    unfinished = {span.name for span in receiver.spans() if "monitel.unfinished" in span.attributes}
    assert {"step", "all_reduce"} == unfinished


@pytest.mark.parametrize("leave", ["sys.exit()", "pass", "os._exit(0) if pipeline.shutdown() else os._exit(1)"])
def test_forked_child_exports_its_ranges(receiver: Receiver, train: Run, leave: str) -> None:
    """The child is a separate instance with separate traces; the parent exports the parent's ranges once."""
    script = f"""\
with record_function("before"):
    pass
with record_function("around"):
    pid = os.fork()
    if pid == 0:
        with record_function("child"), record_function("child.inner"):
            pass
        {leave}
    else:
        _, status = os.waitpid(pid, 0)
        assert status == 0
        with record_function("parent"):
            pass
"""
    train(SPANS + script, receiver.url)
    expected = {"before": "", "around": "", "child": "", "child.inner": "child", "parent": "around"}
    assert expected == receiver.parents()
    instances = {span.name: span.resource["service.instance.id"] for span in receiver.spans()}
    assert instances["child"] == instances["child.inner"] != instances["parent"] == instances["before"]


def test_child_without_ranges_exports_nothing(receiver: Receiver, train: Run) -> None:
    """The child sends no spans and prints no last line."""
    script = """\
with record_function("around"):
    if os.fork() == 0:
        sys.exit()
    os.wait()
"""
    ended = train(SPANS + script, receiver.url)
    assert {"around": ""} == receiver.parents()
    assert 1 == ended.stderr.count("monitel: ")


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
    train(BEGIN.format("step_traces=True, span_steps=10") + script, receiver.url)
    assert {"child": ""} == receiver.parents()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_deliver_at_their_end(receiver: Receiver, train: Run, method: str) -> None:
    """Such children end without ``atexit``; spawned ones call ``configure()``."""
    script = f"""\
import multiprocessing
from monitel.profiler import record_function

def work(url):
    if {method!r} != "fork":
        monitel_otlp.configure(endpoint=url, spool_dir="spool", export_interval=3600.0, spans=True)
    with record_function("child"):
        pass

if __name__ == "__main__":
    monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, spans=True)
    child = multiprocessing.get_context({method!r}).Process(target=work, args=[sys.argv[1]])
    child.start()
    child.join(30)
    assert child.exitcode == 0
    with record_function("parent"):
        pass
"""
    train(script, receiver.url)
    assert {"child": "", "parent": ""} == receiver.parents()


LOADER = """\
from types import ModuleType

worker = None
data = ModuleType("torch.utils.data")
data.get_worker_info = lambda: worker
sys.modules["torch.utils.data"] = data

if os.fork() == 0:
    worker = object()
    for _ in range(3):
        with record_function("sample"):
            pass
    monitel.emit("sample")
    assert pipeline.force_flush(60) == (not pipeline.dropped)
    print(pipeline.dropped, flush=True)
    sys.exit()
_, status = os.wait()
assert status == 0
"""


def test_ranges_of_a_worker_are_dropped_by_default(receiver: Receiver, train: Run) -> None:
    """Each range counts as dropped, and each worker logs one line; ``workers=True`` exports the ranges."""
    ended = train(SPANS + LOADER, receiver.url)
    assert "{'worker': 4}\n" == ended.stdout
    assert 1 == ended.stderr.count("use configure(workers=True) to export it")
    assert [] == receiver.spans()
    ended = train(BEGIN.format("spans=True, workers=True") + LOADER, receiver.url)
    assert "{}\n" == ended.stdout
    assert ["sample"] * 3 == [span.name for span in receiver.spans()]
