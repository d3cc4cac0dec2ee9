"""Tensors as numbers of log(): a number on a device does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel

torch: Any = pytest.importorskip("torch", reason="has tensors on a device: torch is not installed")

from tests.torch.scalars.later_device import later, on_later  # noqa: E402

if TYPE_CHECKING:
    from tests.torch.scalars.device_scalars import Scalars

pytestmark = pytest.mark.torch


def test_event_is_logged_when_its_numbers_have_arrived(device: Scalars, events: list[Any]) -> None:
    """The event has the time, step and attributes of the call, and the numbers that were known then."""
    with monitel.testing.ManualClock() as clock:
        called = clock.time_ns()
        monitel.log({"loss": on_later(0.5), "right": on_later(7), "lr": 0.25}, step=3, split="val")
        assert ([], 0) == (events, later.syncs)
        clock.advance(5)
        device.deliver()
    (event,) = events
    assert isinstance(event, monitel.LoggedNumbers)
    assert {"loss": 0.5, "right": 7, "lr": 0.25} == event.data
    assert (called, 3, {"split": "val"}, 0) == (event.time_ns, event.step, dict(event.attributes), event.left_out)


@pytest.mark.usefixtures("device")
def test_tensors_on_the_cpu_are_read_immediately(events: list[Any], recwarn: pytest.WarningsRecorder) -> None:
    """A tensor that requires a gradient gives no warning; one with several elements is left out."""
    values = {"loss": torch.tensor(0.5, requires_grad=True), "n": torch.tensor([3]), "many": torch.tensor([1.0, 2.0])}
    monitel.log(values)
    (event,) = events
    assert ({"loss": 0.5, "n": 3}, 1) == (event.data, event.left_out)
    assert [] == list(recwarn)


def test_tensor_that_cannot_be_read_is_left_out(device: Scalars, events: list[Any]) -> None:
    """The others are recorded, those on a device too."""
    monitel.log({"meta": torch.empty((), device="meta"), "lr": 0.25, "loss": on_later(0.5)})
    device.deliver()
    (event,) = events
    assert ({"lr": 0.25, "loss": 0.5}, 1) == (event.data, event.left_out)


def test_tensors_are_read_without_instrumentation(events: list[Any]) -> None:
    """Without the hooks, numbers are read immediately."""
    monitel.log({"loss": torch.tensor(0.5, requires_grad=True), "done": torch.tensor(True)})
    assert {"loss": 0.5, "done": 1} == events[0].data
