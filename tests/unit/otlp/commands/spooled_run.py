"""The output of commands, and the type of the fixture that runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Command(Protocol):
    """Type of the fixture ``command``."""

    def __call__(self, *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0) -> Printed:
        """Run a command in this process."""


@dataclass(frozen=True)
class Printed:
    """Output of a command; log lines are part of stderr."""

    stdout: str
    stderr: str
