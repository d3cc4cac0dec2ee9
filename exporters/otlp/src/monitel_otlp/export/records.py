"""Records of ended processes: taken and delivered in place, or only read."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from monitel.blackbox import disk
from monitel.blackbox.discovery import is_box, pid_of
from monitel.blackbox.folder import Folder, FolderError, Lock
from monitel.blackbox.journal import DISK
from monitel.blackbox.record import CORRUPT, HEAD, JOURNALS, REJECTED, SIGNALS, files_of, read_names
from monitel.blackbox.recovery import Dead, is_alive, spool_of
from monitel.process.os_threads import Event
from monitel_otlp.export.sender import Outbox, Rejected, Sender, backoff, next_of, outboxes
from monitel_otlp.messages.request import LEVELS, Request, record_lists
from monitel_otlp.metrics.windows import Totals, WindowMapping, WindowsEncoder
from monitel_otlp.transport import make_transports
from monitel_otlp.transport.answer import Answer, Consequence
from monitel_otlp.transport.http import TOO_OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from monitel.blackbox.account import Account
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.transport.answer import Transport

_log = logging.getLogger("monitel.otlp")

_TRIES = 5  # attempts with one request
_LONGEST_PAUSE = 60.0  # seconds between two of them


# ---- records


def take(path: Path, roots: Sequence[Path], *, foreign: bool = False) -> Dead:
    """Take the record of an ended process to deliver it: its box, its spool folder, or both, whichever is given.

    Raises:
        FolderError: It cannot be delivered: its process runs, another one delivers it, or a folder is unsafe.
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
            raise FolderError(f"{str(path)!r} is in use by another process, such as {pid_of(path)} that has made it")
        held.callback(lock.close)
        return folder

    with held:
        given = add(path)
        names = _names_of(given)
        box, on_disk = (given, None) if is_box(given.names()) else (None, given)
        spool = spool_of(names)
        others = roots if box is None else [spool] if spool is not None else []
        for other in [each / path.name for each in others if (each / path.name).is_dir()][:1]:
            box, on_disk = (box, add(other)) if box is not None else (add(other), on_disk)
        dead = Dead(box, on_disk, spool)
        if not dead.has_ended:
            raise FolderError(f"{str(path)!r} is left to the monitel run that observes its process")
        dead.held = held.pop_all()
    return dead


def peek(path: Path, *, foreign: bool = False) -> Dead:
    """Return a record for reading; it raises as :func:`take`. Nothing is locked or changed, and its process may run."""
    folder = Folder.open(path, foreign=foreign, probe=False)
    try:
        _names_of(folder)
        return Dead(*((folder, None) if is_box(folder.names()) else (None, folder)))
    except BaseException:
        folder.close()
        raise


def _names_of(folder: Folder) -> list[Any]:
    if not (names := read_names(folder)[0]):
        raise FolderError(f"{str(folder.path)!r} has no file that describes its process: it cannot be used")
    return names


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
    found, folder = 0, dead.disk
    for name in JOURNALS if folder is not None else ():
        journal = dead.journals[name]
        segments = {each.name: each for each in journal.segments if each.where == DISK}
        for file in files_of(folder, name):  # type: ignore[arg-type]  # there is one
            segment = segments.get(file)
            following = int(file[len(name) + 1 :].partition(".")[0]) if segment is None else segment.next
            whole = HEAD.size if segment is None else segment.end
            if following >= journal.next and folder.status(file).st_size > whole:  # type: ignore[union-attr]
                found += 1
                if segment is not None:  # else the file is removed when the items before are settled
                    segment.is_damaged = True
    return found


# ---- their requests


def mapping_of(identity: dict[str, Any]) -> WindowMapping:
    """Return how the windows of a process become points."""
    return WindowMapping(*(identity.get("mapping") or ("cumulative", identity["created_ns"], "percentiles")))


def add_settled(dead: Dead) -> Totals:
    """Return the running totals of a process, with the items that it has settled after it has stored them.

    The items are encoded once more, because their series have begun with them, and their last points have times. To be
    called before such items are removed.
    """
    journal, mapping = dead.journals["metrics"], mapping_of(dead.names[0])
    if isinstance(journal.fold, Totals):
        return journal.fold
    totals = Totals(dead.names.__getitem__, mapping, dead.totals[:2])
    encoder, last = WindowsEncoder(b"", mapping, totals), journal.settled
    for item in dead.items("metrics", totals.number + 1):
        if item.number > last:
            break
        settled = item if item.last <= last else item.split(last + 1 - item.number)[0]
        totals.pass_dropped(settled.number)
        with suppress(Exception):  # of an item that could not be encoded
            totals.commit(settled.last, encoder.encode([settled]).draft)
    journal.fold = totals
    return totals


