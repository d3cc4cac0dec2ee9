"""One trace a step over all ranks: each rank works out the ids by itself."""

from __future__ import annotations

import os
import sys
from collections import Counter
from hashlib import blake2b
from subprocess import PIPE, Popen
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

import monitel
from monitel.profiler import ranges, record_function

from .conftest import PRELUDE
from .inbox import DEADLINE, Span

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.profiler.ranges import Range

    from .conftest import Start
    from .receiver import Receiver

RANKS, STEPS = 4, 3

SCRIPT = f"""\
from monitel.profiler import record_function

with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", step_traces=True):
    for step in range({STEPS}):
        monitel.set_step(step)
        with record_function("forward"):
            for layer in range(2):
                with record_function("layer"):
                    pass
        with record_function("all_reduce"):
            monitel.emit("reduced")
"""


def digest(size: int, *words: bytes) -> str:
    """The hash that the documentation gives, in hex."""
    return blake2b(b"\0".join(words), digest_size=size).hexdigest()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is rank 2 of the second attempt of a run."""
    for name, value in {"RANK": "2", "TORCHELASTIC_RUN_ID": "run-7", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)


def by_name(spans: list[Span]) -> dict[str, Span]:
    """Spans by name, which are all different."""
    assert len(spans) == len({span.name for span in spans})
    return {span.name: span for span in spans}


def test_four_processes_show_one_trace_a_step(receiver: Receiver, tmp_path: Path) -> None:
    """The root is rank zero's, below it a subtree a rank, and every id is there once: nobody has asked another."""
    path = tmp_path / "train.py"
    path.write_text(PRELUDE + SCRIPT, encoding="utf-8")
    environment = {**os.environ, "WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": "run-7"}
    processes = [
        Popen([sys.executable, path, receiver.url], env={**environment, "RANK": str(rank)}, stderr=PIPE, text=True)
        for rank in range(RANKS)
    ]
    for process in processes:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    spans = receiver.spans()
    traces = {digest(16, b"run-7", b"0", b"%d" % step): step for step in range(STEPS)}
    assert traces.keys() == {span.trace_id for span in spans}
    for trace_id, step in traces.items():
        own = [span for span in spans if span.trace_id == trace_id]
        ids = {span.span_id: span for span in own}
        assert 1 + RANKS * 5 == len(own) == len(ids)
        assert {step} == {span.attributes["training.step"] for span in own}
        (root,) = [span for span in own if not span.parent_id]
        assert ("training.step", 0) == (root.name, root.resource["training.rank"])
        for rank in range(RANKS):
            (top,) = [span for span in own if span.attributes.get("training.rank") == rank]
            assert ("training.rank", root.span_id, rank) == (top.name, top.parent_id, top.resource["training.rank"])
            assert (0x300 if rank else 0x100) == top.flags
            below = [span for span in own if span.resource["training.rank"] == rank and span not in (root, top)]
            tree = Counter((span.name, ids[span.parent_id].name) for span in below)
            tops = {("forward", "training.rank"): 1, ("all_reduce", "training.rank"): 1}
            assert {**tops, ("layer", "forward"): 2} == tree
            assert top.start_ns == min(span.start_ns for span in below)
            assert top.end_ns == max(span.end_ns for span in below)
    reduced = [span.span_id for span in spans if span.name == "all_reduce"]
    assert sorted(reduced) == sorted(record.span_id for record in receiver.records("reduced"))


@pytest.mark.usefixtures("job")
def test_ids_are_those_that_the_documentation_gives(receiver: Receiver, start: Start) -> None:
    """Of run, attempt and step; of rank, the path of ranges, and which of its name it is."""
    pipeline = start(step_traces=True)
    monitel.set_step(12)
    with record_function("forward"), record_function("layer"):
        pass
    pipeline.shutdown()
    spans = by_name(receiver.spans())
    trace = bytes.fromhex(digest(16, b"run-7", b"1", b"12"))
    assert {trace.hex()} == {span.trace_id for span in spans.values()}
    top = spans["training.rank"]
    assert (digest(8, trace), digest(8, trace, b"2")) == (top.parent_id, top.span_id)
    assert digest(8, bytes.fromhex(top.span_id), b"forward", b"0") == spans["forward"].span_id
    assert digest(8, bytes.fromhex(spans["forward"].span_id), b"layer", b"0") == spans["layer"].span_id


@pytest.mark.usefixtures("job")
def test_what_encloses_several_steps_is_in_none_of_their_traces(receiver: Receiver, start: Start) -> None:
    """Neither a range of the epoch, nor a span of the caller's own, nor what was begun before the first step."""
    pipeline = start(step_traces=True)
    tracer = pipeline.tracer_provider.get_tracer("mine")
    with tracer.start_as_current_span("job"), record_function("epoch"):
        for step in range(2):
            monitel.set_step(step)
            with record_function(f"forward {step}"):
                monitel.emit(f"forward {step}")
    pipeline.shutdown()
    spans = {span.name: span for span in receiver.spans() if span.name != "training.rank"}
    assert spans["job"].span_id == spans["epoch"].parent_id
    assert [digest(16, b"run-7", b"1", b"%d" % step) for step in range(2)] == [
        spans[f"forward {step}"].trace_id for step in range(2)
    ]
    ranks = {span.span_id for span in receiver.spans() if span.name == "training.rank"}
    assert ranks == {spans["forward 0"].parent_id, spans["forward 1"].parent_id}
    logged = {record.name: record.span_id for record in receiver.records()}
    assert {name: spans[name].span_id for name in ("forward 0", "forward 1")} == logged


