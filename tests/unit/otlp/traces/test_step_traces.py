"""Step traces: one trace for each step over all ranks, with ids that each rank computes."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from hashlib import blake2b
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE, Span
from tests.support.scripts import finish, started, write_script

import monitel
from monitel.profiler import ranges, record_function

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.profiler.ranges import Range

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
    """Return the documented hash of some words in hexadecimal."""
    return blake2b(b"\0".join(words), digest_size=size).hexdigest()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of rank 2 in the second attempt of a run."""
    for name, value in {"RANK": "2", "TORCHELASTIC_RUN_ID": "run-7", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)


def by_name(spans: list[Span]) -> dict[str, Span]:
    """Return the spans by their names, which must be unique."""
    assert len(spans) == len({span.name for span in spans})
    return {span.name: span for span in spans}


def test_four_processes_share_one_trace_for_each_step(receiver: Receiver, tmp_path: Path) -> None:
    """Rank 0 exports the root, each rank a subtree, and all ids are unique, without communication between ranks."""
    path = write_script(tmp_path, SCRIPT)
    environment = {"WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": "run-7"}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started(tmp_path, path, receiver.url, env={**environment, "RANK": str(rank)}))
            for rank in range(RANKS)
        ]
        assert [0] * RANKS == [finish(process).status for process in processes]
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
def test_ids_are_the_documented_hashes(receiver: Receiver, start: Start) -> None:
    """Trace ids are hashes of run, attempt and step; span ids of the parent, the name and its number."""
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


def test_unknown_rank_does_not_take_the_place_of_rank_zero(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of the second node, whose size is unknown, have separate spans, and export no root."""
    for name, value in {"NODE_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "run-7"}.items():
        monkeypatch.setenv(name, value)
    for local_rank in range(2):
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        pipeline = start(step_traces=True)
        monitel.set_step(12)
        with record_function("forward"):
            pass
        pipeline.shutdown()
    trace = bytes.fromhex(digest(16, b"run-7", b"0", b"12"))
    tops = [span for span in receiver.spans() if span.name == "training.rank"]
    assert [digest(8, trace)] * 2 == [span.parent_id for span in tops]
    assert 3 == len({digest(8, trace, b"0"), *(span.span_id for span in tops)})
    assert [False, False] == ["training.rank" in span.attributes for span in tops]
    assert ["forward", "forward", "training.rank", "training.rank"] == sorted(span.name for span in receiver.spans())


@pytest.mark.usefixtures("job")
def test_range_around_several_steps_is_in_no_step_trace(receiver: Receiver, start: Start) -> None:
    """Ranges and spans that begin before the first step are in a separate trace."""
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
def test_repeated_step_has_another_trace(receiver: Receiver, start: Start) -> None:
    """If a process repeats steps after a resume from a checkpoint, all ids are unique."""
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
def test_late_thread_does_not_change_traces(receiver: Receiver, start: Start) -> None:
    """A range that starts in the previous step is in that step's trace, and each step has one trace and one span."""
    late, on = Event(), Event()

    def hold(began: Range) -> None:
        if began.name == "late":
            late.set()
            on.wait(DEADLINE)

    def work_here(name: str) -> None:
        with record_function(name):
            pass

    thread = Thread(target=work_here, args=["late"])
    with ranges.listen(began=hold):  # called before the listener of the pipeline
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
def test_fold_is_in_the_trace_of_its_step(receiver: Receiver, start: Start) -> None:
    """The parent of the fold is the span of the rank, which ends with the fold."""
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
def test_sampler_decides_about_steps(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler decides by trace id after ``span_steps``, so that all ranks drop the same steps completely."""
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
        if int(digest(16, b"run-7", b"1", b"%d" % step)[16:], 16) < 2**63  # the SDK uses the low half of the id
    }
    assert 20 < len(expected) < 80
    assert dict.fromkeys(expected, 3) == Counter(span.attributes["training.step"] for span in receiver.spans())


def test_processes_have_separate_traces_without_a_run_id(receiver: Receiver, start: Start) -> None:
    """Otherwise independent runs would share traces."""
    for _ in range(2):
        pipeline = start(step_traces=True)
        monitel.set_step(1)
        with record_function("forward"):
            pass
        assert pipeline.shutdown()
    assert 2 == len({span.trace_id for span in receiver.spans()})


def test_run_id_may_be_set_in_the_resource(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the run id is torchrun's default, a warning says how to set one."""
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


def test_spans_of_a_step_are_exported_when_it_is_over(receiver: Receiver, start: Start) -> None:
    """If a range of the step still runs in the next step, the spans are exported when that range has ended."""
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
