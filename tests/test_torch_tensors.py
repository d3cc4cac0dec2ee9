"""Stat.add(tensor), with monitel.torch.instrument()."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel import _window  # noqa: E402
from monitel.torch import tensors  # noqa: E402
from monitel.value import to_float  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def source() -> Iterator[tensors.Tensors]:
    """Put the hook in place."""
    source = tensors.Tensors(60.0)
    source.install()
    yield source
    source.remove()


@pytest.fixture
def stat() -> monitel.Stat:
    """Make a Stat whose window stays open."""
    return monitel.Stat("loss", [monitel.SUM], math.inf)


def added(stat: monitel.Stat, *samples: Any) -> dict[monitel.Aggregation, float]:
    """Add, and give what the Stat says."""
    for sample in samples:
        stat.add(sample)
    stat.flush()
    return stat.get()


@pytest.mark.usefixtures("source")
def test_a_tensor_is_its_item(stat: monitel.Stat) -> None:
    """One element, of any number type; parameters and whatever needs a gradient too, without torch's warning."""
    made = [torch.tensor(2), torch.tensor([[0.5]]), torch.tensor(True), torch.tensor(0.25, dtype=torch.bfloat16)]
    loss = torch.tensor(1.5, requires_grad=True) * 2
    made += [loss, torch.nn.Parameter(torch.ones(1))]
    assert {monitel.SUM: math.fsum(each.detach().item() for each in made)} == added(stat, *made)
    loss.backward()


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor(1j), torch.ones(1, device="meta")])
def test_refused_tensors(stat: monitel.Stat, value: Any) -> None:
    """As without the hook."""
    with pytest.raises(TypeError, match=r"add\(\) takes a real number"):
        stat.add(value)
    assert 0 == stat.count


@pytest.mark.usefixtures("source")
def test_other_values_are_as_ever(stat: monitel.Stat) -> None:
    """What is no tensor goes to the hook that was there."""
    assert {monitel.SUM: 3.0} == added(stat, True, 2)
    with pytest.raises(TypeError, match="got str"):
        stat.add("1")


@pytest.mark.usefixtures("source")
def test_a_dtensor_is_refused(stat: monitel.Stat) -> None:
    """The message says what to write."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        loss = distribute_tensor(torch.ones(1), init_device_mesh("cpu", (1,)))
        with pytest.raises(TypeError, match=r"add\(\) takes no DTensor.*loss.to_local\(\) is this rank's part"):
            stat.add(loss)
        with pytest.raises(TypeError, match=r"emit\(\) takes no DTensor"):
            monitel.emit("evaluated", loss=loss)
        assert {monitel.SUM: 1.0} == added(stat, loss.to_local())
    finally:
        distributed.destroy_process_group()


def test_the_hook_is_taken_back() -> None:
    """Or, where somebody has put another before it, passes on."""
    source = tensors.Tensors(60.0)
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
