"""The requests that a backend has rejected: a journal beside the others, for ``replay --rejected``."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox import disk
from monitel.blackbox.record import REJECTED, REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.blackbox.journal import Journal
    from monitel.blackbox.recovery import Dead

MOST_BYTES = 1 << 30  # as of the other journals on the disk


class Rejected(NamedTuple):
    """A request that a backend has rejected.

    Attributes:
        signal: Its signal.
        reason: The answer of the backend.
        items: Number of items in it; 0 for what monitel has made itself.
        body: The protobuf message.
    """

    signal: str
    reason: str
    items: int
    body: bytes


def is_full(journal: Journal) -> bool:
    """Return True if the journal has no room for another request."""
    return sum(each.end for each in journal.segments) >= MOST_BYTES


def append(journal: Journal, request: Rejected) -> None:
    """Append a request."""
    reason = request.reason.encode("utf-8", "backslashreplace").decode()
    journal.append(REQUEST, marshal.dumps(tuple(request._replace(reason=reason)), 2))


def store(dead: Dead, request: Rejected) -> None:
    """Append a request to the record of an ended process, on the disk.

    Raises:
        OSError, FolderError: The spool folder cannot be written.
    """
    dead.move()
    journal, folder = dead.journals[REJECTED], dead.disk
    assert folder is not None  # it was moved there
    append(journal, request)
    disk.move(journal, lambda: folder)


def take(dead: Dead) -> Iterator[Rejected]:
    """Yield the requests of a record that are there now, oldest first. When the next one is taken, each is settled."""
    journal = dead.journals[REJECTED]
    end = journal.next
    while True:
        while not (items := journal.read(1)) and disk.load(journal):
            pass
        if not items or items[0].number >= end:
            journal.give_back()
            return
        yield Rejected(*items[0].value)
        journal.settle(items[0].last)
        dead.note_position()
