"""The writer of a black box: makes the box when it is needed, and gives it up if it cannot be written."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

from monitel.context_page import PAGE_BYTES, beat, close_page, open_page
from monitel.crash_stacks import check, install, stacks_now, uninstall, use_alternate_stack
from monitel.os_threads import RLock
from monitel_otlp.black_box.contents import header_values
from monitel_otlp.black_box.cut import CutWriter
from monitel_otlp.black_box.event_journal import EventJournal
from monitel_otlp.black_box.request_files import RequestFiles
from monitel_otlp.boxes.box_lock import acquire
from monitel_otlp.boxes.layout import (
    CONTEXT,
    CUTS,
    HEADER,
    JOURNALS,
    LARGEST_HEADER,
    STACKS,
    STACKS_NOW,
    STACKS_WANTED,
    pack,
)
from monitel_otlp.boxes.place import PlaceError, choose_root, new_box, remove_box
from monitel_otlp.boxes.room import PATIENCE, Room, Share
from monitel_otlp.spool.folder import Folder, SpoolError, write_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.black_box.contents import Header
    from monitel_otlp.black_box.cut import Cut
    from monitel_otlp.choices import BoxSettings
    from monitel_otlp.messages.request import FrozenRequest

_log = logging.getLogger("monitel.otlp")


class BlackBox:
    """Writes the box of one pipeline. It is made with the first event or cut, so that an idle process has none.

    After a failed write there is no box any more: it is removed, which is logged once, and nothing else changes. All
    methods may be called in any thread, and none raises.

    Args:
        settings: Whether there is a box, where, and how large it may become.
        header: Returns the header of the box.
        wake: Called when the encoder should make the next cut soon.

    Attributes:
        over: There is no box, and will not be one.
        crowded: There was no room for a request. Requests under construction are finished then, so that cuts are small.
        problem: The reason why there is no box; empty before it is needed, and while there is one.
    """

    def __init__(self, settings: BoxSettings, header: Callable[[], Header], wake: Callable[[], object]) -> None:
        self._settings = settings
        self._header = header
        self._wake = wake
        self._lock = RLock()
        self._open: _OpenBox | None = None
        self._making = False
        self.over = not settings.enabled
        self.crowded = False
        self._left_out = 0
        self._given_up = False
        self.problem = "" if settings.enabled else "it is switched off"
        if settings.enabled:
            use_alternate_stack()  # in the thread that configures: a box may be made in another one

    @property
    def enabled(self) -> bool:
        """True unless the box is switched off by its settings."""
        return self._settings.enabled

    @property
    def is_open(self) -> bool:
        """True while there is a box."""
        return self._open is not None

    @property
    def left_out(self) -> int:
        """The number of events and requests for which there was no room, and of events after a failure."""
        opened = self._open
        return self._left_out + (0 if opened is None else opened.left_out)

    @property
    def path(self) -> str:
        """The folder; empty if there is none."""
        opened = self._open
        return "" if opened is None else str(opened.folder.path)

    def write_event(self, plain: Callable[[], Any]) -> int:
        """Write the plain values of an event that is being emitted.

        Returns:
            The number of the event in the journal; 0 if it is not there.
        """
        if (opened := self._opened()) is None:
            self._left_out += self._given_up
            return 0
        try:
            return opened.events.write(plain())
        except OSError as error:
            self.give_up(error)
        except Exception:  # a value that has no plain form: the event is encoded later, as without a box
            opened.left_out += 1
        return 0

    def event_done(self, number: int) -> None:
        """Note that an event of the journal is in a part or a request of the next cut, or dropped. Takes no lock."""
        if number and (opened := self._open) is not None:
            opened.events.done(number)

    def events_done(self) -> tuple[int, list[int]]:
        """Return the state of the journal for a cut; see :class:`Cut`."""
        opened = self._open
        return (1, []) if opened is None else opened.events.progress()

    def keep(self, key: str, request: FrozenRequest) -> str | None:
        """Write a request that is not acknowledged; return its key, or None if it is not in the box."""
        if (opened := self._opened()) is None:
            return None
        try:
            if opened.requests.write(key, request):
                return key
            opened.left_out += 1
            self.crowded = True
        except OSError as error:
            self.give_up(error)
        return None

    def forget(self, key: str | None) -> None:
        """Remove a request whose outcome is known. Idempotent."""
        if key is not None and (opened := self._open) is not None:
            opened.requests.remove(key)

    def cut(self, cut: Cut) -> bool:
        """Write a cut; return False if there is no box."""
        if (opened := self._opened()) is None:
            return False
        try:
            opened.check()
            opened.cuts.write(cut)
            opened.events.committed()
        except (OSError, ValueError) as error:
            self.give_up(error)
            return False
        return True

    def beat(self) -> None:
        """Note that the process runs, and write the stacks of its threads if another process asks for them."""
        if (opened := self._open) is not None:
            try:
                beat()
                check()
                opened.answer()
            except OSError as error:
                _log.debug("the black box is not complete: %s", error)

    def give_up(self, error: Exception) -> None:
        """Remove the box and have none any more, because of an error, which is logged once."""
        with self._lock:
            first = not self.over
            self.over = self._given_up = True
            self.problem = self.problem or str(error)
        if first:
            _log.warning("the black box cannot be written and is switched off: %s", error)
            self.close()

    def close(self) -> None:
        """Remove the box, because everything is delivered, on disk, or counted as lost. Idempotent."""
        with self._lock:
            self.over = True
            opened, self._open = self._open, None
        if opened is not None:
            self._left_out += opened.left_out
            try:
                opened.remove()
            except Exception:
                _log.debug("the black box was not removed", exc_info=True)

    def abandon(self) -> None:
        """Close the files, which belong to the parent. For a forked child."""
        self._lock = RLock()
        self.over = True
        opened, self._open = self._open, None
        if opened is not None:
            opened.close_files()

    def _opened(self) -> _OpenBox | None:
        if self._open is not None or self.over:
            return self._open
        if not self._lock.acquire(timeout=PATIENCE):
            return None
        try:
            if self._making:  # a signal handler or a destructor emits an event meanwhile
                self._left_out += 1
            elif self._open is None and not self.over:
                self._making = True
                self._make()
            return self._open
        finally:
            self._lock.release()

    def _make(self) -> None:
        try:
            made = _OpenBox(self._settings, self._header(), self._wake)
        except Exception as error:  # there is no place, or it cannot be written
            self.over = True
            self.problem = str(error)
            level = logging.DEBUG if self._settings.folder is None else logging.WARNING
            _log.log(level, "there is no black box: %s", error)
        else:
            if self.over:  # a signal handler has ended the pipeline meanwhile
                made.remove()
            else:
                self._open = made
        finally:
            self._making = False


class _OpenBox:
    """The files of a box.

    Raises:
        OSError: A file cannot be made.
        PlaceError: There is no place for a box.
    """

    def __init__(self, settings: BoxSettings, header: Header, wake: Callable[[], object]) -> None:
        self.left_out = 0
        self._root = choose_root(settings.folder)
        self._files: list[OwnFile] = []
        made = new_box(self._root)
        self.folder, self._lock = made.folder, made.lock
        try:
            self._fill(settings, header, wake)
        except BaseException:
            self.remove()
            raise

    def _fill(self, settings: BoxSettings, header: Header, wake: Callable[[], object]) -> None:
        room = Room(self.folder, settings.size)
        content = pack(header_values(header))
        if len(content) > LARGEST_HEADER:
            raise PlaceError(
                f"its header has {len(content):,} bytes (at most {LARGEST_HEADER:,}): shorten the resource"
            )
        if not room.claim(len(content) + PAGE_BYTES):
            raise PlaceError(f"there is no room for it: {room.allowance().reason}")
        # Without room for a cut there is no box. Events can be left out, and requests go to the spool then.
        items = Share(room, room.allowance().bytes // 2)
        self.cuts = CutWriter((self._make(CUTS[0]), self._make(CUTS[1])), room.claim)
        self.events = EventJournal((self._make(JOURNALS[0]), self._make(JOURNALS[1])), items.claim, wake)
        self.requests = RequestFiles(self.folder, items.claim, items.release)
        self._make(HEADER).write(content, 0)
        with suppress(OSError, ValueError):  # the page and the handler of crashes are of use, and not needed
            open_page(self.folder.path / CONTEXT, mapped=self._root.is_memory)
        with suppress(OSError, ValueError):
            install(self.folder.path / STACKS)

    def _make(self, name: str) -> OwnFile:
        made = OwnFile(self.folder, name)
        self._files.append(made)
        return made

    def check(self) -> None:
        """Check that the box still belongs to this process.

        Raises:
            OSError: It was removed or replaced, or its lock is lost.
        """
        if not self._lock.keep():
            raise OSError("its folder was removed, or its lock is lost")

    def answer(self) -> None:
        """Write the stacks of all threads if they are wanted."""
        try:
            self.folder.status(STACKS_WANTED)
        except FileNotFoundError:
            return
        self.folder.unlink(STACKS_NOW)
        self.folder.write_new(STACKS_NOW, stacks_now().encode("utf-8", "replace"))
        self.folder.unlink(STACKS_WANTED)

    def remove(self) -> None:
        """Remove all files and the folder. Until that has happened, the lock is held.

        A box that cannot be removed, for instance by a process that has changed its user id, is emptied: otherwise a
        collector would deliver its content once more.
        """
        uninstall(self.folder.path / STACKS)
        close_page(self.folder.path / CONTEXT)
        if self._lock.keep():
            gone = remove_box(self._root.folder, self.folder.path.name)
        else:
            self._lock.release()
            gone = self._remove_unlocked()
        if not gone:
            for file in reversed(self._files):  # the header first
                file.empty()
        self.close_files()

    def _remove_unlocked(self) -> bool:
        """Remove the box by its path, because the application has ended the lock, or somebody has removed its file.

        Returns:
            False if the box may still be there, and no collector has it.
        """
        path = self.folder.path
        try:
            with ExitStack() as opened:
                root = opened.enter_context(closing(Folder.open(path.parent)))
                box = opened.enter_context(closing(root.subfolder(path.name, create=False)))
                if not box.is_same(self.folder):
                    return False
                opened.callback(acquire(box).release)
                return remove_box(root, path.name)
        except BlockingIOError:
            return True
        except (OSError, SpoolError):
            return False

    def close_files(self) -> None:
        """Close all descriptors."""
        for file in self._files:
            file.close()
        self._files = []
        self._lock.release()
        self.folder.close()
        self._root.folder.close()


class OwnFile:
    """A file of the box.

    The application may close descriptors that are not its own, as a program does that detaches itself, and open another
    file with the same number. Therefore each write checks that the descriptor is still that of this file.

    Args:
        folder: The box.
        name: The name of the new file.

    Raises:
        OSError: The file exists, or cannot be made.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._name = name
        self._descriptor = folder.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._status = os.fstat(self._descriptor)

    def write(self, content: bytes, offset: int) -> None:
        """Write all of the content at an offset.

        Raises:
            OSError: The descriptor is closed or belongs to another file, the file is removed, or the write failed.
        """
        self._check()
        write_at(self._descriptor, content, offset)

    def empty(self) -> None:
        """Remove the content, if the descriptor is still its own. Errors are ignored."""
        with suppress(OSError):
            self._check()
            os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Close the file, if the descriptor is still its own. Idempotent."""
        try:
            is_own = os.path.samestat(os.fstat(self._descriptor), self._status)
        except OSError:
            return
        if is_own:
            os.close(self._descriptor)
        self._descriptor = -1

    def _check(self) -> None:
        status = os.fstat(self._descriptor)
        if not os.path.samestat(status, self._status) or not status.st_nlink:
            raise OSError(f"the file {self._name} is not open any more")
