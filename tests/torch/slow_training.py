"""A model, an optimizer and batches that take fixed times of a manual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel.profiler import record_function

if TYPE_CHECKING:
    from monitel.testing import ManualClock

import torch


class Slow(torch.autograd.Function):  # type: ignore[misc]
    """Takes 2 s forward and 4 s backward."""

    clock: ManualClock

    @staticmethod
    def forward(_context: Any, x: Any) -> Any:
        """Pass the input on."""
        Slow.clock.advance(2)
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: Any) -> Any:
        """Pass the gradient on."""
        Slow.clock.advance(4)
        return gradient


class Net(torch.nn.Module):  # type: ignore[misc]
    """One weight."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        Slow.clock = clock
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply the input by the weight."""
        return Slow.apply(x.sum() * self.weight).sum()


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Takes 1 s before and 3 s after each call of its closure, and 8 s without one."""

    def __init__(self, clock: ManualClock, parameters: Any, calls: int = 1) -> None:
        super().__init__(parameters, {})
        self.clock = clock
        self.calls = calls

    def step(self, closure: Any = None) -> Any:
        """Call the closure."""
        if closure is None:
            self.clock.advance(8)
        for _ in range(self.calls if closure else 0):
            self.clock.advance(1)
            closure()
            self.clock.advance(3)


class Batches(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Three samples that take 16 s each."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 3

    def __getitem__(self, _index: int) -> Any:
        with record_function("read"):
            self.clock.advance(16)
        return torch.ones(1)


def train(clock: ManualClock, model: Net, optimizer: Any) -> None:
    """Train three steps; each waits 16 s for its batch, and takes 2 + 4 + 8 s."""
    for x in torch.utils.data.DataLoader(Batches(clock)):
        model(x).backward()
        optimizer.step()
