"""Ranges of training steps as spans that a backend has received."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.receiver import Receiver

import monitel
from monitel.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("monitel_otlp") is None, reason="sends to a backend: monitel-otlp is not installed"),
]

SECOND = 1_000_000_000
STAGES = ("training.data", "training.forward", "training.backward", "training.optimizer")
OPTIONS: dict[str, Any] = {"waits": False, "compilation": False}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A backend that accepts everything."""
    with Receiver() as receiver:
        yield receiver


class Samples(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Three samples; each takes 3 s."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 3

    def __getitem__(self, _index: int) -> Any:
        self.clock.advance(3)
        return torch.ones(2)


def train(clock: ManualClock) -> Any:
    """Train three steps: 3 s for the batch, 5 s forward, 7 s backward, 11 s in the optimizer. Yield before each."""
    model = torch.nn.Linear(2, 1)
    model.register_forward_hook(lambda *_: clock.advance(5))
    model.weight.register_hook(lambda _gradient: clock.advance(7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: clock.advance(11))
    with monitel.torch.instrument(**OPTIONS):
        for x in torch.utils.data.DataLoader(Samples(clock)):
            model(x).sum().backward()
            optimizer.step()
            yield


def export(receiver: Receiver, folder: Path, action: Any, **options: Any) -> list[Any]:
    """Run an action with a pipeline, and return the received spans."""
    import monitel_otlp

    with monitel_otlp.configure(
        endpoint=receiver.url, spool_dir=folder, export_interval=3600.0, **{"spans": True, **options}
    ):
        action()
    return receiver.spans()


def test_spans_have_the_durations_of_the_stages(receiver: Receiver, tmp_path: Path, clock: ManualClock) -> None:
    """The stages of a step follow each other and add up to the step."""
    begin_ns = clock.time_ns()
    spans = export(receiver, tmp_path, lambda: list(train(clock)))
    seconds = {
        name: [
            ((each.start_ns - begin_ns) / SECOND, (each.end_ns - begin_ns) / SECOND)
            for each in spans
            if each.name == name
        ]
        for name in (*STAGES, "training.step")
    }
    assert {
        "training.data": [(0, 3), (26, 29), (52, 55), (78, 78)],  # the last call ends the epoch
        "training.forward": [(29, 34), (55, 60)],  # the first one is not known
        "training.backward": [(8, 15), (34, 41), (60, 67)],
        "training.optimizer": [(15, 26), (41, 52), (67, 78)],
        "training.step": [(26, 52), (52, 78)],
    } == seconds


def test_spans_are_children_of_the_range_around_the_loop(
    receiver: Receiver, tmp_path: Path, clock: ManualClock
) -> None:
    """All of them, and they have the trace of the loop."""

    def run() -> None:
        with record_function("epoch"):
            list(train(clock))

    spans = export(receiver, tmp_path, run)
    (epoch,) = [each for each in spans if each.name == "epoch"]
    assert 15 == len(spans)
    assert {(epoch.trace_id, epoch.span_id)} == {(each.trace_id, each.parent_id) for each in spans if each is not epoch}


def test_trace_of_a_step_has_its_stages(receiver: Receiver, tmp_path: Path, clock: ManualClock) -> None:
    """With ``step_traces=True`` the span of the rank lasts as long as the step, and has the stages as children."""
    spans = export(receiver, tmp_path, lambda: list(train(clock)), step_traces=True)
    by_step = {step: [each for each in spans if each.attributes.get("training.step") == step] for step in (1, 2)}
    for found in by_step.values():
        (rank,) = [each for each in found if each.name == "training.rank"]
        assert 1 == len({each.trace_id for each in found})
        assert {*STAGES, "training.step"} == {each.name for each in found if each.parent_id == rank.span_id}
        assert 26 * SECOND == rank.end_ns - rank.start_ns
