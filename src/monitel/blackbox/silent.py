"""The record of a process that no exporter reads: what `monitel autopsy`, `top` and the summary of `monitel run` show.

Each of its journals keeps its last 256 KiB, and nothing goes to the disk. The first item makes the box. A forked child
has no such record, unless an exporter begins there.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import monitel
from monitel.blackbox.box import Box, has_box
from monitel.blackbox.record import JOURNALS
from monitel.blackbox.recorder import Recorder, Series, SeriesTable
from monitel.blackbox.recovery import forget_unread, sweep
from monitel.blackbox.settings import BOX_CHOICES, BoxSettings, box_settings
from monitel.process.exit import finalize_with_children, is_child, without_interruption
from monitel.process.fork import register_at_fork
from monitel.process.launcher import launch_attributes
from monitel.process.os_threads import RLock
from monitel.stats import window_sinks
from monitel.variables import read_variables
from monitel_run.folder import VARIABLE as RUN_FOLDER

_log = logging.getLogger("monitel")
_TIMEOUT_S = 1.0

_lock = RLock()
_owners: list[object] = []
at_end: list[Callable[[], object]] = []  # called when the record ends
_record: _Record | None = None


class _Record:
    def __init__(self, settings: BoxSettings, attributes: Mapping[str, Any], store: str) -> None:
        identity = {"attributes": dict(attributes), "run": os.environ.get(RUN_FOLDER, ""), "off": [*JOURNALS]}
        identity["store"] = store
        self._box = Box(None, settings.root, identity, box_bytes=settings.size)
        self.recorder = Recorder(self._box, SeriesTable())
        self._handle = monitel.register_event_handler(self._take)
        window_sinks.add(self.recorder.window)
        self._box.start()

    def _take(self, event: monitel.Event) -> None:
        if event._window is None:
            self.recorder.event(event)

    def leave(self) -> None:
        monitel.unregister_event_handler(self._handle)
        window_sinks.remove(self.recorder.window)

    def close(self) -> None:
        self.leave()
        self._box.close(_TIMEOUT_S)


def hold(
    owner: object,
    *,
    settings: BoxSettings | None = None,
    attributes: Mapping[str, Any] | None = None,
    store: str = "",
) -> Recorder | None:
    """Keep a record of this process for an exporter that needs none itself, unless it has one. Never raises.

    The settings of the box are by default those of the environment variables, the attributes those of its launcher;
    ``store`` is the folder of the run. Return the recorder, unless this process has a record that an exporter reads, or
    can have none.
    """
    global _record
    with _lock:
        try:
            if _record is None:
                if settings is None:
                    settings = box_settings(**read_variables(BOX_CHOICES, dict.fromkeys(BOX_CHOICES)))
                if settings.root is None or has_box():
                    return None
                sweep(settings.root)
                forget_unread(settings.root)
                _record = _Record(settings, launch_attributes() if attributes is None else attributes, store)
            _owners.append(owner)
        except Exception:
            _log.warning("this process has no black box", exc_info=True)
            return None
        return _record.recorder


def release(owner: object) -> list[Series] | None:
    """Remove the record when its last owner has released it, and return its series; None for any other owner."""
    with _lock:
        if _record is None or owner not in _owners:
            return None
        series = _record.recorder.series
        _owners.remove(owner)
        if not _owners:
            give_way()
        return series


def give_way() -> None:
    """Remove the record, because the process ends or an exporter begins one that it reads. Idempotent."""
    global _record
    with _lock:
        record, _record = _record, None
        _owners.clear()
        while at_end:
            at_end.pop()()
        if record is not None:
            record.close()


def _leave_to_parent() -> None:
    """Forget the record of the parent. In a forked child."""
    global _record, _lock
    _lock = RLock()
    record, _record = _record, None
    _owners.clear()
    at_end.clear()
    if record is not None:
        record.leave()


def _end_child() -> None:
    """Remove the record of a child of multiprocessing, which skips ``atexit``; others report their end there first."""
    if is_child():
        give_way()


atexit.register(without_interruption(raises=False)(give_way))
finalize_with_children(_end_child, priority=0)
register_at_fork(after_in_child=_leave_to_parent)
