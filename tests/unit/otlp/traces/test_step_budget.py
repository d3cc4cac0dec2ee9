"""The span budget of step traces: a trace store's limit holds for the trace of all ranks, whatever their number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.paths import ROOT

import monitel
import monitel_otlp
from monitel.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock

TEMPO_DEFAULT = 5_000_000  # max_bytes_per_trace
SHIPPED = 15_000_000  # compose/tempo.yaml

#: The names and the number of the ranges of a step, as monitel.torch and a model with many layers record them.
PHASES = ("training.data", "training.forward", "training.backward", "training.optimizer")
LAYERS = 300
#: The default budgets for some numbers of ranks, as the page shows them.
BUDGETS = {8: 1000, 16: 1000, 28: 630, 64: 269, 256: 58, 512: 23, 1024: 5, 1500: 1}
RANGES = 1 + len(PHASES) * (1 + LAYERS)


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the variables of torchrun."""

    def as_rank(rank: int, world_size: int, **variables: str) -> None:
        values = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank % 8, "LOCAL_WORLD_SIZE": 8}
        values |= {"GROUP_RANK": rank // 8, "TORCHELASTIC_RESTART_COUNT": 0}
        for name, value in {**values, "TORCHELASTIC_RUN_ID": "3f1a2b7c-pretrain-7b", **variables}.items():
            monkeypatch.setenv(name, str(value))

    return as_rank


def train(step: int) -> None:
    """Record the ranges of one step: 1,205."""
    monitel.set_step(step)
    with record_function("training.step"):
        for phase in PHASES:
            with record_function(phase):
                for layer in range(LAYERS):
                    with record_function("transformer.layer", {"layer": layer, "kind": "attention"}):
                        pass


def bytes_by_trace(receiver: Receiver) -> dict[str, int]:
    """Return the bytes of each trace as Tempo counts them: each request's resource and scope, and its spans.

    The message of a trace in a request is built again from the bytes of its spans, with lengths and tags.
    """
    found: dict[str, int] = {}
    for request in receiver.of("traces"):
        for resource_spans in request.message.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                ids = {span.trace_id.hex() for span in scope_spans.spans}
                for trace_id in ids:
                    part = type(request.message)()
                    copy = part.resource_spans.add()
                    copy.CopyFrom(resource_spans)
                    del copy.scope_spans[:]
                    copy.scope_spans.add().CopyFrom(scope_spans)
                    del copy.scope_spans[0].spans[:]
                    copy.scope_spans[0].spans.extend(s for s in scope_spans.spans if s.trace_id.hex() == trace_id)
                    found[trace_id] = found.get(trace_id, 0) + part.ByteSize()
    return found


def rank_bytes(receiver: Receiver, start: Start, **arguments: Any) -> int:
    """Return the bytes of a rank in the trace of a step, sent in several requests."""
    pipeline = start(step_traces=True, **arguments)
    train(1200)
    assert pipeline.force_flush(DEADLINE)
    monitel.set_step(1201)
    assert pipeline.shutdown(30.0)
    (size,) = bytes_by_trace(receiver).values()
    return size


def kept(receiver: Receiver) -> int:
    """Return the number of ranges that became spans."""
    return sum("thread.id" in span.attributes for span in receiver.spans())


@pytest.mark.parametrize("ranks", [2, 16, 18, 28, 64, 512, 1024, 1500])
def test_trace_of_all_ranks_stays_below_the_limit(receiver: Receiver, start: Start, as_rank: Any, ranks: int) -> None:
    """Each rank sends at most its share, and the ranges that are not spans are in the folded span."""
    as_rank(1, ranks)
    size = rank_bytes(receiver, start)
    assert ranks * size < TEMPO_DEFAULT
    own = kept(receiver)
    assert 1 <= own <= 1000
    assert RANGES == own + receiver.span("monitel.folded").attributes["monitel.folded.count"]
    assert own == 1000 or ranks > 16
    assert own == 1000 or ranks * size > TEMPO_DEFAULT / 3  # the limit is used


@pytest.mark.parametrize(("ranks", "requests"), [(64, 12), (256, 6), (512, 12), (1024, 5), (1024, 40)])
def test_long_steps_have_smaller_budgets(
    receiver: Receiver, clock: ManualClock, as_rank: Any, ranks: int, requests: int
) -> None:
    """A step that is longer than the export interval takes more requests, and each of them repeats the resource."""
    as_rank(1, ranks)
    interval = 3600.0
    pipeline = monitel_otlp.configure(endpoint=receiver.url, step_traces=True, export_interval=interval)
    for step in range(3):
        monitel.set_step(step)
        for _ in range(requests):
            for _ in range(-(-BUDGETS[ranks] // requests)):
                with record_function("transformer.layer", {"layer": 1, "kind": "attention"}):
                    pass
            assert pipeline.force_flush(DEADLINE)
            clock.advance(interval)
    assert pipeline.shutdown(30.0)
    sizes = list(bytes_by_trace(receiver).values())
    assert (ranks * sizes[0] > TEMPO_DEFAULT) == (ranks > 256)  # the length of the first step is not known before it
    assert TEMPO_DEFAULT / 3 < ranks * min(sizes[1:]) <= ranks * max(sizes[1:]) < TEMPO_DEFAULT


@pytest.mark.parametrize("ranks", BUDGETS)
def test_page_has_the_budgets_and_sizes(receiver: Receiver, start: Start, as_rank: Any, ranks: int) -> None:
    """The resource is not the same on each machine, so the sizes differ a little."""
    page = (ROOT / "docs/how-to/profile-and-trace.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| {ranks:,} \| ([0-9,]+) \| ([0-9.]+) MB \|$", page, re.MULTILINE)
    as_rank(1, ranks)
    size = rank_bytes(receiver, start)
    assert BUDGETS[ranks] == kept(receiver) == int(row[0].replace(",", ""))
    assert ranks * size / 1e6 == pytest.approx(float(row[1]), rel=0.1)


def test_stack_accepts_larger_traces() -> None:
    """The page has the limit of the stack's configuration."""
    page, configuration = (ROOT / each for each in ("docs/how-to/profile-and-trace.md", "compose/tempo.yaml"))
    for path in (page, configuration):
        assert f"      max_bytes_per_trace: {SHIPPED}\n" in path.read_text("utf-8")


def test_constant_budget_exceeds_the_limit(receiver: Receiver, start: Start, as_rank: Any) -> None:
    """With 1,000 spans for each rank Tempo's default is enough for 25 ranks, and the stack's limit for 77."""
    as_rank(1, 40)
    size = rank_bytes(receiver, start, span_budget=1000)
    assert 25 * size < TEMPO_DEFAULT < 27 * size
    assert 77 * size < SHIPPED < 80 * size


def test_typical_spans_are_smaller_than_assumed(receiver: Receiver, start: Start, as_rank: Any) -> None:
    """The bytes of spans as sent, with all their attributes, and what a rank adds to the spans of its ranges."""
    from monitel_otlp.traces.budget import trace_bytes

    as_rank(511, 512)
    whole = rank_bytes(receiver, start, span_budget=1000)
    sizes: dict[str, list[int]] = {}
    for request in receiver.of("traces"):
        for span in request.message.resource_spans[0].scope_spans[0].spans:
            sizes.setdefault(span.name, []).append(span.ByteSize() + 3)
    layers, phases = sizes["transformer.layer"], [max(sizes[name]) for name in PHASES[:3]]
    per_span, rank_alone = trace_bytes(1, 1) - trace_bytes(1, 0), trace_bytes(1, 0)
    assert 100 < min(phases) <= max(phases) < per_span
    assert 150 < min(layers) <= max(layers) < per_span
    added = whole - sum(layers) - sum(sum(sizes[name]) for name in ("training.step", *PHASES[:3]))
    assert rank_alone / 3 < added < 2 * rank_alone  # four requests instead of two


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ({"spans": True}, {}),
        ({"step_traces": True, "ranks": "zero"}, {}),
        ({"step_traces": True}, {"TORCHELASTIC_RUN_ID": ""}),
        ({"step_traces": True}, {"WORLD_SIZE": "16"}),
        ({"step_traces": True}, {"WORLD_SIZE": "many"}),
    ],
    ids=["separate traces", "one rank exports", "no run id", "16 ranks", "unknown world size"],
)
def test_budget_is_1000_if_few_ranks_share_a_trace(
    receiver: Receiver, start: Start, as_rank: Any, arguments: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Without a run id each process has separate traces."""
    as_rank(0, 512, **environment)
    pipeline = start(**arguments)
    train(1)
    assert pipeline.shutdown(30.0)
    assert 1000 == kept(receiver)


def test_ranges_before_the_first_step_have_the_whole_budget(receiver: Receiver, start: Start, as_rank: Any) -> None:
    """Ranges of no step are in separate traces."""
    as_rank(0, 512)
    pipeline = start(step_traces=True)
    for _ in range(1000):
        with record_function("transformer.layer"):
            pass
    assert pipeline.shutdown(30.0)
    assert 1000 == kept(receiver)


@pytest.mark.invalid_output("three pipelines of one process are the same rank of one run", "span.duplicate")
def test_next_attempt_has_the_budget_of_its_world_size(receiver: Receiver, start: Start, as_rank: Any) -> None:
    """The number of ranks is read by each ``configure()``; the resource may have it as text."""
    found: list[int] = []
    for ranks, arguments in ((512, {}), (64, {}), (64, {"resource_attributes": {"training.world_size": "512"}})):
        as_rank(1, ranks)
        pipeline = start(step_traces=True, **arguments)
        train(1)
        assert pipeline.shutdown(30.0)
        found.append(kept(receiver) - sum(found))
    assert [BUDGETS[512], BUDGETS[64], BUDGETS[512]] == found


@pytest.mark.parametrize(("ranks", "budget"), [(64, 1000), (28, 1000), (1500, 3)])
def test_budget_that_is_too_large_is_one_warning(
    start: Start, as_rank: Any, caplog: pytest.LogCaptureFixture, ranks: int, budget: int
) -> None:
    """The budget is kept. Only rank 0 logs the warning."""
    for rank in (0, 1):
        as_rank(rank, ranks)
        start(step_traces=True, span_budget=budget)
    (message,) = [each.getMessage() for each in caplog.records if "max_bytes_per_trace" in each.getMessage()]
    assert f"of {ranks} ranks" in message
    assert f"omit span_budget={budget}, which is then {BUDGETS[ranks]}" in message


def test_too_many_ranks_are_one_warning(start: Start, as_rank: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With 2,000 ranks the smallest budget may exceed the limit."""
    as_rank(0, 2000)
    start(step_traces=True)
    assert 1 == caplog.text.count("max_bytes_per_trace (by default 5 MB) without an error: raise it\n")


@pytest.mark.parametrize(("ranks", "arguments"), [(1024, {}), (8, {"span_budget": 1000}), (512, {"span_budget": 20})])
def test_budget_that_fits_is_no_warning(
    start: Start, as_rank: Any, caplog: pytest.LogCaptureFixture, ranks: int, arguments: Mapping[str, Any]
) -> None:
    """The defaults, and a budget of the application that fits."""
    as_rank(0, ranks)
    start(step_traces=True, **arguments)
    assert "max_bytes_per_trace" not in caplog.text
