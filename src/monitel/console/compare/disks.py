"""Reading from file systems that may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monitel.blackbox.folder import FolderError
from monitel.deadline import each_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PATIENCE = 10.0  # seconds; a disk that has to spin up takes less

_Result = TypeVar("_Result")


class HangingError(FolderError):
    """Raised for a folder whose file system does not answer in time."""


class Disks:
    """Calls functions that read, in other threads. A folder whose file system has hung once is not touched again.

    Args:
        patience: Seconds for each answer.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._hanging: set[Path] = set()

    def read(self, folder: Path, job: Callable[[], _Result]) -> _Result:
        """Return what a function returns.

        Args:
            folder: The folder in which it reads, or a folder above.
            job: The function.

        Raises:
            HangingError: It has not ended in time, or the file system of the folder hangs already.
            Exception: What it has raised.
        """
        (result,) = self.each(folder, lambda: iter([job()]))
        return result

    def each(self, folder: Path, make: Callable[[], Iterator[_Result]]) -> Iterator[_Result]:
        """Yield the items of an iterator.

        Args:
            folder: The folder from which they are read, or a folder above.
            make: Returns the iterator.

        Raises:
            HangingError: An item has not come in time, or the file system of the folder hangs already.
            Exception: What the iterator has raised.
        """
        whole = folder.absolute()
        if not self._hanging.isdisjoint([whole, *whole.parents]):
            raise self._hangs(folder)
        try:
            yield from each_within(self._patience, make)
        except TimeoutError:
            self._hanging.add(whole)
            raise self._hangs(folder) from None

    def _hangs(self, folder: Path) -> HangingError:
        return HangingError(
            f"{str(folder)!r} cannot be read: its file system has not answered within {self._patience:g} s"
        )
