"""Training steps, their stages and their batches as ranges: times, parents, profiles, and spans."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.receiver import Receiver
from tests.torch.known_work import Work, train
from tests.unit.profiler.traces import exported, lines

import monitel.torch
import monitel_otlp
from monitel.profiler import profile, record_function

SECOND = 1_000_000_000


def rows(prof: Any) -> list[tuple[float, str, float, str | None]]:
    """Return start, name, end and name of the parent of each range, in seconds since the start of a profile."""
    return sorted(
        (each.time_range.start / 1e6, each.name, each.time_range.end / 1e6, each.cpu_parent and each.cpu_parent.name)
        for each in prof.events()
    )


def test_stages_batches_and_steps_are_ranges(work: Work, tmp_path: Path) -> None:
    """A step lasts from the end of an optimizer step to the end of the next one, and has a separate line.

    The first forward is not known. Parents and self times are consistent, though steps overlap iterations.
    """

    def own() -> None:
        with record_function("own"):
            work.takes(4)

    with monitel.torch.instrument(), profile() as prof:
        for _ in work.loader(2):
            with record_function("iteration"):
                work.forward(backward=own).backward()
                work.takes(1)
                work.optimize()
    assert [
        (0, "training.data", 1, None),
        (1, "iteration", 16, None),
        (3, "own", 7, "training.backward"),
        (3, "training.backward", 7, "iteration"),
        (8, "training.optimizer", 16, "iteration"),
        (16, "training.data", 17, None),
        (16, "training.step", 32, None),
        (17, "iteration", 32, None),
        (17, "training.forward", 19, "iteration"),
        (19, "own", 23, "training.backward"),
        (19, "training.backward", 23, "iteration"),
        (24, "training.optimizer", 32, "iteration"),
        (32, "training.data", 32, None),  # this call of next() ends the epoch
    ] == rows(prof)
    own_times = {each.key.removeprefix("training."): each.self_cpu_time_total / 1e6 for each in prof.key_averages()}
    assert {"iteration": 4, "data": 2, "forward": 2, "backward": 0, "own": 8, "optimizer": 16, "step": 16} == own_times
    assert {"MainThread": 12, "steps (MainThread)": 1} == {
        name: len(found) for name, found in lines(exported(prof, tmp_path)).items()
    }


def test_exceptions_leave_no_range_open(work: Work) -> None:
    """A backward that raises ends with the exception. An optimizer that raises has no range."""

    def fail() -> None:
        work.takes(1)
        raise LookupError

    with monitel.torch.instrument(), profile() as prof, record_function("user"):
        with suppress(LookupError):
            work.forward(backward=fail).backward()
        with suppress(LookupError):
            work.optimize(fail)
        work.step()
    assert [
        (0, "user", 50, None),
        (2, "training.backward", 3, "user"),
        (3, "training.forward", 6, "user"),
        (6, "training.backward", 10, "user"),
        (10, "training.optimizer", 18, "user"),
    ] == rows(prof)


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