@pytest.mark.usefixtures("job")
def test_a_step_that_comes_again_is_another_trace(receiver: Receiver, start: Start) -> None:
    """After a resume from a checkpoint, in one process: no two spans have one id, and new steps are as ever."""
    pipeline = start(step_traces=True)
    for step in (5, 6, 5, 6, 7):
        monitel.set_step(step)
        with record_function("forward"):
            pass
    pipeline.shutdown()
    spans = receiver.spans()
    assert 10 == len(spans) == len({span.span_id for span in spans})
    words = [(b"5",), (b"6",), (b"5", b"1"), (b"6", b"1"), (b"7",)]
    assert Counter({digest(16, b"run-7", b"1", *each): 2 for each in words}) == Counter(s.trace_id for s in spans)


@pytest.mark.usefixtures("job")
def test_a_thread_that_is_late_changes_no_trace(receiver: Receiver, start: Start) -> None:
    """Its range is of the last step, while others are in the next one: no step has two traces, or two spans."""
    late, on = Event(), Event()

    def hold(began: Range) -> None:
        if began.name == "late":
            late.set()
            on.wait(DEADLINE)

    def work_here(name: str) -> None:
        with record_function(name):
            pass

    thread = Thread(target=work_here, args=["late"])
    with ranges.listen(began=hold):  # told before the pipeline is
        pipeline = start(step_traces=True)
        monitel.set_step(1)
        work_here("early")
        thread.start()
        assert late.wait(DEADLINE)
        monitel.set_step(2)
        work_here("next")
        on.set()
        thread.join(DEADLINE)
        work_here("after")
    pipeline.shutdown()
    spans = receiver.spans()
    steps = [("early", 1), ("late", 1), ("training.rank", 1), ("next", 2), ("after", 2), ("training.rank", 2)]
    assert dict.fromkeys(steps, 1) == Counter((span.name, span.attributes["training.step"]) for span in spans)
    assert {digest(16, b"run-7", b"1", b"1"), digest(16, b"run-7", b"1", b"2")} == {span.trace_id for span in spans}


@pytest.mark.usefixtures("job")
def test_a_fold_is_in_the_trace_of_its_step(receiver: Receiver, start: Start) -> None:
    """Beside the first range, below the rank; the rank's span holds it too."""
    pipeline = start(step_traces=True, span_budget=1)
    monitel.set_step(5)
    for _ in range(3):
        with record_function("forward"):
            pass
    pipeline.shutdown()
    spans = by_name(receiver.spans())
    fold, top = spans["monitel.folded"], spans["training.rank"]
    assert (2, top.span_id, fold.end_ns) == (fold.attributes["monitel.folded.count"], fold.parent_id, top.end_ns)


@pytest.mark.usefixtures("job")
def test_steps_are_sampled_as_the_sampler_says(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By trace id, so that all ranks drop the same steps, whole; and by ``span_steps`` before that."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    pipeline = start(step_traces=True, span_steps=2)
    for step in range(200):
        monitel.set_step(step)
        with record_function("forward"), record_function("layer"):
            pass
    pipeline.shutdown()
    expected = {
        step
        for step in range(0, 200, 2)
        if int(digest(16, b"run-7", b"1", b"%d" % step)[16:], 16) < 2**63  # as the SDK: the low half of the id
    }
    assert 20 < len(expected) < 80
    assert dict.fromkeys(expected, 3) == Counter(span.attributes["training.step"] for span in receiver.spans())


def test_without_a_run_id_each_process_has_traces_of_its_own(receiver: Receiver, start: Start) -> None:
    """Nothing is told to other runs by chance."""
    for _ in range(2):
        pipeline = start(step_traces=True)
        monitel.set_step(1)
        with record_function("forward"):
            pass
        assert pipeline.shutdown()
    assert 2 == len({span.trace_id for span in receiver.spans()})


def test_the_run_id_may_come_from_the_resource(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the launcher's is torchrun's default, a warning says what to do."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    start(step_traces=True)
    assert "torchrun --rdzv-id" in caplog.text
    caplog.clear()
    pipeline = start(step_traces=True, resource_attributes={"training.run.id": "mine"})
    monitel.set_step(1)
    with record_function("forward"):
        pass
    assert pipeline.force_flush(DEADLINE)
    assert {digest(16, b"mine", b"0", b"1")} == {span.trace_id for span in receiver.spans()}
    assert "" == caplog.text


def test_a_steps_spans_come_when_it_is_over(receiver: Receiver, start: Start) -> None:
    """Also while a range of it still runs: then when that has ended."""
    pipeline = start(step_traces=True)
    monitel.set_step(1)
    with record_function("slow"):
        monitel.set_step(2)
        assert pipeline.force_flush(DEADLINE)
        assert pipeline.force_flush(DEADLINE)
        assert [] == receiver.spans()
    assert pipeline.force_flush(DEADLINE)
    assert pipeline.force_flush(DEADLINE)
    assert {"slow", "training.rank", "training.step"} == {span.name for span in receiver.spans()}