def outboxes_of(dead: Dead) -> dict[str, list[Outbox]]:
    """Return the outboxes of each signal, with encoders as those of the process."""
    identity = dead.names[0]
    return outboxes(dead.journals, identity.get("resource", b""), mapping_of(identity), add_settled(dead))


def peeked(dead: Dead) -> Iterator[tuple[str, bytes]]:
    """Yield signal and body of the requests that a record would be delivered in. Nothing on disk is changed."""
    for signal, each_of in outboxes_of(dead).items():
        while (outbox := next_of(each_of)) is not None or any(disk.load(each.journal) for each in each_of):
            if outbox is not None and (request := outbox.request) is not None:
                outbox.settle(request.number)
                if request.body:
                    yield signal, request.body


def oldest_ns(dead: Dead, signal: str) -> int | None:
    """Return the time of the oldest item of a signal that is not settled, Unix ns; None if there is none."""
    field_name = "end_time_unix_nano" if signal == "traces" else "time_unix_nano"
    times = list[int]()
    for outbox in outboxes_of(dead)[signal]:
        while (found := outbox.next()) is None and disk.load(outbox.journal):
            pass
        for records in record_lists(found.message(), LEVELS[signal]) if found is not None else ():
            times += [getattr(each, field_name) for each in records]
    return min(times, default=None)


# ---- their delivery


@dataclass
class ReplayOutcome:
    """The items of records by outcome. Those that were refused, for their age or for another reason, are in the spool.

    ``troubles`` has the reason for each signal that its backend does not accept now, and where its items remain;
    ``offline`` the signals that have no endpoint.
    """

    delivered: int = 0
    too_old: int = 0
    set_aside: int = 0
    set_aside_requests: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    troubles: list[str] = field(default_factory=list)
    offline: set[str] = field(default_factory=set)
    failed: dict[str, Answer] = field(default_factory=dict)  # by signal: further records need no attempt

    @property
    def complete(self) -> bool:
        """True if everything was delivered."""
        return not (self.set_aside_requests or self.lost or self.unreadable or self.troubles or self.offline)

    def add(self, account: Account) -> None:
        """Add the outcome of the items of a signal."""
        lost = Counter(account.dropped)
        self.unreadable += lost.pop("unreadable", 0)
        for reason in ("rejected", "unconfirmed"):  # they were set aside, and are not lost
            lost.pop(reason, None)
        self.delivered += account.delivered
        self.lost += lost

    def count_set_aside(self, items: int, reason: str) -> None:
        """Count a request that was refused."""
        if TOO_OLD.search(reason):
            self.too_old += items
        else:
            self.set_aside += items
        self.set_aside_requests += 1


def deliver(
    dead: Dead,
    transports: Mapping[str, Transport],
    outcome: ReplayOutcome | None = None,
    *,
    tries: int = _TRIES,
    stopped: Event | None = None,
    on_progress: Callable[[int, int], object] = lambda _settled, _total: None,
) -> ReplayOutcome:
    """Deliver a record, oldest items first, and remove it when everything is delivered.

    Items of a signal without a transport, or which its backend does not accept after so many attempts, remain; the
    other signals are delivered. After an interruption the next call continues with the first request that was not
    acknowledged, which may arrive twice.

    Args:
        dead: The record.
        transports: The transport of each signal.
        outcome: The counts of earlier records, to which those of this one are added.
        tries: The number of attempts with one request.
        stopped: When it is set, the delivery ends after the request that is being sent.
        on_progress: Called after each request with two numbers of items: settled, and in total.
    """
    counts, stopped = outcome or ReplayOutcome(), stopped or Event()  # a wait on it also ends with Ctrl-C
    counts.unreadable += damaged_ends(dead)
    found, total = outboxes_of(dead), unsettled(dead)

    def set_aside(request: Rejected) -> None:
        if Rejected.has_room(dead.journals[REJECTED]):
            _store(dead, request)
            counts.count_set_aside(request.items, request.reason)
        else:
            counts.lost["spool_full"] += request.items

    for signal in SIGNALS:
        if stopped.is_set() or all(each.is_empty for each in found[signal]):
            continue
        if signal not in transports:
            counts.offline.add(signal)
            continue
        if (trouble := counts.failed.get(signal)) is None:
            sender = Sender(found[signal], transports[signal], note_position=dead.note_position, set_aside=set_aside)
            is_down = any(_host(transports[each]) == _host(transports[signal]) for each in counts.failed)
            try:
                _send(
                    dead, sender, 1 if is_down else tries, stopped, lambda: on_progress(total - unsettled(dead), total)
                )
            finally:
                counts.add(dead.journals[signal].account())
            trouble = sender.trouble
        if trouble is not None:
            if trouble.consequence is Consequence.RETRY:
                counts.failed[signal] = trouble
            counts.troubles.append(_trouble(dead, transports[signal], trouble))
    dead.tend()
    folders = [each for each in (dead.disk, dead.box) if each is not None]
    if dead.is_delivered and not any(name.endswith(CORRUPT) for folder in folders for name in folder.names()):
        dead.remove()
    return counts


