"""Stages that end with an exception, and instrumentation that ends within a stage."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.known_work import STEP, logged_cycles, step  # noqa: E402

import monitel.torch  # noqa: E402  after the check for torch
from monitel.profiler import ranges  # noqa: E402

if TYPE_CHECKING:
    from tests.torch.stages.known_work import Cycles, Work

    from monitel.testing import ManualClock

    Run = Callable[..., Cycles]

pytestmark = pytest.mark.torch
_HOOKS = "monitel.torch.stages", "monitel.torch.boundaries"
_LOGGING = {"_log", "_owns", "<lambda>", "several_ranks"}


class FailingBatches:
    """Batches of 1 s, the third of which fails after 16 s; asked again, it arrives."""

    def __init__(self, work: Work, error: type[BaseException]) -> None:
        self._work = work
        self._error = error
        self._asked = 0

    def __iter__(self) -> FailingBatches:
        return self

    def __next__(self) -> int:
        self._asked += 1
        if self._asked == 3:
            self._work.takes(16)
            raise self._error("no batch")
        self._work.takes(1)
        return self._asked


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_request_that_raises(error: type[BaseException], work: Work, cycles: Run) -> None:
    """The loop asks again. Both requests are ``data``, as the batch of the iterator arrives in the end."""
    optimizer = work.optimizer()

    def train() -> None:
        batches = iter(monitel.torch.batches(FailingBatches(work, error)))
        for _ in range(4):
            try:
                next(batches)
            except error:
                next(batches)
            step(work, optimizer)

    assert [STEP, {**STEP, "data": 17}, STEP] == cycles(train)


def test_loader_that_cannot_be_opened(work: Work, cycles: Run) -> None:
    """The failed attempt is ``other``."""
    optimizer = work.optimizer()

    class Closed(torch.utils.data.IterableDataset):  # type: ignore[misc]
        """Fails after 16 s."""

        def __iter__(self) -> Any:
            work.takes(16)
            raise OSError("no file")

    def train() -> None:
        for _ in work.loader(3):
            step(work, optimizer)
            with suppress(OSError):
                iter(torch.utils.data.DataLoader(Closed(), batch_size=None))

    assert [{**STEP, "other": 32 + 16}] * 2 == cycles(train)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_forward_that_raises(error: type[BaseException], work: Work, cycles: Run) -> None:
    """The loop takes the next batch. The failed attempt is ``other``, as no backward has followed."""
    optimizer = work.optimizer()

    def train() -> None:
        for index, _ in enumerate(work.loader(5)):
            try:
                if index == 2:
                    work.takes(16)
                    raise error("no loss")
            except error:
                continue
            step(work, optimizer)

    assert [STEP, {**STEP, "other": 32 + 16, "data": 2}, STEP] == cycles(train)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_backward_that_raises(error: type[BaseException], work: Work, cycles: Run) -> None:
    """A job that runs out of memory skips the batch. Its stages are part of the next cycle that ends."""
    optimizer = work.optimizer()

    def fail() -> None:
        work.takes(16)
        raise error("no gradient")

    def train() -> None:
        for index, _ in enumerate(work.loader(5)):
            try:
                work.forward(backward=fail if index == 2 else 4).backward()
            except error:
                assert not torch._C._current_graph_task_id() >= 0
                continue
            optimizer.step()
            work.takes(32)

    twice = {**STEP, "data": 2, "forward": 4, "backward": 20}
    assert [STEP, twice, STEP] == cycles(train)


def test_backward_of_a_graph_that_was_freed(work: Work, cycles: Run) -> None:
    """The error is torch's, and costs no time."""
    optimizer = work.optimizer()

    def train() -> None:
        for _ in work.loader(3):
            loss = work.forward()
            loss.backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()
            optimizer.step()
            work.takes(32)

    with ranges.listen(ended=lambda _: None):
        assert [STEP] * 2 == cycles(train)
        assert ranges.current_range() is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.ones(1).backward(), "does not require grad"),
        (lambda: torch.autograd.backward([]), None),
        (lambda: torch.autograd.backward(None), None),
        (lambda: torch.autograd.backward(*()), "missing 1 required positional argument"),
        (lambda: torch.ones(2, requires_grad=True).backward(), "can be implicitly created only for scalar"),
    ],
)
def test_backward_with_wrong_arguments(call: Callable[[], object], message: str | None, work: Work) -> None:
    """The error, or none, is that of torch alone."""

    def error() -> str | None:
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    expected = error()
    assert message is None or message in str(expected)
    with monitel.torch.instrument():
        work.forward().backward()
        assert expected == error()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_optimizer_that_raises(error: type[BaseException], work: Work, cycles: Run) -> None:
    """The cycle has ended all the same. The time of the failed step is ``other``."""
    optimizer = work.optimizer()

    def train() -> None:
        for index, _ in enumerate(work.loader(4)):
            optimizer.error = error("no step") if index == 1 else None
            with suppress(error):
                step(work, optimizer)

    failed = {"other": 8, "data": 1, "forward": 2, "backward": 4}
    assert [STEP, failed, STEP] == cycles(train)


