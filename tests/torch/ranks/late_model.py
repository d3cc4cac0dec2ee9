"""A model of a known duration, and the places at which one rank may be late."""

from collections.abc import Iterator
from threading import Event
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 16, 4
LATE = 0.030  # seconds
#: The places of a step, each with the stage to which it belongs and its duration in seconds.
PLACES = {
    "data": ("data", 0.004),
    "forward, begin": ("forward", 0.003),
    "forward, middle": ("forward", 0.003),
    "backward, begin": ("backward", 0.004),
    "backward, middle": ("backward", 0.004),
    "optimizer": ("optimizer", 0.003),
    "other": ("other", 0.002),
}
_never = Event()


class Pauses:
    """The known duration of each place on this rank, one of which may be longer.

    Args:
        scale: Factor of all durations.
    """

    place, victim = "", -1

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def spend(self, place: str, share: float = 1.0) -> None:
        late = place == self.place and distributed.get_rank() == self.victim
        _never.wait(self._scale * share * (PLACES[place][1] + (LATE if late else 0)))


class _Spend(torch.autograd.Function):  # type: ignore[misc]  # Any where torch is not installed
    @staticmethod
    def forward(context: Any, tensor: Tensor, pauses: Pauses, places: tuple[str, str], share: float) -> Tensor:
        context.rest = pauses, places[1], share
        if places[0]:
            pauses.spend(places[0], share)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        pauses, place, share = context.rest
        if place:
            pauses.spend(place, share)
        return gradient, None, None, None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # as above
def spend(tensor: Tensor, pauses: Pauses, forward: str, backward: str, share: float = 1.0) -> Tensor:
    """Return the tensor; spend the time of a place in forward, and of another one in backward."""
    return _Spend.apply(tensor, pauses, (forward, backward), share)


class Model(nn.Module):  # type: ignore[misc]  # as above
    """Four layers with the places of forward and backward between them.

    Args:
        pauses: Spends the time.
        norm: A layer after the first one.
        reentrant: Checkpoint the layers.
        share: Of the duration of each place, where a step has several forwards.
    """

    def __init__(
        self, pauses: Pauses, norm: nn.Module | None = None, *, reentrant: bool = False, share: float = 1.0
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = norm
        self._pauses, self._reentrant, self._share = pauses, reentrant, share

    def forward(self, inputs: Tensor) -> Tensor:
        tensor = spend(inputs, self._pauses, "forward, begin", "", self._share)
        for number, layer in enumerate(self.layers):
            if number == 2:
                tensor = spend(tensor, self._pauses, "forward, middle", "backward, middle", self._share)
            tensor = checkpoint(layer, tensor, use_reentrant=True) if self._reentrant else layer(tensor)
            if number == 0 and self.norm is not None:
                tensor = self.norm(tensor)
        return spend(tensor.tanh(), self._pauses, "", "backward, begin", self._share)


class _Zeros(Dataset):  # type: ignore[misc]  # as above
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), 0.01 * (index % 7 + distributed.get_rank()))


def batches(pauses: Pauses, share: float = 1.0) -> Iterator[Tensor]:
    """Return an iterator of a DataLoader that spends the time of ``data``."""

    def collate(samples: list[Tensor]) -> Tensor:
        pauses.spend("data", share)
        return torch.stack(samples).requires_grad_()

    return iter(DataLoader(_Zeros(), BATCH, collate_fn=collate))
