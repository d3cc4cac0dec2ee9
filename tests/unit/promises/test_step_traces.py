"""One trace per step at a receiver: ids that each rank computes, and a budget for the trace of all ranks."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from threading import Event
from typing import Any

import pytest
from tests.support.checks import SetEnv, Warned, warnings_with
from tests.support.inbox import DEADLINE
from tests.support.paths import ROOT
from tests.support.pipelines import Start
from tests.support.producers import record_ranges, running
from tests.support.receiver import Receiver

import monitel
from monitel.profiler import ranges, record_function
from monitel.profiler.ranges import Range
from monitel_otlp import Pipeline

FOLDED = "monitel.folded"
HOW_TO = (ROOT / "docs/how-to/profile-and-trace.md").read_text("utf-8")
JOB = {"RANK": 2, "WORLD_SIZE": 4, "TORCHELASTIC_RUN_ID": "run-7", "TORCHELASTIC_RESTART_COUNT": 1}


def digest(size: int, *words: bytes) -> str:
    return blake2b(b"\0".join(words), digest_size=size).hexdigest()


Job = Callable[..., Pipeline]


@pytest.fixture
def job(start: Start, setenv: SetEnv) -> Job:
    """Return a function that starts a pipeline with step traces as rank 2 of 4 in the second attempt of a run."""

    def started(options: Any = (), arguments: Any = (), **variables: object) -> Pipeline:
        setenv({**JOB, **variables})
        return start(**{"spans": {"step_traces": True, **dict(options)}, **dict(arguments)})

    return started


def test_ids_of_a_step_trace_are_the_documented_hashes(receiver: Receiver, job: Job) -> None:
    """Each rank computes them: from run, attempt and step, from the rank, and from parent, name and number."""
    pipeline = job()
    monitel.set_step(12)
    with record_function("forward"):
        record_ranges("layer", "layer")
    monitel.emit("outside")
    assert pipeline.shutdown(DEADLINE)
    trace_id = bytes.fromhex(digest(16, b"run-7", b"1", b"12"))
    top = digest(8, trace_id, b"2")
    forward = digest(8, bytes.fromhex(top), b"forward", b"0")
    layers = [digest(8, bytes.fromhex(forward), b"layer", b"%d" % number) for number in range(2)]
    parents = {top: digest(8, trace_id), forward: top, **dict.fromkeys(layers, forward)}
    spans = receiver.spans()
    assert parents == {span.span_id: span.parent_id for span in spans}
    account = pipeline.account()["traces"]
    assert (3, 3, 1) == (account.recorded, account.delivered, account.synthetic)  # the span of the rank counts apart
    assert {trace_id.hex()} == {span.trace_id for span in spans}
    rank = receiver.span("training.rank")
    assert (2, 12, 0x300) == (rank.attributes["training.rank"], rank.attributes["training.step"], rank.flags)
    inner = receiver.span("forward")
    assert (inner.start_ns, inner.end_ns) == (rank.start_ns, rank.end_ns)


def test_rank_zero_sends_the_root_when_the_step_is_over(receiver: Receiver, job: Job) -> None:
    """Even if a range of the step still runs in the next one; the root is the parent of each rank's span."""
    pipeline = job(RANK=0)
    monitel.set_step(1)
    with record_function("slow"):
        monitel.set_step(2)
        for _ in range(2):
            assert pipeline.force_flush(DEADLINE)
        assert [] == receiver.spans()
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    assert {"training.step": "", "training.rank": "training.step", "slow": "training.rank"} == receiver.parents()
    trace_id = digest(16, b"run-7", b"1", b"1")
    root = receiver.span("training.step")
    assert (trace_id, digest(8, bytes.fromhex(trace_id))) == (root.trace_id, root.span_id)
    assert {1} == {span.attributes["training.step"] for span in receiver.spans()}