def test_optimizer_that_raises_in_backward(work: Work, cycles: Run) -> None:
    """The cycle ends with this backward."""
    optimizer = work.optimizer()

    def train() -> None:
        for index, _ in enumerate(work.loader(4)):
            optimizer.error = ValueError("no step") if index == 1 else None
            with suppress(ValueError):
                work.forward(backward=optimizer.step).backward()
            work.takes(32)

    assert [{"other": 32, "data": 1, "forward": 2, "backward": 8}] * 3 == cycles(train)


def _interrupting(at: int) -> Callable[[Any, str, Any], None]:
    """Return a profile function that raises KeyboardInterrupt where Python handles a signal for the n-th time.

    That is at the begin of functions, and after calls of functions in C. Only the hooks' code counts, without the
    logging of a cycle, which is lost if that is interrupted.
    """
    left = at

    def interrupt(frame: Any, event: str, _argument: Any) -> None:
        nonlocal left
        name = frame.f_globals.get("__name__", "")
        if event in {"call", "c_return"} and name.startswith(_HOOKS) and frame.f_code.co_name not in _LOGGING:
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    return interrupt


def test_interrupts_within_the_hooks_lose_nothing_for_good(work: Work, cycles: Run, clock: ManualClock) -> None:
    """As in a notebook: the cell is interrupted at any moment, and runs again."""
    optimizer = work.optimizer()

    def epoch(number: int) -> None:
        for _ in monitel.torch.batches(work.loader(number)):
            step(work, optimizer)

    def train() -> None:
        epoch(2)
        for attempt in range(1, 1000):
            sys.setprofile(_interrupting(attempt))
            try:
                epoch(2)
            except KeyboardInterrupt:
                sys.setprofile(None)
                epoch(3)
            else:
                break
            finally:
                sys.setprofile(None)
        attempts.append(attempt)

    attempts: list[int] = []
    found = cycles(train)
    assert 40 < attempts[0] < 999
    # Of the three steps after each interrupt the last two are right, and all cycles add up to the time since the first.
    assert found.count(STEP) >= 2 * (attempts[0] - 1)
    first, last = 1 + 2 + 4, clock.monotonic_ns() / 1e9 - 8 - 32
    assert last - first == sum(sum(each.values()) for each in found)


STAGES: dict[str, Callable[[Work, Any, Callable[[], None]], None]] = {}


def stage(function: Callable[[Work, Any, Callable[[], None]], None]) -> None:
    """Add a step that calls a function within one of its stages."""
    STAGES[function.__name__] = function


@stage
def data(work: Work, optimizer: Any, switch: Callable[[], None]) -> None:
    """Make the batch."""

    def made() -> Any:
        work.takes(1)
        switch()
        yield

    for _ in monitel.torch.batches(made()):
        step(work, optimizer)


@stage
def forward(work: Work, optimizer: Any, switch: Callable[[], None]) -> None:
    """Compute the loss."""
    for _ in work.loader(1):
        switch()
        step(work, optimizer)


@stage
def backward(work: Work, optimizer: Any, switch: Callable[[], None]) -> None:
    """Compute the gradients."""
    for _ in work.loader(1):
        work.forward(backward=switch).backward()
        optimizer.step()


@stage
def optimizer_step(work: Work, optimizer: Any, switch: Callable[[], None]) -> None:
    """Call the optimizer with a closure."""
    for _ in work.loader(1):
        work.forward().backward()
        optimizer.step(switch)


@stage
def optimizer_in_backward(work: Work, optimizer: Any, switch: Callable[[], None]) -> None:
    """Call the optimizer within backward."""
    for _ in work.loader(1):
        work.forward(backward=lambda: optimizer.step(switch)).backward()


@stage
def other(work: Work, optimizer: Any, switch: Callable[[], None]) -> None:
    """Make a whole step, and do something else."""
    for _ in work.loader(1):
        step(work, optimizer)
        switch()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", STAGES)
def test_uninstrument_within_a_stage(name: str, again: bool, work: Work) -> None:
    """The cycle under way is not reported. Instrumentation may begin in the same place."""
    optimizer = work.optimizer()
    running: list[Any] = []
    before = torch.autograd.Variable._execution_engine, torch.utils.data.dataloader._BaseDataLoaderIter.__next__

    def end() -> None:
        running.pop().uninstrument()

    def switch() -> None:
        end()
        if again:
            begin()

    def begin() -> None:
        running.append(monitel.torch.instrument(window_size=0.001))

    with monitel.testing.capture_events() as events, ranges.listen(ended=lambda _: None):
        begin()
        for _ in work.loader(3):
            step(work, optimizer)
        STAGES[name](work, optimizer, switch)
        assert ranges.current_range() is None
        assert [STEP] * (3 if name == "other" else 2) == logged_cycles(events)[:3]
        events.clear()
        for _ in work.loader(3):
            step(work, optimizer)
        monitel.flush()
        found = logged_cycles(events)
        if again:
            end()
    assert found[-2:] == ([STEP] * 2 if again else [])
    assert before == (
        torch.autograd.Variable._execution_engine,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )
