"""Records of ended processes: taken and delivered in place, or only read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from monitel.blackbox import disk
from monitel.blackbox.discovery import is_box
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.journal import DISK, Account
from monitel.blackbox.reading import Record
from monitel.blackbox.record import CORRUPT, HEAD, JOURNALS, REJECTED, SIGNALS, files_of, read_names
from monitel.blackbox.recovery import Dead, claim
from monitel.process.os_threads import Event
from monitel_otlp.config.settings import Settings
from monitel_otlp.export.sender import Outbox, Rejected, Sender, next_of, outboxes, warn_rejected
from monitel_otlp.messages.request import Request
from monitel_otlp.metrics.totals import Totals, WindowMapping
from monitel_otlp.metrics.windows import WindowWriter
from monitel_otlp.transport import make_transports
from monitel_otlp.transport.answer import Answer, Consequence, Transport

_log = logging.getLogger("monitel.otlp")

_TRIES = 5  # attempts with one request
_LONGEST_PAUSE = 60.0  # seconds between two of them
_HOPEFUL = 3  # requests that are set aside, before those with which the backend fails get one attempt: for old data


# ---- records


def take(path: Path, root: Path | None) -> Dead:
    """Take the record of an ended process to deliver it; what it raises is described at :func:`claim`."""
    dead = claim(path, root=root)
    if not dead.has_ended:
        dead.close()
        raise FolderError(f"{str(path)!r} is left to the monitel run that observes its process")
    return dead


def peek(path: Path) -> Dead:
    """Return a record for reading. Nothing is locked or changed, and its process may run."""
    folder = Folder.open(path)
    try:
        return Dead(*((folder, None) if is_box(folder.names()) else (None, folder)))
    except BaseException:
        folder.close()
        raise


def oldest_first(paths: Iterable[Path]) -> list[Path]:
    """Return records in the order in which their processes began them; those that cannot be read come first."""
    return sorted(paths, key=lambda path: (_created_ns(path), path))


def _created_ns(path: Path) -> int:
    try:
        with closing(Folder.open(path, probe=False)) as folder:
            return int(read_names(folder)[0][0]["created_ns"])
    except Exception:  # whoever uses the record reports it
        return 0


def unsettled(dead: Dead) -> int:
    """Return the number of items that can be delivered. Those that were in anonymous memory are lost."""
    return sum(items for name in SIGNALS for _, items in dead.journals[name].unsettled())


def damaged_ends(dead: Dead) -> int:
    """Return the number of files on the disk with something behind the last whole entry of their journal.

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


def mapping_of(record: Record) -> WindowMapping:
    return WindowMapping(*(record.identity.get("mapping") or (False, record.created_ns, "percentiles")))


def add_settled(dead: Dead) -> None:
    """Give the journal of metrics the running totals, with the items that were settled after these were stored.

    The items are encoded once more, because their series have begun with them, and their last points have times. To be
    called before such items are removed.
    """
    journal, mapping = dead.journals["metrics"], mapping_of(dead.record)
    if journal.fold is not None:
        return
    totals, last = Totals(dead.record.names.__getitem__, mapping, dead.record.totals), journal.settled
    journal.fold = totals
    outbox = Outbox(journal, "metrics", b"", WindowWriter(mapping).write)
    for item in dead.items("metrics", totals.number + 1):
        if item.number > last:
            break
        settled = item if item.last <= last else item.split(last + 1 - item.number)[0]
        totals.pass_dropped(settled.number)
        with suppress(Exception):  # of an item that could not be encoded
            if (draft := outbox.encode([settled]).draft) is not None:
                totals.commit(settled.last, draft)


def outboxes_of(dead: Dead) -> dict[str, list[Outbox]]:
    """Return the outboxes of each signal, as those of the process."""
    add_settled(dead)
    return outboxes(dead.journals, dead.record.identity.get("resource", b""), mapping_of(dead.record))


def peeked(dead: Dead) -> Iterator[tuple[str, bytes]]:
    """Yield signal and body of the requests that a record would be delivered in. Nothing on disk is changed."""
    for signal, found in outboxes_of(dead).items():
        while (outbox := next_of(found)) is not None or any(disk.load(each.journal) for each in found):
            if outbox is not None and (request := outbox.request) is not None:
                outbox.settle(request.number)
                if request.body:
                    yield signal, request.body


# ---- their delivery


class Delivery:
    """Delivers records, one after the other, and counts their items by outcome.

    Each request gets a number of ``tries``; when ``stopped`` is set, the delivery ends after the current one.

    Attributes:
        set_aside: Items that were refused. They are in the spool.
        troubles: The reasons for which a backend does not accept items now, with the folders where these are.
        offline: The signals that have no endpoint.
    """

    def __init__(
        self, transports: Mapping[str, Transport], *, tries: int = _TRIES, stopped: Event | None = None
    ) -> None:
        self._transports = transports
        self._tries = tries
        self._stopped = stopped or Event()  # a wait on it also ends with Ctrl-C
        self._failed: dict[str, Answer] = {}  # by signal: further records need no attempt
        self.delivered = self.set_aside = self.set_aside_requests = self.unreadable = 0
        self.lost: Counter[str] = Counter()
        self.troubles: dict[str, list[Path]] = {}
        self.offline: set[str] = set()

    @property
    def is_stuck(self) -> bool:
        """True if a backend is down or busy, or has accepted nothing: it would not take another record either."""
        return bool(self._failed or (self.troubles and not self.delivered))

    @property
    def complete(self) -> bool:
        return not (self.set_aside_requests or self.lost or self.unreadable or self.troubles or self.offline)

    def deliver(self, dead: Dead, on_progress: Callable[[int, int], object] = lambda _settled, _total: None) -> None:
        """Deliver a record, oldest items first, and remove it when everything is delivered.

        Items of a signal without a transport, or which its backend does not accept, remain; the other signals are
        delivered. After an interruption the first request that was not acknowledged may arrive twice. ``on_progress``
        is called after each request with two numbers of items: settled, and in total.
        """
        self.unreadable += damaged_ends(dead)
        found, total = outboxes_of(dead), unsettled(dead)

        def report() -> None:
            on_progress(total - unsettled(dead), total)

        for signal in SIGNALS:
            if self._stopped.is_set() or all(each.journal.is_empty for each in found[signal]):
                continue
            if signal not in self._transports:
                self.offline.add(signal)
                continue
            if (trouble := self._failed.get(signal)) is None:
                try:
                    trouble = self._send(dead, signal, found[signal], report)
                finally:
                    self._count(dead.journals[signal].account())
            if trouble is not None:
                self._note_trouble(dead, signal, trouble)
        dead.tend()
        if dead.is_delivered and not any(name.endswith(CORRUPT) for folder in dead.folders for name in folder.names()):
            dead.remove()

    def deliver_rejected(self, dead: Dead) -> None:
        """Send the requests that a backend has rejected again, as they are, and remove those that are accepted."""
        journal = dead.journals[REJECTED]
        for item in dead.items(REJECTED, journal.settled + 1):
            each, is_delivered = Rejected(*item.value), False
            if (transport := self._transports.get(each.signal)) is None:
                self.offline.add(each.signal)
            elif each.signal not in self._failed:
                answer = transport.send(Request(each.signal, each.body))
                if is_delivered := answer.consequence is Consequence.DELIVERED:
                    left_out = min(answer.rejected, each.items)
                    self.delivered += each.items - left_out
                    self.lost += Counter(partial_success=left_out)
                elif answer.consequence in {Consequence.RETRY, Consequence.REFUSED}:
                    self._failed[each.signal] = answer
                    self._note_trouble(dead, each.signal, answer)
                else:
                    self._count_set_aside(each.items, answer.reason)
            if not is_delivered:
                _store(dead, each)  # behind the others, also in a full journal: it was there before
            journal.settle(item.last)
            dead.note_position()
        dead.tend()

    def _send(
        self, dead: Dead, signal: str, of_signal: Sequence[Outbox], on_settled: Callable[[], object]
    ) -> Answer | None:
        """Send until nothing is left, or every attempt with the oldest request has failed; return the last answer."""

        def set_aside(request: Rejected) -> None:
            if Rejected.has_room(dead.journals[REJECTED]):
                _store(dead, request)
                self._count_set_aside(request.items, request.reason)
            else:
                self.lost["spool_full"] += request.items

        transport = self._transports[signal]
        is_down = any(self._transports[each].host == transport.host for each in self._failed)
        sender = Sender(of_signal, transport, note_position=dead.note_position, set_aside=set_aside)
        while not self._stopped.is_set():
            if self.set_aside_requests >= _HOPEFUL:
                sender.tries = 1
            pause = sender.deliver(self._stopped, on_settled)
            if (trouble := sender.trouble) is not None:
                is_refused = trouble.consequence is Consequence.REFUSED
                if is_refused or sender.failures >= (1 if is_down else self._tries):
                    if not is_refused:
                        self._failed[signal] = trouble
                    break
                self._stopped.wait(min(pause, _LONGEST_PAUSE))
            elif not any(each.loading for each in dead.journals.values()):
                break
            dead.tend()
        return sender.trouble

    def _count(self, account: Account) -> None:
        lost = Counter(account.dropped)
        self.unreadable += lost.pop("unreadable", 0)
        for reason in ("rejected", "unconfirmed"):  # they were set aside, and are not lost
            lost.pop(reason, None)
        self.delivered += account.delivered
        self.lost += lost

    def _count_set_aside(self, items: int, reason: str) -> None:
        warn_rejected(reason)
        self.set_aside += items
        self.set_aside_requests += 1

    def _note_trouble(self, dead: Dead, signal: str, answer: Answer) -> None:
        reason = f"{self._transports[signal].url}: {answer.reason}"
        left, path = self.troubles.setdefault(reason, []), dead.folders[-1].path
        if path not in left:  # its rejected requests are not accepted either
            left.append(path)


def deliver_marked(folders: Iterable[Path], settings: Settings, root: Path | None, stopped: Event) -> None:
    """Deliver records with the mark of the endpoints, oldest first, until a backend is down, busy, or accepts nothing.

    A record stays if it is in use, cannot be read, or is not accepted at the first attempt. Links are not followed.
    Never raises.
    """
    marked = [each for each in folders if settings.mark and each.name.endswith(f"-{settings.mark}")]
    with ExitStack() as opened:
        transports = make_transports(settings) if marked else {}
        for transport in transports.values():
            opened.callback(transport.close)
        for path in oldest_first(each for each in marked if not each.is_symlink()):
            if stopped.is_set():
                return
            delivery = Delivery(transports, tries=1, stopped=stopped)
            try:
                with closing(take(path, root)) as dead:
                    delivery.deliver(dead)
            except Exception as error:  # even if its values are senseless
                _log.debug("%s was not delivered: %s", path, error)
                continue
            _log.info("delivered %d items that an earlier process had left in %s", delivery.delivered, path)
            if delivery.is_stuck:  # the next one would take as long
                return


def _store(dead: Dead, request: Rejected) -> None:
    """Append a rejected request to the record, on the disk."""
    dead.move()
    journal, folder = dead.journals[REJECTED], dead.disk
    assert folder is not None  # it was moved there
    request.append(journal)
    disk.move(journal, lambda: folder)