def test_range_around_several_steps_is_in_its_first_trace_only(receiver: Receiver, job: Job) -> None:
    """Ranges and spans that begin before the first step are in a separate trace, and no parents of steps."""
    pipeline = job({"budget": 2})
    tracer = pipeline.tracer_provider.get_tracer("mine")
    with tracer.start_as_current_span("job"), record_function("epoch"):
        for step in range(2):
            monitel.set_step(step)
            with record_function(f"forward {step}"):
                monitel.emit(f"forward {step}")
        record_ranges("kept", "folded", "folded")
    assert pipeline.shutdown(DEADLINE)
    spans = {span.name: span for span in receiver.spans() if span.name != "training.rank"}
    tops = {span.attributes["training.step"]: span for span in receiver.spans() if span.name == "training.rank"}
    assert spans["job"].span_id == spans["epoch"].parent_id
    for step in range(2):
        own = spans[f"forward {step}"]
        assert digest(16, b"run-7", b"1", b"%d" % step) == own.trace_id == tops[step].trace_id
        assert tops[step].span_id == own.parent_id
        assert [own.span_id] == [record.span_id for record in receiver.records(own.name)]
    fold = spans[FOLDED]
    assert (2, tops[1].span_id, tops[1].end_ns) == (fold.attributes[f"{FOLDED}.count"], fold.parent_id, fold.end_ns)


