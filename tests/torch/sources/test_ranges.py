"""Training steps, their stages and their batches as ranges: times, parents, profiles, and spans."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.receiver import Receiver
from tests.torch.known_work import Work, train
from tests.unit.profiler.traces import exported, lines

import monitel.torch
import monitel_otlp
from monitel.profiler import profile, ranges, record_function
from monitel.profiler.ranges import Range
from monitel.testing import ManualClock

SECOND = 1_000_000_000

#: A range in seconds since the start of the clock: start, name, end, name of the parent.
Row = tuple[float, str, float, str]


@pytest.fixture
def recorded(clock: ManualClock) -> Callable[..., list[Row]]:
    """Provide a function that runs an action instrumented, and returns its ranges by their start and name."""

    def recorded(action: Callable[[], object]) -> list[Row]:
        found: list[Range] = []
        origin_ns = clock.monotonic_ns()
        with monitel.torch.instrument(window_size=float("inf")), ranges.listen(ended=found.append):
            action()
            assert ranges.current_range() is None  # nothing was left open
        return sorted(
            (
                (each.monotonic_start_ns - origin_ns) / SECOND,
                each.name,
                (each.monotonic_end_ns - origin_ns) / SECOND,
                "" if each.parent is None else each.parent.name,
            )
            for each in found
        )

    return recorded


def test_stages_batches_and_steps_are_ranges(recorded: Any, work: Work) -> None:
    """A step lasts from the end of an optimizer step to the end of the next one. The first forward is not known."""

    def own() -> None:
        with record_function("own"):
            work.takes(4)

    def loop() -> None:
        optimizer = work.optimizer()
        for _ in work.loader(3):
            work.forward(backward=own).backward()
            optimizer.step()

    expected: list[Row] = []
    for begin in (0.0, 15.0, 30.0):
        if begin:
            expected.append((begin, "training.step", begin + 15, ""))
            expected.append((begin + 1, "training.forward", begin + 3, ""))
        expected += [
            (begin, "training.data", begin + 1, ""),
            (begin + 3, "training.backward", begin + 7, ""),
            (begin + 3, "own", begin + 7, "training.backward"),
            (begin + 7, "training.optimizer", begin + 15, ""),
        ]
    expected.append((45.0, "training.data", 45.0, ""))  # this call of next() ends the epoch
    assert sorted(expected) == recorded(loop)


def test_exceptions_leave_no_range_open(recorded: Any, work: Work) -> None:
    """A backward that raises ends with the exception. An optimizer that raises has no range."""

    def fail() -> None:
        work.takes(1)
        raise LookupError

    def run() -> None:
        with record_function("user"):
            with suppress(LookupError):
                work.forward(backward=fail).backward()
            with suppress(LookupError):
                work.optimize(fail)
            work.step()

    assert [
        (0.0, "user", 50.0, ""),
        (2.0, "training.backward", 3.0, "user"),
        (3.0, "training.forward", 6.0, "user"),
        (6.0, "training.backward", 10.0, "user"),
        (10.0, "training.optimizer", 18.0, "user"),
    ] == recorded(run)


def test_profile_shows_steps_on_a_separate_line(work: Work, tmp_path: Path) -> None:
    """Parents, self times and the lines of the trace file are consistent, though steps overlap iterations."""
    with monitel.torch.instrument(), profile() as prof:
        for _ in monitel.torch.batches(range(3)):
            with record_function("iteration"):
                work.forward().backward()
                work.optimize()
                work.takes(1)
    events = [(event.name, event.cpu_parent and event.cpu_parent.name) for event in prof.events()]
    assert 3 == events.count(("training.optimizer", "iteration"))
    assert 2 == events.count(("training.step", None))
    averages = {each.key: (each.count, each.cpu_time_total, each.self_cpu_time_total) for each in prof.key_averages()}
    assert {
        "iteration": (3, 45e6, 5e6),
        "training.data": (4, 0.0, 0.0),
        "training.forward": (2, 4e6, 4e6),  # the first one is not known
        "training.backward": (3, 12e6, 12e6),
        "training.optimizer": (3, 24e6, 24e6),
        "training.step": (2, 30e6, 30e6),
    } == averages
    assert {"MainThread": 15, "steps (MainThread)": 2} == {
        name: len(found) for name, found in lines(exported(prof, tmp_path)).items()
    }


def test_trace_of_a_step_has_its_stages(receiver: Receiver, tmp_path: Path, work: Work) -> None:
    """With ``step_traces`` the span of the rank lasts as long as the step, and has the stages as children."""
    options: dict[str, Any] = {"endpoint": receiver.url, "spool_dir": tmp_path, "export_interval": 3600.0}
    with monitel_otlp.configure(**options, spans={"step_traces": True}), monitel.torch.instrument(sources="-waits"):
        train(work, 4)
    spans = receiver.spans()
    stages = {"training.data", "training.forward", "training.backward", "training.optimizer", "training.step"}
    for number in (1, 2):
        found = [each for each in spans if each.attributes.get("training.step") == number]
        (rank,) = [each for each in found if each.name == "training.rank"]
        assert 1 == len({each.trace_id for each in found})
        assert stages == {each.name for each in found if each.parent_id == rank.span_id}
        assert 47 * SECOND == rank.end_ns - rank.start_ns
