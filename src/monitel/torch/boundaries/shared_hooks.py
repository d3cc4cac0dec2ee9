"""Hooks of torch that several sources share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

_Listener = TypeVar("_Listener")


class SharedHooks(ABC, Generic[_Listener]):
    """Hooks that are installed while they have listeners. A hook reads the clock once, for all listeners."""

    def __init__(self) -> None:
        self.listeners: tuple[_Listener, ...] = ()

    def add(self, listener: _Listener) -> None:
        """Add a listener; the first one installs the hooks."""
        if not self.listeners:
            self._install()
        self.listeners += (listener,)

    def discard(self, listener: _Listener) -> None:
        """Remove a listener; the last one removes the hooks. Idempotent."""
        if listener in self.listeners:
            self.listeners = tuple(each for each in self.listeners if each is not listener)
            if not self.listeners:
                self._remove()

    @abstractmethod
    def _install(self) -> None:
        """Install the hooks; raise Missing if this version of torch lacks them."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the hooks."""
