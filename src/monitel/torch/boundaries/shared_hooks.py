"""Hooks of torch that several sources share."""

from __future__ import annotations

from abc import ABC, abstractmethod


class SharedHooks(ABC):
    """Hooks that are installed while they have users. A hook reads the clock once, for all users."""

    def __init__(self) -> None:
        self.users: tuple[object, ...] = ()

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

    @abstractmethod
    def _install(self) -> None:
        """Install the hooks; raise Missing if this version of torch lacks them."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the hooks."""
