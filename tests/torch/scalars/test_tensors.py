"""Stat.add() with tensors of the CPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch
from monitel import _window  # noqa: E402
from monitel.torch.scalars import fetcher, hooks  # noqa: E402
from monitel.value import to_float  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def source() -> Iterator[hooks.ScalarHooks]:
    """Install the hooks."""
    source = hooks.ScalarHooks(fetcher.Fetcher(60.0))
    source.install()
    yield source
    source.remove()


@pytest.fixture
def stat() -> monitel.Stat:
    """Create a Stat whose window stays open."""
    return monitel.Stat("loss", [monitel.SUM], math.inf)


def added(stat: monitel.Stat, *samples: Any) -> dict[monitel.Aggregation, float]:
    """Add samples, and return the aggregations."""
    for sample in samples:
        stat.add(sample)
    stat.flush()
    return stat.get()


@pytest.mark.usefixtures("source")
def test_tensor_of_one_element_is_its_item(stat: monitel.Stat) -> None:
    """This holds for any dtype, for parameters, and for tensors that require a gradient, without torch's warning."""
    made = [torch.tensor(2), torch.tensor([[0.5]]), torch.tensor(True), torch.tensor(0.25, dtype=torch.bfloat16)]
    loss = torch.tensor(1.5, requires_grad=True) * 2
    made += [loss, torch.nn.Parameter(torch.ones(1))]
    assert {monitel.SUM: math.fsum(each.detach().item() for each in made)} == added(stat, *made)
    loss.backward()


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor(1j), torch.ones(1, device="meta")])
def test_other_tensors_are_refused(stat: monitel.Stat, value: Any) -> None:
    """The error is the one raised without the hook."""
    with pytest.raises(TypeError, match=r"add\(\) takes a real number"):
        stat.add(value)
    assert 0 == stat.count


@pytest.mark.usefixtures("source")
def test_other_values_go_to_the_previous_hook(stat: monitel.Stat) -> None:
    """The hook handles tensors only."""
    assert {monitel.SUM: 3.0} == added(stat, True, 2)
    with pytest.raises(TypeError, match="got str"):
        stat.add("1")


@pytest.mark.usefixtures("source")
def test_dtensor_is_refused(stat: monitel.Stat) -> None:
    """The message names the alternatives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        loss = distribute_tensor(torch.ones(1), init_device_mesh("cpu", (1,)))
        with pytest.raises(TypeError, match=r"add\(\) does not take a DTensor.*pass loss.to_local\(\)"):
            stat.add(loss)
        with pytest.raises(TypeError, match=r"emit\(\) does not take a DTensor"):
            monitel.emit("evaluated", loss=loss)
        assert {monitel.SUM: 1.0} == added(stat, loss.to_local())
    finally:
        distributed.destroy_process_group()


def test_remove_restores_the_previous_hook() -> None:
    """A hook that somebody else has set since stays, and ours then only passes values on."""
    source = hooks.ScalarHooks(fetcher.Fetcher(60.0))
    source.install()
    source.remove()
    assert to_float is _window.set_value_hook(to_float)
    source.install()

    def theirs(_stat: object, _value: object) -> float:
        return 7.0

    ours = _window.set_value_hook(theirs)
    source.remove()
    assert theirs is _window.set_value_hook(to_float)
    assert 1.0 == ours(None, torch.ones(1))


def test_counters_refuse_tensors() -> None:
    """The value may have to be waited for; the size of a shape is known."""
    tokens = monitel.counter("test_tensors.tokens")
    with pytest.raises(TypeError, match=r"add\(\) takes a number, got Tensor"):
        tokens.add(torch.tensor(3))
    tokens.add(torch.zeros(4, 8).numel())
    assert 32 == tokens.total
