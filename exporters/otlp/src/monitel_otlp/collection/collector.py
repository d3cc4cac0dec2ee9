"""Collection of the black boxes of dead processes.

Each box becomes a spool beside the spool of its process, exactly once, even if collectors are killed:

1. The collector locks the box.
2. It writes the spool under an unfinished name. If an earlier collector was killed here, its spool is removed first.
3. It renames the box to ``NAME.collected``. From here on the spool is not written again.
4. It gives the spool its final name.
5. It removes the box.

The next collector continues with the step that the names show. Delivery is that of any other spool.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monitel_otlp.black_box.contents import read_box, read_header
from monitel_otlp.black_box.event_journal import EMPTY_JOURNAL
from monitel_otlp.boxes.box_lock import claim, has_called_exec
from monitel_otlp.boxes.discovery import find_boxes
from monitel_otlp.boxes.layout import (
    COLLECTED,
    CORRUPT,
    CUTS,
    HEADER,
    JOURNALS,
    REQUEST,
    BoxError,
    NewerBoxError,
)
from monitel_otlp.boxes.place import remove_box
from monitel_otlp.collection.death import Deaths, death_of
from monitel_otlp.collection.recovered_spool import write_spool
from monitel_otlp.collection.target import read_note, target_of, write_note
from monitel_otlp.config.run_folder import is_running
from monitel_otlp.spool.folder import Folder, SpoolError
from monitel_otlp.spool.spool import Spool
from monitel_otlp.summary.box_report import report_death

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.os_threads import Event
    from monitel_otlp.black_box.contents import Contents, Header
    from monitel_otlp.collection.death import Death
    from monitel_otlp.collection.target import Target

_log = logging.getLogger("monitel.otlp")


@dataclass
class Collected:
    """The outcome of a collection.

    Attributes:
        boxes: Number of boxes that are collected.
        items: Number of items in them.
        spools: The spools that they have become.
        deaths: The deaths.
        problems: Descriptions of boxes that could not be collected.
    """

    boxes: int = 0
    items: int = 0
    spools: list[Path] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect_boxes(
    root: Path | None = None,
    *,
    fallback: Path,
    deaths: Deaths | None = None,
    stopped: Event | None = None,
    run: str = "",
    observed_only: bool = False,
) -> Collected:
    """Turn the boxes of dead processes of this user on this machine into spools.

    Boxes of running processes and of other users are not touched. A damaged box gets the suffix ``.corrupt``. A box
    that cannot be collected now, because the disk is full for instance, stays for the next collector. A box of a
    process that ``monitel run`` has started is left to it while it runs, because it observes how the process ends;
    except if the process has called exec.
    Thread-safe; collectors in several threads and processes share the boxes.

    Args:
        root: A folder that holds boxes; by default all folders in which boxes of this user are made.
        fallback: The folder for spools of processes whose own folder does not exist for this process.
        deaths: The ends of processes that the caller has observed.
        stopped: When it is set, the collection ends after the current box.
        run: The folder of the run, if the caller is ``monitel run``.
        observed_only: Leave boxes of processes whose end the caller has not observed yet.

    Returns:
        The outcome. Never raises.
    """
    outcome = Collected()
    try:
        boxes = find_boxes(root)
    except Exception as error:
        _log.debug("black boxes cannot be listed", exc_info=True)
        outcome.problems.append(f"black boxes cannot be listed: {error}")
        return outcome
    _remove(boxes.unfinished)
    for path in (*boxes.collected, *boxes.dead):
        if stopped is not None and stopped.is_set():
            break
        try:
            _Collection(path, fallback, deaths or Deaths(), outcome, run, observed_only=observed_only).run()
        except (BoxError, SpoolError, OSError) as error:
            outcome.problems.append(f"the black box {str(path)!r} cannot be collected: {error}")
        except Exception as error:
            _log.debug("the black box %s cannot be collected", path, exc_info=True)
            outcome.problems.append(f"the black box {str(path)!r} cannot be collected: {error!r}")
    return outcome


class _Collection:
    """The collection of one box."""

    def __init__(
        self, path: Path, fallback: Path, deaths: Deaths, outcome: Collected, run: str, *, observed_only: bool
    ) -> None:
        self._run = run
        self._observed_only = observed_only
        self._name = path.name
        self._path = path
        self._fallback = fallback
        self._deaths = deaths
        self._outcome = outcome

    def run(self) -> None:
        """Collect the box, unless another collector has it.

        Raises:
            BoxError: The box is of a newer version.
            SpoolError: The spool cannot be used.
            OSError: The box or the spool cannot be read or written.
        """
        with closing(Folder.open(self._path.parent)) as root:
            try:
                box = root.subfolder(self._name, create=False)
            except FileNotFoundError:
                return  # another collector was faster
            with closing(box):
                if (lock := claim(box)) is None:
                    return
                try:
                    self._collect(root, box)
                finally:
                    lock.release()

    def _collect(self, root: Folder, box: Folder) -> None:
        if self._name.endswith(COLLECTED):
            self._finish(root, box, self._name)
            return
        contents = self._read(root, box)
        if contents is None:
            return
        death = None
        if not has_called_exec(contents.header.owner):
            if self._is_left(contents.header):
                return
            death = death_of(contents, self._deaths)
        target = target_of(contents.header, self._name, self._fallback)
        _remove_unfinished(target)
        try:
            with closing(Spool(target.unfinished)) as spool:
                items = write_spool(contents, death, spool)
        except Exception as error:
            with suppress(OSError, SpoolError):
                _remove_unfinished(target)
            if isinstance(error, (OSError, SpoolError)):
                raise  # the next collector tries again
            raise self._set_aside(root, error) from error
        if target.unfinished.exists():
            _note(box, target, needed=target != target_of(contents.header, self._name))
        report_death(contents, death, target.final, self._name)
        collected = f"{self._name}{COLLECTED}"
        root.rename(self._name, collected)
        self._outcome.items += items
        if death is not None:
            self._outcome.deaths.append(death)
        self._outcome.problems += [f"the black box {str(self._path)!r}: {each}" for each in contents.problems]
        self._finish(root, box, collected)

    def _is_left(self, header: Header) -> bool:
        """Return True if the end of a process is still to be observed, by this caller or by ``monitel run``."""
        if self._observed_only and self._deaths.of(header.owner) is None:
            return True
        return header.run != self._run and is_running(header.run)

    def _read(self, root: Folder, box: Folder) -> Contents | None:
        """Return the contents of a box; None if it is empty. A damaged box is set aside."""
        try:
            return read_box(box)
        except NewerBoxError:
            raise
        except BoxError as error:
            if _is_empty(box):
                remove_box(root, self._name)
                return None
            raise self._set_aside(root, error) from None
        except Exception as error:  # its checksums are right, and its content is not
            _log.debug("the black box %s cannot be decoded", self._path, exc_info=True)
            raise self._set_aside(root, error) from None

    def _set_aside(self, root: Folder, error: Exception) -> BoxError:
        root.rename(self._name, f"{self._name}{CORRUPT}")
        return BoxError(f"{error}; it is set aside with the suffix {CORRUPT}")

    def _finish(self, root: Folder, box: Folder, name: str) -> None:
        """Give the spool its final name, and remove the box."""
        target = read_note(box)
        if target is None and HEADER in box.names():
            target = target_of(read_header(box), name.removesuffix(COLLECTED))
        if target is not None:
            if not target.is_here():
                raise BoxError(f"its spool is in {target.folder!r}, which does not exist here")
            final = target.finish() or target.final
            if final.exists():
                self._outcome.spools.append(final)
        self._outcome.boxes += 1
        remove_box(root, name)


def _remove(unfinished: list[Path]) -> None:
    """Remove boxes whose process was killed while it made or removed them."""
    for path in unfinished:
        with suppress(OSError, SpoolError), closing(Folder.open(path.parent)) as root:
            remove_box(root, path.name)


def _is_empty(box: Folder) -> bool:
    """Return True if a box holds no data, or if its process has emptied it."""
    sizes = {name: box.status(name).st_size for name in box.names()}
    return sizes.get(HEADER) == 0 or not any(
        name.startswith(REQUEST) or (name in CUTS and size) or (name in JOURNALS and size > EMPTY_JOURNAL)
        for name, size in sizes.items()
    )


def _note(box: Folder, target: Target, *, needed: bool) -> None:
    """Note the target in a box. Without room for it the next collector looks at the usual place."""
    try:
        write_note(box, target)
    except OSError:
        if needed:
            raise


def _remove_unfinished(target: Target) -> None:
    """Remove the spool of a collector that was killed.

    Raises:
        OSError: It cannot be removed.
        SpoolError: It is not a folder of this user.
    """
    try:
        folder = Folder.open(target.unfinished)
    except SpoolError:
        if target.unfinished.is_symlink() or target.unfinished.exists():
            raise
        return
    with closing(folder):
        for name in folder.names():
            folder.unlink(name)
    target.unfinished.rmdir()