def _send(dead: Dead, sender: Sender, tries: int, stopped: Event, on_settled: Callable[[], object]) -> None:
    """Send until nothing is left, or every attempt with the oldest request has failed."""
    while not stopped.is_set():
        pause = sender.deliver(stopped, on_settled)
        if sender.trouble is not None:
            if sender.trouble.consequence is Consequence.REFUSED or sender.failures >= tries:
                return
            stopped.wait(min(pause, _LONGEST_PAUSE))
        elif not any(each.loading for each in dead.journals.values()):
            return
        dead.tend()


def deliver_marked(folders: Iterable[Path], settings: Settings, roots: Sequence[Path], stopped: Event) -> None:
    """Deliver records with the mark of the endpoints, oldest first, until one is not accepted at the first attempt.

    A record stays if it is in use or cannot be read. Links are not followed. Never raises.
    """
    marked = [each for each in folders if settings.mark and each.name.endswith(f"-{settings.mark}")]
    with ExitStack() as opened:
        transports = make_transports(settings) if marked else {}
        for transport in transports.values():
            opened.callback(transport.close)
        for path in oldest_first(each for each in marked if not each.is_symlink()):
            if stopped.is_set():
                return
            try:
                with closing(take(path, roots)) as dead:
                    outcome = deliver(dead, transports, tries=1, stopped=stopped)
            except Exception as error:  # even if its values are senseless
                _log.debug("%s was not delivered: %s", path, error)
                continue
            _log.info("delivered %d items that an earlier process had left in %s", outcome.delivered, path)
            if outcome.troubles:  # the next one would take as long
                return


def deliver_rejected(
    dead: Dead, transports: Mapping[str, Transport], outcome: ReplayOutcome | None = None
) -> ReplayOutcome:
    """Send the requests that a backend has rejected again, as they are, and remove those that are accepted."""
    counts = outcome or ReplayOutcome()
    for each in _rejected(dead):
        answer = Answer(Consequence.REFUSED)
        if each.signal not in transports:
            counts.offline.add(each.signal)
        elif each.signal not in counts.failed:
            answer = _send_again(Request(each.signal, each.body), transports[each.signal])
        if answer.consequence is Consequence.DELIVERED:
            left_out = min(answer.rejected, each.items)
            counts.delivered += each.items - left_out
            counts.lost += Counter(partial_success=left_out)
            continue
        _store(dead, each)  # behind the others, also in a full journal: it was there before
        if answer.consequence not in {Consequence.RETRY, Consequence.REFUSED}:
            counts.count_set_aside(each.items, answer.reason)
        elif each.signal in transports and each.signal not in counts.failed:
            counts.failed[each.signal] = answer
            counts.troubles.append(_trouble(dead, transports[each.signal], answer))
    dead.tend()
    return counts


def _rejected(dead: Dead) -> Iterator[Rejected]:
    """Yield the requests that are there now, oldest first. When the next one is taken, each is settled."""
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


def _store(dead: Dead, request: Rejected) -> None:
    """Append a rejected request to the record, on the disk."""
    dead.move()
    journal, folder = dead.journals[REJECTED], dead.disk
    assert folder is not None  # it was moved there
    request.append(journal)
    disk.move(journal, lambda: folder)


def _host(transport: Transport) -> str:
    return urlsplit(transport.url).netloc


def _trouble(dead: Dead, transport: Transport, answer: Answer) -> str:
    path = (dead.disk or dead.box).path  # type: ignore[union-attr]  # there is one
    return f"{transport.url}: {answer.reason}; the rest is still in {path}, run this command again"


def _send_again(request: Request, transport: Transport) -> Answer:
    pause = Event()  # a wait on it also ends with Ctrl-C
    for failures in range(1, _TRIES):
        answer = transport.send(request)
        if answer.consequence is not Consequence.RETRY:
            return answer
        pause.wait(min(backoff(answer, failures), _LONGEST_PAUSE))
    return transport.send(request)