def test_all_ranks_sample_the_same_steps(receiver: Receiver, job: Job) -> None:
    """The sampler decides by the trace id; a step is sent completely or not at all, and made again it has new ids."""
    pipeline = job({"steps": 2}, OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5")
    for step in (*range(60), *range(40)):
        monitel.set_step(step)
        with record_function("forward"):
            record_ranges("layer")
    assert pipeline.shutdown(DEADLINE)
    every = [digest(16, b"run-7", b"1", b"%d" % step) for step in range(0, 60, 2)]
    every += [digest(16, b"run-7", b"1", b"%d" % step, b"1") for step in range(0, 40, 2)]
    expected = {trace_id for trace_id in every if int(trace_id[16:], 16) < 2**63}  # the low half, as the SDK
    assert 10 < len(expected) < 40
    assert dict.fromkeys(expected, 3) == Counter(span.trace_id for span in receiver.spans())
    assert 3 * len(expected) == len({span.span_id for span in receiver.spans()})


def test_unknown_rank_does_not_take_the_place_of_rank_zero(receiver: Receiver, start: Start, setenv: SetEnv) -> None:
    """Processes of the second node, whose size is unknown, have separate spans, and export no root."""
    for local_rank in range(2):
        setenv(NODE_RANK=1, LOCAL_RANK=local_rank, TORCHELASTIC_RUN_ID="run-7")
        pipeline = start(spans={"step_traces": True})
        monitel.set_step(12)
        record_ranges("forward")
        assert pipeline.shutdown(DEADLINE)
    trace_id = bytes.fromhex(digest(16, b"run-7", b"0", b"12"))
    tops = [span for span in receiver.spans() if span.name == "training.rank"]
    assert [digest(8, trace_id)] * 2 == [span.parent_id for span in tops]
    assert 3 == len({digest(8, trace_id, b"0"), *(span.span_id for span in tops)})
    assert {"forward": 2, "training.rank": 2} == Counter(span.name for span in receiver.spans())


def test_range_of_a_late_thread_is_in_the_trace_of_its_step(receiver: Receiver, job: Job) -> None:
    """A thread begins it in the previous step, and others are in the next one already; each step has one trace."""
    late, on = Event(), Event()

    def hold(began: Range) -> None:
        if began.name == "late":
            late.set()
            on.wait(DEADLINE)

    with ranges.listen(began=hold):  # called before the listener of the pipeline
        pipeline = job()
        monitel.set_step(1)
        record_ranges("early")
        with running(partial(record_ranges, "late")):
            assert late.wait(DEADLINE)
            monitel.set_step(2)
            record_ranges("next")
            on.set()
        record_ranges("after")
    assert pipeline.shutdown(DEADLINE)
    steps = [("early", 1), ("late", 1), ("training.rank", 1), ("next", 2), ("after", 2), ("training.rank", 2)]
    found = Counter((span.name, span.attributes["training.step"]) for span in receiver.spans())
    assert dict.fromkeys(steps, 1) == found
    expected = {digest(16, b"run-7", b"1", b"1"), digest(16, b"run-7", b"1", b"2")}
    assert expected == {span.trace_id for span in receiver.spans()}


def test_run_id_of_the_resource_makes_the_traces(
    receiver: Receiver, start: Start, setenv: SetEnv, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a run id each process has separate traces; with several ranks that is reported, with the remedy."""
    for arguments in ({}, {}, {"resource_attributes": {"training.run.id": "mine"}}):
        pipeline = start(spans={"step_traces": True}, **arguments)
        monitel.set_step(1)
        record_ranges("forward")
        assert pipeline.shutdown(DEADLINE)
    traces = [*dict.fromkeys(span.trace_id for span in receiver.spans())]
    assert (3, digest(16, b"mine", b"0", b"1")) == (len(traces), traces[-1])
    assert [] == caplog.records
    setenv(TORCHELASTIC_RUN_ID="none", RANK=0, WORLD_SIZE=2)
    start(spans={"step_traces": True})
    assert 1 == len(warnings_with(caplog, "torchrun --rdzv-id"))


LAYERS = 300
PHASES = ("training.data", "training.forward", "training.backward", "training.optimizer")
RANGES = 1 + len(PHASES) * (1 + LAYERS)
TEMPO_DEFAULT = 5_000_000  # max_bytes_per_trace
BUDGETS: list[tuple[int, int, float]] = [
    (int(ranks.replace(",", "")), int(budget.replace(",", "")), float(megabytes))
    for ranks, budget, megabytes in re.findall(r"^\| ([0-9,]+) \| ([0-9,]+) \| ([0-9.]+) MB \|$", HOW_TO, re.MULTILINE)
]


def on_nodes(rank: int, world_size: int, **variables: object) -> dict[str, object]:
    """Return the variables of torchrun on nodes of 8 ranks."""
    values = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank % 8, "LOCAL_WORLD_SIZE": 8}
    values |= {"GROUP_RANK": rank // 8, "TORCHELASTIC_RESTART_COUNT": 0}
    return {**values, "TORCHELASTIC_RUN_ID": "3f1a2b7c-pretrain-7b", **variables}


def train(step: int) -> None:
    monitel.set_step(step)
    with record_function("training.step"):
        for phase in PHASES:
            with record_function(phase):
                for layer in range(LAYERS):
                    record_ranges("transformer.layer", args={"layer": layer, "kind": "attention"})


@pytest.mark.parametrize(("ranks", "budget", "megabytes"), [BUDGETS[0], BUDGETS[2], BUDGETS[-3], BUDGETS[-1]])
def test_trace_of_all_ranks_stays_below_the_limit_of_tempo(
    receiver: Receiver, job: Job, ranks: int, budget: int, megabytes: float
) -> None:
    """Each rank has the budget of the page; the ranges that are not spans are in the folded span."""
    pipeline = job(**on_nodes(1, ranks))
    train(1200)
    assert pipeline.force_flush(DEADLINE)
    monitel.set_step(1201)
    assert pipeline.shutdown(DEADLINE)
    assert 1 == len({span.trace_id for span in receiver.spans()})
    # As Tempo counts them: each request's resource and scope, and its spans.
    size = ranks * sum(request.message.ByteSize() for request in receiver.of("traces"))
    assert size < TEMPO_DEFAULT
    assert megabytes == pytest.approx(size / 1e6, rel=0.1)
    assert budget == sum("thread.id" in span.attributes for span in receiver.spans())
    assert RANGES == budget + receiver.span(FOLDED).attributes["monitel.folded.count"]


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [({"spans": True}, {}), ({"ranks": "zero"}, {}), ({}, {"TORCHELASTIC_RUN_ID": ""}), ({}, {"WORLD_SIZE": "16"})],
    ids=["separate traces", "one rank exports", "no run id", "16 ranks"],
)
def test_budget_is_1000_if_few_ranks_share_a_trace(
    receiver: Receiver, job: Job, arguments: dict[str, Any], environment: dict[str, str]
) -> None:
    """Without a run id, or without step traces, each process has separate traces."""
    pipeline = job((), arguments, **on_nodes(0, 512, **environment))
    train(1)
    assert pipeline.shutdown(DEADLINE)
    assert 1000 == sum("thread.id" in span.attributes for span in receiver.spans())


def test_budget_that_is_too_large_is_one_warning_of_rank_zero(job: Job, warned: Warned) -> None:
    """The warning has the remedy; the budget is kept. Neither the default nor a budget that fits is a warning."""
    for options in ({}, {"budget": 290}):
        job(options, **on_nodes(0, 64))
    assert [] == warned("max_bytes_per_trace")
    for rank in (0, 1):
        job({"budget": 310}, **on_nodes(rank, 64))
    (message,) = warned("max_bytes_per_trace", "of 64 ranks")
    budget = {ranks: budget for ranks, budget, _ in BUDGETS}[64]
    assert f"omit the budget of 310 spans, which is then {budget}" in message
