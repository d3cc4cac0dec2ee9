"""Steps that GradScaler skips, on the host or on a device. The truth is whether parameters changed."""

from math import inf, nan
from typing import Any

import pytest
import torch
from tests.torch.known_work import total
from tests.torch.later_device import idle, later, on_later

import monitel
import monitel.torch

#: Gradients of consecutive steps; those that are not finite are skipped, among them the first and the last.
GRADIENTS = (inf, 1.0, nan, -inf, 2.0, 0.5, 1.0, inf)


class Trained:
    """A parameter and its optimizer, with the number of steps that changed the parameter.

    Attributes:
        applied: Steps after which the parameter was another one.
    """

    def __init__(self, *, fused: bool) -> None:
        self.parameter = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.Adam([self.parameter], lr=0.1, foreach=False, fused=fused)
        self.applied = 0

    def backward(self, scaler: Any, gradient: float) -> None:
        self.parameter.grad = scaler.scale(torch.full((2,), gradient))

    def step(self, scaler: Any) -> None:
        before = self.parameter.detach().clone()
        scaler.step(self.optimizer)
        self.applied += not torch.equal(before, self.parameter.detach())


class Delegating(torch.amp.GradScaler):  # type: ignore[misc]
    """A scaler whose step() calls that of its base."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return super().step(optimizer, *args, **kwargs)


class Clearing(torch.amp.GradScaler):  # type: ignore[misc]
    """A scaler that applies each step, with zero in the place of a gradient that is not finite."""

    def _maybe_opt_step(self, optimizer: Any, _state: Any, *args: Any, **kwargs: Any) -> Any:
        for group in optimizer.param_groups:
            for each in group["params"]:
                each.grad.nan_to_num_(nan=1.0, posinf=1.0, neginf=1.0)
        return optimizer.step(*args, **kwargs)


def counted() -> tuple[float, float]:
    """Return the numbers of applied and of skipped steps."""
    return total("steps"), total("steps.skipped")


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scaler_type", [torch.amp.GradScaler, Delegating, Clearing])
def test_skipped_steps_are_counted_separately(scaler_type: Any, fused: bool, unscales: bool, windows: Any) -> None:
    """The step of the process advances with each attempt."""
    trained, scaler = Trained(fused=fused), scaler_type("cpu", init_scale=8.0)
    end = windows()
    for number, gradient in enumerate(GRADIENTS, 1):
        trained.backward(scaler, gradient)
        if unscales:
            scaler.unscale_(trained.optimizer)
        trained.step(scaler)
        scaler.update()
        assert number == monitel.get_step()
    end()
    assert (trained.applied, len(GRADIENTS) - trained.applied) == counted()
    assert trained.applied == (len(GRADIENTS) if scaler_type is Clearing and not fused else 4)


def test_step_of_two_optimizers_counts_as_the_first(windows: Any) -> None:
    """With one scaler for both, of which one may decide on its device."""
    first, second = Trained(fused=True), Trained(fused=False)
    scaler = torch.amp.GradScaler("cpu")
    end = windows()
    for number, each in enumerate([(inf, inf), (1.0, 1.0), (inf, 1.0), (1.0, inf), (nan, nan)], 1):
        for trained, gradient in zip((first, second), each, strict=True):
            trained.backward(scaler, gradient)
        for trained in (first, second):
            trained.step(scaler)
        scaler.update()
        assert number == monitel.get_step()
    end()
    assert (first.applied, second.applied, (2, 3)) == (2, 2, counted())


class OnDevice(torch.optim.Optimizer):  # type: ignore[misc]
    def __init__(self, found_inf: Any) -> None:
        super().__init__([torch.nn.Parameter(torch.ones(1))], {})
        self.found_inf = found_inf

    def step(self, closure: Any = None) -> Any:
        """Do nothing: another device decides."""


@pytest.mark.parametrize("tensors", [True, False])
def test_result_on_a_device_is_counted_when_it_arrives(tensors: bool, windows: Any) -> None:
    """No step waits for the device, and none is counted before the device has decided. The end waits."""
    with idle():
        end, own = windows(sources=None if tensors else "-tensors"), OnDevice(None)
        for found_inf in (1.0, 0.0, 0.0, 2.0):
            own.found_inf = on_later(found_inf)
            own.step()
        assert ((0, 0), 4, 0) == (counted(), monitel.get_step(), later.syncs)
        later.answers = True
        end()
        assert ((2, 2), 0) == (counted(), later.syncs)


def test_result_that_never_arrives_counts_as_applied(windows: Any) -> None:
    """So does a step within the capture of a graph. The end waits for 2 s at most."""
    with idle():
        end, own = windows(), OnDevice(on_later(1.0))
        own.step()
        later.capturing = True
        own.step()
        assert (1, 0) == counted()
        later.capturing = False
        end()
        assert (2, 0) == counted()
