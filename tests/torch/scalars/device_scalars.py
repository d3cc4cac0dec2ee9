"""Tensors on the device of ``later_device.py``, with the hooks that record them, for several test files."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.torch.scalars.later_device import later, start

import monitel
from monitel.torch.scalars import fetcher
from monitel.torch.scalars.fetcher import Fetcher
from monitel.torch.scalars.hooks import ScalarHooks

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = list(monitel.Aggregation)


class Scalars:
    """Installed hooks. Their thread polls only while a flush waits and when a page is full.

    Attributes:
        hooks: The hooks.
        fetcher: Their fetcher.
    """

    def __init__(self) -> None:
        self.hooks = ScalarHooks(Fetcher(60.0))
        self.fetcher: fetcher.Fetcher = self.hooks._fetcher

    def advance(self) -> None:
        """Do what the thread does each second."""
        self.fetcher.advance()

    def deliver(self) -> None:
        """Have the device execute everything, and fetch all numbers."""
        self.advance()
        later.run()
        self.advance()

    def answer(self) -> None:
        """Have the device execute operations as soon as it is asked, and let a flush wait for as long as that takes."""
        later.answers = True
        fetcher._WAIT_S = 30.0  # scalars() restores it

    @property
    def lost(self) -> int:
        """The number of tensors counted as lost."""
        return 0 if self.fetcher._lost is None else self.fetcher._lost.count


@contextmanager
def scalars() -> Iterator[Scalars]:
    """Install the hooks beside an idle device. A flush waits 0.2 s at most."""
    start()
    later.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetcher, "_POLL_S", 3600.0)
        patch.setattr(fetcher, "_WAIT_S", 0.2)
        made = Scalars()
        made.hooks.install()
        yield made
        if made.hooks._on:
            made.hooks.remove()
    later.reset()


def windows(events: list[monitel.Event], name: str = "loss") -> list[monitel.Window]:
    """Return the logged windows of a Stat."""
    return [event.window for event in events if event.window is not None and event.window.name == name]
