"""All processes with a black box, looked at again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import process_of
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.recovery import is_alive
from monitel.console.autopsy.examination import reason
from monitel.console.autopsy.targets import boxes_of, deaths_of, folders_of, nothing_known
from monitel.console.summary.report import JobName
from monitel.console.top.box_watch import BoxWatch
from monitel.console.top.departures import Departures, death_in
from monitel.console.top.jobs import jobs_of, replaced, with_launchers
from monitel.console.top.rank import Look, Rank, RankState, Row
from monitel.console.top.row import End, longest_first, row_of, usual_step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from monitel.console.autopsy.findings import Findings

_SEARCH_NS = 5 * 10**9  # between two searches for boxes where nothing seems to have changed
_TICK_NS = 50_000_000  # within which two changes may leave a folder with one time
_AT_ONCE = 16  # boxes that are read completely in one look; of more, each in its turn
_MOST_GONE = 1000  # processes that have ended, and are still shown
_ATTEMPTS = 5  # looks in which the end of a process is searched


class Ranks:
    """All processes with a black box, looked at again and again. Nothing is locked, claimed or written.

    Each look reads the step, the waits and the heartbeat of all processes. The rest is read of 16 processes in one
    look; of more, in turns. A process that has died stays until another one takes its place. Use it in one thread.

    Args:
        targets: Process ids, boxes, folders of boxes, and folders of spools, as for ``monitel autopsy``; none for all
            boxes of this user on this machine.
        show: The Stat or logged number that rows show; None for ``loss``, or the first name that ends with it.

    Attributes:
        show: As given. It may be changed between two looks.

    Raises:
        FolderError: There is no such process or folder, or nothing is in it.
    """

    def __init__(self, targets: Sequence[str] = (), *, show: str | None = None) -> None:
        self.show = show
        self._targets: Sequence[str | None] = [*dict.fromkeys(targets)] or [None]
        self._watched: dict[Path, _Watched] = {}
        found = (row for target in targets for row in _collected(target))
        self._collected = [*{(row.rank.box.resolve(), row.rank.pid, row.rank.seen_ns): row for row in found}.values()]
        self._departures = Departures()
        self._present: dict[Path, None] = {}
        self._problems: list[str] = []
        self._changed_ns: list[int] = []
        self._searched_ns = 0
        self._looks = 0

    def look(self) -> Look:
        """Read what has changed since the previous look. Never raises for the content of boxes and folders."""
        self._search()
        self._departures.begin()
        for path in [path for path, watched in self._watched.items() if watched.gone and path in self._present]:
            del self._watched[path]  # a search has missed it
        new = [path for path in self._present if path not in self._watched]
        unreadable = [row for path in new if (row := self._open(path)) is not None]
        self._looks += 1
        for number, (path, watched) in enumerate(self._watched.items(), self._looks):
            if path in self._present:
                watched.read(self.show, only_page=number % self._turns > 0)
            else:
                watched.depart(self._departures)
        rows = [watched.row(self.show) for watched in self._watched.values()]
        shown = self._without_replaced(with_launchers([*rows, *self._collected]))
        return Look(time.time_ns(), jobs_of([*shown, *unreadable]), tuple(dict.fromkeys(self._problems)))

    def _without_replaced(self, rows: list[Row]) -> list[Row]:
        """Return rows without those whose place another process has taken; forget the vanished boxes among these."""
        left_out = {row.rank.box for row in replaced(rows)}
        gone = [row.rank for row in rows if self._is_gone(row) and row.rank.box not in left_out]
        gone.sort(key=lambda rank: rank.seen_ns)
        left_out.update(rank.box for rank in gone[: max(len(gone) - _MOST_GONE, 0)])
        for row in rows:
            if row.rank.box in left_out and self._is_gone(row):
                self._watched.pop(row.rank.box).watch.close()
        return [row for row in rows if row.rank.box not in left_out]

    def _is_gone(self, row: Row) -> bool:
        watched = self._watched.get(row.rank.box)
        return watched is not None and watched.gone

    def close(self) -> None:
        """Close all boxes. Idempotent."""
        for watched in self._watched.values():
            watched.watch.close()
        self._watched.clear()

    @property
    def _turns(self) -> int:
        return -(-len(self._present) // _AT_ONCE) or 1

    def _search(self) -> None:
        """Search for boxes, unless no entry of their folders has changed since the last search."""
        changed_ns = [_changed_ns(folder) for target in self._targets for folder in folders_of(target)]
        now_ns = time.time_ns()
        if changed_ns == self._changed_ns and now_ns - self._searched_ns < _SEARCH_NS:
            return
        self._present.clear()
        self._problems.clear()
        found: list[Path] = []
        for target in self._targets:
            try:
                found += boxes_of(target, self._problems)
            except FolderError:
                pass  # the folder was removed since the start
            except OSError as error:
                self._problems.append(f"boxes cannot be searched: {reason(error)}")
        unique = {path.parent.resolve() / path.name: path for path in reversed(found)}
        self._present.update(dict.fromkeys(reversed(unique.values())))
        # A folder that has just changed may change again without another time.
        self._changed_ns = changed_ns if now_ns - max(changed_ns, default=0) > _TICK_NS else []
        self._searched_ns = now_ns

    def _open(self, path: Path) -> Row | None:
        """Begin to watch a box. If it cannot be read, return a row that shows why, unless the box was removed."""
        try:
            self._watched[path] = _Watched(BoxWatch(path))
        except Exception as error:  # the content may be damaged in any way
            if not path.exists():
                return None
            return _unreadable(path, RankState.ALIVE if _runs(path) else RankState.DEAD, reason(error))
        return None


class _Watched:
    """A box that is watched, and the end of its process.

    Attributes:
        watch: The readings of the box.
        gone: The box has vanished.
    """

    def __init__(self, watch: BoxWatch) -> None:
        self.watch = watch
        self.gone = False
        self._end: End | None = None
        self._examined = False  # the box of a dead process
        self._searched = 0
        self._problem = ""

    def read(self, show: str | None, *, only_page: bool) -> None:
        """Read what has changed; of a process that runs, the page only, if that is wanted. Note a problem."""
        try:
            if self._examined:
                self.watch.reopen()
            if self.watch.has_ended():
                return  # the next search does not find it
            if self.watch.is_alive():
                self._end, self._examined = None, False
                self.watch.refresh(show, only_page=only_page)
            elif not self._examined or show != self.watch.show:
                self._end = self._end or End(RankState.DEAD)  # until the box is read
                self.watch.refresh(show)
                self._end, self._examined = death_in(self.watch), True
            self._problem = ""
        except FileNotFoundError:
            pass  # it was removed; the next look does not find it
        except Exception as error:  # the content may be damaged in any way
            self._problem = reason(error)
        finally:
            if self._examined:
                self.watch.close()  # many processes may be dead, and each open box takes two descriptors

    def depart(self, departures: Departures) -> None:
        """Search for the end of the process, whose box has vanished."""
        if not self.gone:
            self.gone, self._problem = True, ""
            self.watch.see_end()
        if self._searched >= _ATTEMPTS:
            return
        self._searched += 1
        try:
            self._end, certain = departures.end_of(self.watch, self._end)
            if certain:
                self._searched = _ATTEMPTS
            self._problem = ""
        except Exception as error:  # reports and spools may be damaged, or out of reach
            self._end, self._problem = self._end or End(RankState.ENDED, seen_ns=time.time_ns()), reason(error)

    def row(self, show: str | None) -> Row:
        """Return the row of the process. If the box has values of unexpected types, the row shows why."""
        watch, end = self.watch, self._end
        try:
            created_ns = watch.record.created_ns
            rank = row_of(watch, end, show, self._problem)
            status = "" if end is None else end.status
            facts = watch.history, usual_step(watch), status, watch.thread, watch.process, watch.stepped
            return Row(rank, created_ns, *facts)
        except Exception as error:
            state = RankState.ALIVE if end is None else end.state
            return _unreadable(watch.path, state, f"unexpected values: {error!r}")


def _unreadable(path: Path, state: RankState, problem: str) -> Row:
    return Row(Rank(path, process_of(path) or None, state=state, problem=problem))


def _collected(target: str) -> list[Row]:
    """Return the rows of a target's processes whose boxes were collected into spools, if it has no box.

    Raises:
        FolderError: There is no such process or folder, or nothing is in it.
    """
    problems: list[str] = []
    if boxes_of(target, problems):
        return []
    found = deaths_of(target, problems)
    if not found:
        raise nothing_known(target, problems)
    return [Row(_of_findings(each)) for each in found]


def _of_findings(found: Findings) -> Rank:
    names = found.identity
    return Rank(
        found.source,
        pid=names.pid,
        host=names.host,
        job=JobName("", names.service, names.run),
        rank=names.rank,
        world_size=names.world_size,
        attempt=names.attempt,
        state=RankState.DEAD,
        death=found.death,
        seen_ns=found.seen_ns,
        step=found.step,
        step_age_ns=found.step_age_ns,
        activity=found.activity,
        activity_age_ns=found.activity_age_ns,
        stage=found.stage,
        waits=longest_first(found.waits),
        event=found.events[-1] if found.events else None,
    )


def _changed_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _runs(path: Path) -> bool:
    try:
        folder = Folder.open(path, probe=False)
        try:
            return is_alive(folder)
        finally:
            folder.close()
    except (FolderError, OSError):
        return False
