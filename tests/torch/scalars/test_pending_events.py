"""Events with tensors as details."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

import pytest

import monitel

torch: Any = pytest.importorskip("torch", reason="has tensors on a device: torch is not installed")

from tests.torch.scalars.later_device import later, on_later  # noqa: E402

if TYPE_CHECKING:
    from tests.torch.scalars.device_scalars import Scalars

pytestmark = pytest.mark.torch


def test_event_is_logged_when_its_numbers_have_arrived(device: Scalars, events: list[monitel.Event]) -> None:
    """The event has the time, the step and the context of ``emit()``."""
    caller = contextvars.ContextVar("caller", default="elsewhere")
    seen: list[Any] = []
    monitel.set_step(3)
    with (
        monitel.testing.ManualClock() as clock,
        monitel.register_event_handler(lambda event: seen.append((event.step, caller.get()))),
    ):
        emitted = clock.time_ns()
        token = caller.set("the loop")
        monitel.emit("evaluated", {"split": "val"}, loss=on_later(0.5), right=on_later(7), done=on_later(True), n=1)
        caller.reset(token)
        assert ([], 0, 3) == (events, later.syncs, later.launches)
        monitel.set_step(4)
        clock.advance(5)
        device.deliver()
    (event,) = events
    assert {"split": "val", "n": 1, "loss": 0.5, "right": 7, "done": True} == event.data
    assert [float, int, bool] == [type(event.data[key]) for key in ("loss", "right", "done")]
    assert round(emitted / 1e9) == round(event.timestamp.timestamp())
    assert [(3, "the loop")] == seen


@pytest.mark.usefixtures("device")
def test_event_with_cpu_tensors_is_logged_immediately(events: list[monitel.Event]) -> None:
    """Its details are the results of ``item()``; a tensor of several elements is refused."""
    monitel.emit("evaluated", {"loss": torch.tensor(0.5)}, right=torch.tensor([7]))
    assert [{"loss": 0.5, "right": 7}] == [event.data for event in events]
    for wrong in (torch.ones(2), on_later([1.0, 2.0])):
        with pytest.raises(TypeError, match="Event data 'loss': a value must be a str, int, float or bool"):
            monitel.emit("evaluated", loss=wrong)


@pytest.mark.usefixtures("device")
def test_invalid_event_is_refused_immediately(events: list[monitel.Event]) -> None:
    """The device is not called then."""
    with pytest.raises(TypeError, match="Event name must be a str"):
        monitel.emit(None, loss=on_later(1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Event data must be a mapping"):
        monitel.emit("x", 3, loss=on_later(1.0))  # type: ignore[arg-type]
    assert ([], 0) == (events, later.launches)


def test_event_is_logged_without_a_lost_number(device: Scalars, events: list[monitel.Event]) -> None:
    """The other details are kept."""
    monitel.emit("evaluated", loss=on_later(1.0), epoch=2)
    device.hooks.remove()
    assert [{"epoch": 2}] == [event.data for event in events if event.window is None]
