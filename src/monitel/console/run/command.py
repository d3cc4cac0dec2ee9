"""The command ``monitel run``. Until its command runs it loads only the standard library."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from monitel.console.run.arguments import parse
from monitel.console.run.child import CommandError, replace, with_injection, with_options, without_process
from monitel.console.run.parent import Parent
from monitel.console.run.process_watch import ProcessEnd, ProcessWatch
from monitel.run_folder import VARIABLE, is_running, make_run_folder, remove_abandoned, remove_run_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.blackbox.process import Owner
    from monitel.console.run.arguments import RunArguments
    from monitel.console.run.ending import Ending
    from monitel.console.run.parent import Ended

_LONG = 5.0  # seconds after which the start of the command is logged before its end
_ENDING = 5.0  # seconds for collection and delivery
_SILENT = 1.0  # seconds of these before a message is printed
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Interrupted(BaseException):
    """Raised by a signal that ends the work after the end of the command."""


def run(arguments: Sequence[str]) -> int:
    """Run a command, and end like it. It returns only if the command cannot be started.

    Args:
        arguments: The arguments after ``run``.

    Returns:
        The exit status of a shell for a command that cannot be started.
    """
    parsed = parse(arguments)
    environment = with_options(
        os.environ,
        endpoint=parsed.endpoint,
        headers=parsed.headers,
        protocol=parsed.protocol,
        service_name=parsed.service_name,
    )
    parent = Parent()
    try:
        if is_running(environment.get(VARIABLE, "")):
            replace(parsed.command, without_process(environment))  # the outer run does the rest
        try:
            folder, announcements = make_run_folder()
        except OSError as error:
            _print(f"without telemetry, because there is no place for a folder: {error}")
            replace(parsed.command, environment)
        try:
            parent.start(parsed.command, with_injection(environment, folder))
        except BaseException:
            remove_run_folder(folder)
            raise
    except CommandError as error:
        _print(str(error))
        return error.status
    except OSError as error:
        _print(f"the command cannot be started: {error}")
        return 126
    os.environ.clear()
    os.environ.update(environment)
    status = _wait(parent, parsed, folder, announcements)
    return exit_like(status)


def _wait(parent: Parent, parsed: RunArguments, folder: str, announcements: int) -> int:
    """Wait for the end of the command, finish, and return its status."""
    work = _Work(parsed.command, folder, parent.began_ns)
    watch = ProcessWatch(announcements, work.note)
    try:
        watch.start()
        work.start()
    except RuntimeError as error:  # no thread can be started
        _print(f"without telemetry: {error}")
    end = parent.wait()
    try:
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        parent.close()
        work.finish(end, watch)
        _summarize(folder, work, endpoint_given=parsed.endpoint is not None)
    except _Interrupted:
        _print("stopped; telemetry that is not delivered stays on disk")
    except Exception as error:
        _print(f"the telemetry of the command could not be finished: {error!r}")
    finally:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        remove_run_folder(folder)
        remove_abandoned(folder)
    return end.status


def _summarize(folder: str, work: _Work, *, endpoint_given: bool) -> None:
    if not work.used:
        _print("nothing was recorded", "monitel run")
        return
    from monitel.console.summary import print_summary  # late: a command that records nothing does not need it

    print_summary(Path(folder), cause=work.cause, endpoint_given=endpoint_given)


class _End(NamedTuple):
    """The end of everything: of the command, of its processes, and whether one of them was recorded."""

    command: Ended
    processes: list[ProcessEnd]
    recorded: bool


class _Work:
    """The work besides waiting, in a thread, because it may take long: the end of this process does not wait for it.

    Attributes:
        used: There was something to do.
    """

    def __init__(self, command: Sequence[str], folder: str, began_ns: int) -> None:
        self._command = command
        self._folder = folder
        self._began_ns = began_ns
        self._ends: SimpleQueue[ProcessEnd | _End] = SimpleQueue()
        self._done = Event()
        self._ending: Ending | None = None
        self._thread = Thread(target=self._run, name="monitel-run", daemon=True)
        self.used = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def note(self, end: ProcessEnd) -> None:
        """Collect the black box of a process of the command that has not ended well, soon."""
        if end.status != 0 and not _is_disabled():
            self._ends.put(end)

    def finish(self, end: Ended, watch: ProcessWatch) -> None:
        """Collect and deliver the remaining telemetry, for some seconds at most. An exception stops that."""
        ends = watch.stop()
        recorded = bool(watch.announced)
        self.used = not _is_disabled() and (recorded or self._ending is not None or _has_work(self._folder))
        if not self.used or self._thread.ident is None:
            return
        self._ends.put(_End(end, ends, recorded))
        try:
            if not self._done.wait(_SILENT):
                _print("delivering the remaining telemetry; Ctrl-C stops the delivery, and the rest stays on disk")
                self._done.wait(_ENDING - _SILENT)
        finally:
            if self._ending is not None:
                self._ending.stop()
        for problem in self._ending.problems if self._ending is not None else ():
            _print(problem)

    def cause(self, owner: Owner) -> tuple[str, int] | None:
        """Return how a process of the command has ended, and when; None if it is not known."""
        return None if self._ending is None else self._ending.deaths.cause(owner)

    def _run(self) -> None:
        try:
            last = self._work_until_end()
            self._make_ending().finish(last.command, last.processes, recorded=last.recorded)
        except Exception as error:
            _print(f"the telemetry of the command could not be finished: {error!r}")
        finally:
            self._done.set()

    def _work_until_end(self) -> _End:
        """Log the start of a command that runs for long, and collect the boxes of killed processes."""
        timeout: float | None = _LONG
        while True:
            try:
                found = [self._ends.get(timeout=timeout)]
                while not self._ends.empty():
                    found.append(self._ends.get())
            except Empty:
                timeout = None
                if not _is_disabled():
                    self._make_ending().log_start(self._began_ns)
                continue
            if isinstance(found[-1], _End):
                return found[-1]
            ending = self._make_ending()
            ending.observe(each for each in found if isinstance(each, ProcessEnd))
            ending.collect(observed_only=True)

    def _make_ending(self) -> Ending:
        if self._ending is None:
            from monitel.console.run.ending import Ending  # late: it loads OpenTelemetry's SDK

            self._ending = Ending(self._command, Path(self._folder))
        return self._ending


def _is_disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _has_work(folder: str) -> bool:
    """Return True if there may be something to collect or to send, without loading the code for it."""
    if any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in os.environ):
        return True
    given = os.environ.get("MONITEL_BLACK_BOX_DIR", "")
    parents = ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR", ""))  # noqa: S108  they are only listed
    roots = [given] if given else [os.path.join(parent, f"monitel-{os.geteuid()}") for parent in parents if parent]
    for path in roots:
        with suppress(OSError):
            if os.listdir(path):
                return True
    with suppress(OSError):
        return any(name.startswith("report-") for name in os.listdir(folder))
    return False


def _interrupt(_number: int, _frame: object) -> None:
    for number in _ENDS:  # a further signal must not change the exit status
        signal.signal(number, signal.SIG_IGN)
    raise _Interrupted


def _print(message: str, program: str = "monitel") -> None:
    if sys.stderr is not None:
        with suppress(Exception):
            sys.stderr.write(f"{program}: {message}\n")
            sys.stderr.flush()


_SIGNAL = 128  # a shell adds it to the number of a signal
_SET_DUMPABLE = 4  # PR_SET_DUMPABLE


def exit_like(status: int) -> NoReturn:
    """End this process as another process has ended: by the same signal, without a core file, or with its exit code.

    Process 1 cannot be ended by a signal that it sends to itself: its exit code is then that of a shell.

    Args:
        status: Status of the other process, as ``os.waitpid`` returns it.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or nobody reads it
            stream.flush()
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if os.getpid() != 1:
        _prevent_core()
        with suppress(OSError, ValueError):  # SIGKILL has no other effect
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(_SIGNAL + number)


def _prevent_core() -> None:
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(Exception):
        import ctypes  # late: it is needed only here

        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # the limit does not apply to a program that takes cores
