"""Records of ended processes: taken to deliver them, or opened to read them, and the requests that are left in them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.blackbox.discovery import is_box, process_of
from monitel.blackbox.disk import load
from monitel.blackbox.folder import Folder, FolderError, Lock
from monitel.blackbox.journal import DISK
from monitel.blackbox.record import HEAD, JOURNALS, SIGNALS, files_of, read_names
from monitel.blackbox.recovery import Dead, is_alive, spool_of
from monitel_otlp.export.requests import next_of, outboxes
from monitel_otlp.messages.request import LEVELS, record_lists
from monitel_otlp.metrics.totals import Totals, definitions_of
from monitel_otlp.metrics.windows import Mapping, WindowPoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from monitel_otlp.export.requests import Outbox


def take(path: Path, roots: Sequence[Path], *, foreign: bool = False) -> Dead:
    """Take the record of an ended process to deliver it.

    Args:
        path: Its box or its spool folder. If it has both, both are taken.
        roots: Folders of boxes.
        foreign: Use the folder even if it belongs to another user, or others can write to it.

    Raises:
        FolderError: Its process runs, another process delivers it, it is not ended, it is of another version, or a
            folder is unsafe.
        OSError: A folder cannot be read.
        ValueError, TypeError: Its values are senseless.
    """
    held = ExitStack()

    def add(path: Path) -> Folder:
        folder = Folder.open(path, foreign=foreign)
        held.callback(folder.close)
        # A process that runs may have ended its record. Without a box, only the lock shows that it has not.
        alive = is_alive(folder) if is_box(folder.names()) else Lock.is_held(folder)
        if alive or (lock := Lock.take(folder)) is None:
            raise FolderError(
                f"{str(path)!r} is in use by another process, such as {process_of(path)} that has made it"
            )
        held.callback(lock.close)
        return folder

    with held:
        given = add(path)
        names, _ = read_names(given)
        if not names:
            raise FolderError(f"{str(path)!r} has no file that describes its process: it cannot be used")
        box, disk = (given, None) if is_box(given.names()) else (None, given)
        spool = spool_of(names)
        others = roots if disk is not None else [spool] if spool is not None else []
        for other in [each / path.name for each in others if (each / path.name).is_dir()][:1]:
            box, disk = (box, add(other)) if disk is None else (add(other), disk)
        dead = Dead(box, disk, spool)
        if not dead.has_ended:
            raise FolderError(f"{str(path)!r} is left to the monitel run that observes its process")
        dead.held = held.pop_all()
    return dead


def peek(path: Path, *, foreign: bool = False) -> Dead:
    """Return a record for reading. Nothing is locked or changed, and its process may run.

    Raises:
        FolderError: The folder is unsafe, or is not a record of this version.
        OSError: It cannot be read, or its process has changed it meanwhile.
        ValueError, TypeError: Its values are senseless.
    """
    folder = Folder.open(path, foreign=foreign, probe=False)
    try:
        if not read_names(folder)[0]:
            raise FolderError(f"{str(path)!r} has no file that describes its process: it cannot be used")
        box = is_box(folder.names())
        dead = Dead(folder if box else None, None if box else folder)
    except BaseException:
        folder.close()
        raise
    return dead


def oldest_first(paths: Iterable[Path]) -> list[Path]:
    """Return records in the order in which their processes began them; those that cannot be read come first."""
    return sorted(paths, key=lambda path: (_created_ns(path), path))


def _created_ns(path: Path) -> int:
    try:
        with closing(Folder.open(path, foreign=True, probe=False)) as folder:
            return int(read_names(folder)[0][0]["created_ns"])
    except Exception:  # whoever uses the record reports it
        return 0


def unsettled(dead: Dead) -> int:
    """Return the number of items that no backend has acknowledged."""
    found = [dead.journals[name].account() for name in SIGNALS]
    return sum(each.waiting + each.on_disk for each in found)


def damaged_ends(dead: Dead) -> int:
    """Return the number of files on the disk with something behind the last whole record of their journal.

    Nobody knows how many items it was. After a kill in the middle of a write the items are in the box, too.
    """
    found = 0
    for name, journal in ((each, dead.journals[each]) for each in (JOURNALS if dead.disk is not None else ())):
        segments = {each.name: each for each in journal.segments if each.where == DISK}
        for file in files_of(dead.disk, name):  # type: ignore[arg-type]  # there is one
            segment = segments.get(file)
            following = int(file[len(name) + 1 :].partition(".")[0]) if segment is None else segment.next
            whole = HEAD.size if segment is None else segment.end
            if following >= journal.next and dead.disk.status(file).st_size > whole:  # type: ignore[union-attr]
                found += 1
                if segment is not None:
                    segment.is_damaged = True
    return found


def mapping_of(identity: dict[str, Any]) -> Mapping:
    """Return how the windows of a process become points."""
    return Mapping(*(identity.get("mapping") or ("cumulative", identity["created_ns"], "percentiles")))


def add_settled(dead: Dead) -> Totals:
    """Return the running totals of a process, with the items that it has settled after it has stored them.

    The items are encoded once more, because their series have begun with them, and their last points have times. To be
    called before such items are removed.
    """
    journal, mapping = dead.journals["metrics"], mapping_of(dead.names[0])
    if isinstance(journal.fold, Totals):
        return journal.fold
    definitions, stored = definitions_of(dead.names.__getitem__), dead.totals[:2]
    totals = Totals(definitions, histograms=mapping.totals_of_histograms, after_ns=mapping.after_ns, stored=stored)
    points, last = WindowPoints(mapping), journal.settled
    for item in dead.items("metrics", totals.number + 1):
        if item.number > last:
            break
        settled = item if item.last <= last else item.split(last + 1 - item.number)[0]
        totals.pass_dropped(settled.number)
        draft = totals.draft()
        points.write([settled], draft, ResourceMetrics().scope_metrics.add().metrics)
        totals.commit(settled.last, draft)
    journal.fold = totals
    return totals


def outboxes_of(dead: Dead) -> dict[str, list[Outbox]]:
    """Return the outboxes of each signal, with encoders as those of the process."""
    identity = dead.names[0]
    return outboxes(dead.journals, identity.get("resource", b""), add_settled(dead), WindowPoints(mapping_of(identity)))


def peeked(dead: Dead) -> Iterator[tuple[str, bytes]]:
    """Yield signal and body of the requests that a record would be delivered in. Nothing on disk is changed."""
    for signal, each_of in outboxes_of(dead).items():
        while (outbox := next_of(each_of)) is not None or any(load(each.journal) for each in each_of):
            if outbox is not None and (request := outbox.request) is not None:
                outbox.settle(request.sent)
                if request.body:
                    yield signal, request.body


def oldest_ns(dead: Dead, signal: str) -> int | None:
    """Return the time of the oldest item of a signal that is not settled, Unix ns; None if there is none."""
    times = list[int]()
    for outbox in outboxes_of(dead)[signal]:
        while (found := outbox.next()) is None and load(outbox.journal):
            pass
        if found is not None:
            times += _times(found.message(), signal)
    return min(times, default=None)


def _times(message: Any, signal: str) -> Iterator[int]:
    for records in record_lists(message, LEVELS[signal]):
        yield from (each.end_time_unix_nano if signal == "traces" else each.time_unix_nano for each in records)
