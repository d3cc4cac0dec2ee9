"""Tensors as samples."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import Tensor

from monitel._window import set_value_hook

if TYPE_CHECKING:
    from collections.abc import Callable


class Tensors:
    """Has ``Stat.add`` know tensors: one that needs a gradient gives its value without a warning.

    A DTensor is refused: to read one is a collective operation, in which a rank that adds alone would wait for ever.
    """

    def install(self) -> None:
        """Put the value hook before the one that is there."""
        self._on = True
        self._before: Callable[[object, object], float | None] = set_value_hook(self._to_float)

    def remove(self) -> None:
        """Put that one back; where somebody has put another before ours, it only passes on."""
        self._on = False
        current = set_value_hook(self._before)
        if current != self._to_float:
            set_value_hook(current)

    def _to_float(self, stat: object, value: object) -> float | None:
        if self._on and isinstance(value, Tensor):
            distributed = sys.modules.get("torch.distributed.tensor")
            if distributed is not None and isinstance(value, distributed.DTensor):
                raise TypeError(
                    "add() takes no DTensor, whose value all ranks must ask for together: "
                    "add(loss.to_local()) adds this rank's part, add(loss.full_tensor()) on all ranks the whole"
                )
            value = value.detach()
        return self._before(stat, value)
