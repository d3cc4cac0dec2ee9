"""Steps of fused optimizers, which decide on a device whether they skip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.scalars.device_scalars import scalars  # noqa: E402  after the check for torch
from tests.torch.scalars.later_device import later, on_later  # noqa: E402

import monitel.torch  # noqa: E402
from monitel.torch import instrumentation  # noqa: E402
from monitel.torch.scalars import fetcher  # noqa: E402
from monitel.torch.sources import step_outcome  # noqa: E402

pytestmark = pytest.mark.torch


def counted(totals: Callable[[], dict[str, float]]) -> tuple[float, float]:
    """Return the numbers of applied and of skipped steps."""
    found = totals()
    return found["steps"], found["steps.skipped"]


@pytest.fixture
def device() -> Iterator[Any]:
    """Provide a device that computes nothing before a test asks for it."""
    with scalars() as device:
        device.hooks.remove()
        yield device


class OnDevice(torch.optim.Optimizer):  # type: ignore[misc]
    """A fused optimizer that decides on a device."""

    def __init__(self, found_inf: Any) -> None:
        super().__init__([torch.nn.Parameter(torch.ones(1))], {})
        self.found_inf = found_inf

    def step(self, closure: Any = None) -> Any:
        """Do nothing: another device decides."""


@pytest.mark.usefixtures("device")
def test_result_on_a_device_is_counted_when_it_arrives(windows: Any, totals: Any) -> None:
    """No step waits for the device, and none is counted before the device has decided."""
    end = windows()
    own = OnDevice(None)
    for found_inf in (1.0, 0.0, 0.0, 2.0):
        own.found_inf = on_later(found_inf)
        own.step()
    assert ((0, 0), 4, 0) == (counted(totals), monitel.get_step(), later.syncs)
    running: Any = instrumentation._running
    tensors = running._sources["tensors"]._fetcher
    tensors.advance()
    later.run()
    tensors.advance()
    assert (2, 1) == counted(totals)  # another optimizer might join the last step
    end()
    assert ((2, 2), 0) == (counted(totals), later.syncs)


@pytest.mark.usefixtures("device")
def test_results_are_awaited_at_the_end(windows: Any, totals: Any) -> None:
    """This holds without the source of tensors, too."""
    end = windows(tensors=False)
    own = OnDevice(None)
    for found_inf in (1.0, 0.0, 1.0):
        own.found_inf = on_later(found_inf)
        own.step()
    later.answers, fetcher._WAIT_S = True, 30.0
    end()
    assert (1, 2) == counted(totals)


@pytest.mark.usefixtures("device")
def test_result_that_never_arrives_counts_as_applied(windows: Any, totals: Any) -> None:
    """Neither the end of the instrumentation nor a graph capture waits for it."""
    end = windows()
    own = OnDevice(on_later(1.0))
    own.step()
    later.capturing = True
    own.step()
    assert 1 == counted(totals)[0]
    later.capturing = False
    end()
    assert (2, 0) == counted(totals)


def test_outcome_counts_once() -> None:
    """Results arrive in any order, before or after the end of the step."""
    applied, skipped = monitel.counter("test.applied"), monitel.counter("test.skipped")

    class Numbers:
        """Keeps pending numbers."""

        pending: list[Any]

        def read(self, _tensor: object, pending: Any) -> None:
            """Keep one."""
            self.pending.append(pending)

    numbers: Any = Numbers()
    for values, ends_first, expected in (
        ((1.0, 1.0), False, (0, 1)),
        ((1.0, 0.0), False, (1, 1)),
        ((1.0, 0.0), True, (2, 1)),
        ((None, 1.0), True, (3, 1)),
        ((1.0, 1.0), True, (3, 2)),
    ):
        numbers.pending = []
        outcome = step_outcome.StepOutcome(applied, skipped, numbers, monitel.counter("x")._lock)
        for _ in values:
            outcome.add([torch.ones(())])
        if ends_first:
            outcome.end()
        for pending, value in zip(reversed(numbers.pending), values, strict=True):
            pending.resolve(value)._log_resolved()
        outcome.end()
        assert expected == (applied.total, skipped.total)
