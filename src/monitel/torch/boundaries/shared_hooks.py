"""Hooks of torch that several sources share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monitel import clock

if TYPE_CHECKING:
    from monitel.torch.stages.cycle import TrainingThread

_Listener = TypeVar("_Listener")


class SharedHooks(ABC, Generic[_Listener]):
    """Hooks that are installed while they have users. They report to those users that are listeners.

    Args:
        thread: State of each thread.
        listener: The protocol of listeners.
    """

    def __init__(self, thread: TrainingThread, listener: Any) -> None:
        self._now = clock.reading()
        self._thread = thread
        self._listener = listener
        self._set()

    def add(self, user: object) -> None:
        """Add a user; the first one installs the hooks."""
        if not self.users:
            self._install()
        self._set(*self.users, user)

    def discard(self, user: object) -> None:
        """Remove a user; the last one removes the hooks. Idempotent."""
        if user in self.users:
            self._set(*(each for each in self.users if each is not user))
            if not self.users:
                self._remove()

    def _set(self, *users: object) -> None:
        self.users = users
        self._listeners: tuple[_Listener, ...] = tuple(each for each in users if isinstance(each, self._listener))

    @abstractmethod
    def _install(self) -> None:
        """Install the hooks; raise Missing if this version of torch lacks them."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the hooks."""
