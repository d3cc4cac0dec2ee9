"""A run that one call begins: its folder, its exporters, and its end."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn, cast

from monitel.attributes import checked_text, escape_surrogates
from monitel.blackbox.folder import Folder, FolderError, make_folder
from monitel.blackbox.settings import runs_dir, spool_root
from monitel.console.report import FILE, is_wanted, write_report
from monitel.event import Event
from monitel.handlers import log_event
from monitel.logged_numbers import log
from monitel.process.exit import EXIT_TIMEOUT, LEAST, imports_main, without_interruption
from monitel.process.failures import warn_once
from monitel.process.fork import register_at_fork
from monitel.process.import_hook import AfterImport
from monitel.process.launcher import is_rank_zero, launch_attributes, sdk_is_disabled, service_name
from monitel.process.os_threads import Event as Signal
from monitel.process.os_threads import RLock, call_in_time
from monitel.process.worker import Worker
from monitel.run_config import config_event
from monitel.run_events import end_if_due, leave
from monitel.runs import ended, exporters, folder
from monitel.runs.process import Process
from monitel.runs.recorded import Recorded
from monitel.stats._window import get_step
from monitel.stats.registry import flush
from monitel.text import near, warn
from monitel.training.step import set_step
from monitel_run.folder import VARIABLE, is_running

_log = logging.getLogger("monitel")
_NOTHING: dict[Any, Any] = {}
_BEGIN_S = 2.0  # seconds by which a disk may delay the begin of a run

_lock = RLock()  # of begins and ends
_current: Run | None = None
_begun = 0  # number of runs of this process


class Run:
    """A run that :func:`monitel.start` has begun. Leaving ``with run:`` ends it; otherwise it ends with the process.

    Attributes:
        name: The name that was given.
        folder: Its folder, with the report, its TensorBoard files, and what has no endpoint.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.folder = name, path
        self._pid = os.getpid()
        self._step: int | None = None  # the last one that log() has set
        #: A lower step of the last call: if a rising one follows, steps have begun again, and it is not a late number.
        self._again: float | None = None
        self._is_over = False
        launch = launch_attributes()
        self._is_zero = is_rank_zero(launch)
        self._end: Process | None = None  # of this process
        self._kept = Signal()
        self._page: Path | None = None
        self._keeper = Worker("monitel-run-end", self._keep)
        self._exporters: list[tuple[object, Callable[[float], object]]] = []  # each with the function that ends it
        self._uninstrument: Callable[[], object] = lambda: None
        folder.started, ended.keepers[path] = path, self._take_end
        given = launch.get("training.run.id")  # of the first run of this process; later ones are others
        folder.started_id = path.name if given is None else f"{given}{'' if _begun == 1 else f'-{_begun}'}"
        self._earlier = os.environ.get(folder.STARTED)  # of rank zero, which has started this process
        os.environ[folder.STARTED] = f"{_begun} {path}"
        self._keeper.start()
        atexit.register(self._print)  # after what the exporters do at the exit
        self._start_exporters()
        self._before = get_step()  # a later run begins without a step
        self._torch = AfterImport("torch", self._instrument)

    def log(self, values: Mapping[Any, Any] = _NOTHING, /, *, step: float | None = None, **attributes: Any) -> None:
        """Record numbers, as :func:`monitel.log` does.

        In a program that neither calls :func:`monitel.set_step` nor has an instrumented optimizer, ``step`` becomes
        the step of the process, so that the time of steps is known.

        Example:
            >>> import monitel
            >>> with monitel.start("my-run", lr=0.1) as run:
            ...     for step in range(1, 4):
            ...         run.log(loss=1 / step, step=step)
            >>> (run.folder / "report.html").exists()
            True
        """
        if self._is_over:
            warn_once(_log, "log() of the run %r, which has ended, records into the present run, if any", self.name)
        log(*([] if values is _NOTHING else [values]), step=step, **attributes)
        own, again = self._step, self._again
        if step is None or get_step() != (self._before if own is None else own):
            return
        self._again = step if own is not None and step < own else None
        if own is None or step > own or (step < own and again is not None and step > again):
            set_step(step)
            self._step = get_step()

    def end(self) -> None:
        """End the run: deliver what is recorded, and write the report. Idempotent. Never raises."""
        with _lock:
            self._finish(sys.exc_info()[1])

    def __enter__(self) -> Run:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        with _lock:
            self._finish(error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} in {str(self.folder)!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot copy or pickle the run {self.name!r}: call monitel.start() in the worker")

    def _start_exporters(self) -> None:
        recording, problems = exporters.load()
        writers, others = exporters.load(exporters.WRITERS) if self._is_zero else ([], [])
        problems += others
        for start_one in (*(each.start for each in recording), _record, *writers):
            if start_one is _record and self._exporters:
                continue
            try:
                if (started := start_one(self.name, self.folder, folder.started_id)) is not None:
                    self._exporters.append(started)
            except Exception as error:
                problems.append(f"an exporter cannot be started: {error!r}")
        for problem in problems:
            _log.warning("the run %r: %s", self.name, problem)

    def _instrument(self) -> None:
        try:
            from monitel.torch import instrumentation  # late: it requires torch

            if instrumentation._running is None:  # else it is that of the program, perhaps with other options
                self._uninstrument = instrumentation.instrument().uninstrument
        except Exception:
            _log.warning("the run %r goes on without an instrumentation of torch", self.name, exc_info=True)

    @without_interruption()
    def _finish(self, error: BaseException | None) -> None:
        global _current
        if self._is_over or os.getpid() != self._pid:
            return
        self._is_over = True
        self._torch.cancel()
        for exporter, _ in self._exporters:
            leave(exporter, error)
        for function in (end_if_due, flush, self._uninstrument):
            self._try(function)
        deadline = time.monotonic() + EXIT_TIMEOUT  # of all of them
        for _, end in self._exporters:
            self._try(partial(end, max(LEAST, deadline - time.monotonic())))
        self._exporters, self._uninstrument = [], lambda: None  # the program may keep this run
        self._try(self._print)
        atexit.unregister(self._print)
        self._keeper.stop()
        ended.keepers.pop(self.folder, None)
        if _current is self:
            folder.started = _current = None
            if self._earlier is None:
                os.environ.pop(folder.STARTED, None)
            else:
                os.environ[folder.STARTED] = self._earlier

    def _try(self, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception:
            _log.exception("the run %r could not be ended as a whole", self.name)

    def _take_end(self, process: Process, timeout: float) -> None:
        """Let the end of this process be stored, and wait so many seconds for that: its disk may hang."""
        self._end = process
        self._kept.clear()
        self._keeper.wake()
        self._kept.wait(timeout)
        if process.status == "preempted":  # by SIGTERM, which ends the process without the functions of atexit
            self._print()

    def _keep(self) -> None:
        """Store the end of this process and write the report, unless rank zero or ``monitel run`` will write it.

        ``monitel run`` writes that of the last run of a process.
        """
        has_parent = is_running(os.environ.get(VARIABLE, "")) and not sdk_is_disabled()
        try:
            if self._end is not None:
                ended.write_end(self.folder, self._end, ended.ONLY)
                with closing(Folder.open(self.folder)) as opened:
                    others = not self._is_zero and opened.is_locked()
                if is_wanted() and not others and (self._is_over or not has_parent):
                    page = write_report(self.folder, self.folder / FILE, title=self.name)
                    self._page = None if has_parent else page
        except (OSError, FolderError) as error:
            _log.warning("the end of the run %r cannot be stored: %s", self.name, error)
        finally:
            self._kept.set()

    def _print(self) -> None:
        page, self._page = self._page, None
        if page is not None and self._is_zero and os.getpid() == self._pid:
            warn(f"report: {near(page)}")


class _LaterRun:
    """The run of a child of multiprocessing that imports the main module: workers never use it."""

    def __init__(self, begin: Callable[[], Run]) -> None:
        self._begin = cache(begin)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._begin(), name)

    def __enter__(self) -> Run:
        return self._begin().__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._begin().__exit__(kind, error, traceback)


def start(name: str | None = None, values: Any = _NOTHING, **config: Any) -> Run:
    """Begin a run: record this process, and export with everything that is installed.

    * The run gets a folder, such as ``monitel-runs/my-run-20261126-1``; MONITEL_RUNS_DIR replaces ``monitel-runs``.
    * torch is instrumented, as by :func:`monitel.torch.instrument`, once it is imported.
    * With monitel-otlp everything goes to OTEL_EXPORTER_OTLP_ENDPOINT, or else to the folder, as by
      :func:`monitel_otlp.configure`. With monitel-tensorboard rank zero writes TensorBoard files into the folder.
    * At the end the report ``report.html`` is written into the folder, unless MONITEL_REPORT is false.

    Ranks on one machine share a folder, and so do all ranks and attempts whose launcher names the run, if the machines
    share the disk. A second call ends the first run, and begins another one. A forked child that trains calls start()
    itself; in a spawned one that imports the main module, a run begins with its first use.

    Args:
        name: Name of the run, by default that of the script or notebook. It is also the ``service.name``, unless
            OpenTelemetry's variables give one.
        values: The configuration of the run, as in :func:`monitel.config`.
        **config: Further values of the configuration. Those called ``name`` or ``values`` are given in ``values``.

    Raises:
        TypeError: ``name`` is not a str, or ``values`` has no names.
        ValueError: ``name`` is empty.

    Example:
        >>> import monitel
        >>> run = monitel.start("my-run", {"model": {"width": 64}}, lr=0.1)
        >>> run.log(loss=0.25, step=1)
        >>> run.end()
    """
    name = _checked_name(name)
    event = None if values is _NOTHING and not config else config_event(values, config)
    if imports_main():
        return cast("Run", _LaterRun(lambda: _begin(name, event)))
    return _begin(name, event)


def _begin(name: str, event: Event | None) -> Run:
    global _current, _begun
    with _lock:
        if _current is not None:
            _current.end()
        _begun += 1
        _current = run = Run(name, _make_folder(name))
    if event is not None:
        log_event(event)
    return run


def _checked_name(name: str | None) -> str:
    if name is None:  # an embedded interpreter may have no arguments
        program = Path(*getattr(sys, "argv", ())[:1])
        if program.stem.endswith("kernel_launcher"):  # of a notebook, whose name a Jupyter server gives
            program = Path(os.environ.get("JPY_SESSION_NAME", "notebook"))
        name = program.parent.name if program.stem == "__main__" else "" if program.stem == "-c" else program.stem
        name = escape_surrogates(name.strip("- ")) or "run"
    if not isinstance(name, str):
        raise TypeError(f"start() takes the name of the run, a str, got {type(name).__qualname__}: {name!r:.80}")
    if not name.strip():
        raise ValueError("start() takes the name of the run, got an empty str")
    return checked_text("name", name)


def _make_folder(name: str) -> Path:
    parent, key = runs_dir(), folder.shared_key(name, _begun)
    try:
        return call_in_time(
            lambda: folder.of_first_rank(name, _begun) or folder.make_started(parent, name, key), _BEGIN_S
        )
    except OSError as error:
        reason = error

    def make() -> Path:
        place = Path(tempfile.gettempdir(), f"monitel-runs-{os.geteuid()}")
        make_folder(place)
        Folder.open(place).close()  # another user may have made it
        return folder.make_started(place, name, key)

    try:
        made = call_in_time(make, _BEGIN_S)
    except (OSError, FolderError) as error:
        _log.warning("the run has no folder and no report: %s; %s", reason, error)
        return Path(os.devnull, name.replace("\0", ""))  # no file can be there
    _log.warning("cannot write to %r: %s; this run: monitel runs --spool-dir %s", str(parent), reason, made.parent)
    return made


def _record(name: str, _folder: Path, run_id: str) -> tuple[object, Callable[[float], object]]:
    """Record this process without an exporter."""
    attributes = {"service.name": service_name(name), **launch_attributes()}
    recorded = Recorded(spool_root(), {**attributes, "training.run.id": run_id})
    return recorded, recorded.close


def _leave_to_parent() -> None:
    global _lock
    _lock = RLock()
    ended.keepers.clear()
    folder.started = None


register_at_fork(after_in_child=_leave_to_parent)
