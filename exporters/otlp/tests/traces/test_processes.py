"""Spans of processes that fork, end, or are ended: nothing of the parent twice, nothing lost."""

from __future__ import annotations

import signal
import sys
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING

import pytest

from .conftest import PRELUDE
from .spools import folders

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Run
    from .receiver import Receiver

BEGIN = """\
from monitel.profiler import record_function

pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, {})
"""
SPANS = BEGIN.format("spans=True")


def parents(receiver: Receiver) -> dict[str, str]:
    """The name of each span's parent, by its own name."""
    spans = receiver.spans()
    names = {span.span_id: span.name for span in spans}
    assert len(spans) == len(names) == len(set(names.values()))
    return {span.name: names.get(span.parent_id, "") for span in spans}


@pytest.mark.parametrize("leave", ["pass", "sys.exit()", "raise SystemExit"])
def test_everything_is_delivered_at_exit(receiver: Receiver, train: Run, tmp_path: Path, leave: str) -> None:
    """Also what was left by the way out; the last line counts the spans."""
    script = f"""\
monitel.set_step(1)
with record_function("step"), record_function("forward"):
    {leave}
"""
    ended = train(SPANS + script, receiver.url)
    assert {"step": "", "forward": "step"} == parents(receiver)
    assert not any("monitel.unfinished" in span.attributes for span in receiver.spans())
    assert "monitel: exported 0 windows, 0 events, 2 spans\n" == ended.stderr
    assert [] == folders(tmp_path)


def test_the_profiler_is_loaded_where_spans_are_asked_for(run: Run) -> None:
    """And nowhere else: a job that wants none does not wait for it."""
    script = (
        "import sys, monitel_otel, monitel_otlp\n"
        "def loaded(): return any(name.startswith('monitel.profiler') for name in sys.modules)\n"
        "found = []\n"
        "with monitel_otlp.configure(spool_dir='spool'), monitel_otel.install(): found.append(loaded())\n"
        "with monitel_otlp.configure(spool_dir='spool', spans=True): found.append(loaded())\n"
        "print(found)"
    )
    assert "[False, True]\n" == run("-c", script).stdout


def test_sigterm_shows_in_what_the_job_was(receiver: Receiver, tmp_path: Path) -> None:
    """What was complete arrives, and what was not, up to the moment, marked so."""
    script = """\
import signal
with record_function("step"):
    with record_function("forward"):
        pass
    with record_function("all_reduce"):
        print("ready", flush=True)
        signal.pause()
"""
    path = tmp_path / "train.py"
    path.write_text(PRELUDE + BEGIN.format("spans=True, sigterm=True") + script, encoding="utf-8")
    with Popen([sys.executable, path, receiver.url], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready\n" == process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=20)
        finally:
            process.kill()  # where it hangs
    assert -signal.SIGTERM == process.returncode, stderr
    assert {"step": "", "forward": "step", "all_reduce": "step"} == parents(receiver)
    unfinished = {span.name for span in receiver.spans() if "monitel.unfinished" in span.attributes}
    assert {"step", "all_reduce"} == unfinished


@pytest.mark.parametrize("leave", ["sys.exit()", "pass", "os._exit(0) if pipeline.shutdown() else os._exit(1)"])
def test_a_forked_child_exports_its_own_ranges(receiver: Receiver, train: Run, leave: str) -> None:
    """As an instance of its own, in traces of its own; the parent's go once, by the parent."""
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
    assert expected == parents(receiver)
    instances = {span.name: span.resource["service.instance.id"] for span in receiver.spans()}
    assert instances["child"] == instances["child.inner"] != instances["parent"] == instances["before"]


def test_a_child_without_ranges_exports_nothing(receiver: Receiver, train: Run) -> None:
    """Neither spans nor a line at the end."""
    script = """\
with record_function("around"):
    if os.fork() == 0:
        sys.exit()
    os.wait()
"""
    ended = train(SPANS + script, receiver.url)
    assert {"around": ""} == parents(receiver)
    assert 1 == ended.stderr.count("monitel: ")


def test_a_forked_child_has_no_steps_of_its_own(receiver: Receiver, train: Run) -> None:
    """Its step is its parent's of long ago: neither sampling nor step traces go by it, and no id is there twice."""
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
    assert {"child": ""} == parents(receiver)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_deliver_at_their_end(receiver: Receiver, train: Run, method: str) -> None:
    """They leave without atexit; a spawned one configures for itself."""
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
    assert {"child": "", "parent": ""} == parents(receiver)


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
    assert pipeline.force_flush(10) == (not pipeline.dropped)
    print(pipeline.dropped, flush=True)
    sys.exit()
_, status = os.wait()
assert status == 0
"""


def test_workers_of_a_loader_are_silent_unless_asked(receiver: Receiver, train: Run) -> None:
    """Each range is counted as dropped, which is said once a worker."""
    ended = train(SPANS + LOADER, receiver.url)
    assert "{'worker': 4}\n" == ended.stdout
    assert 1 == ended.stderr.count("configure(workers=True) exports it")
    assert [] == receiver.spans()
    ended = train(BEGIN.format("spans=True, workers=True") + LOADER, receiver.url)
    assert "{}\n" == ended.stdout
    assert ["sample"] * 3 == [span.name for span in receiver.spans()]
