"""The file with the values of a run, written by the thread of its ledger: more and more rarely, and at the end."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from monitel.console.values.run_values import RunValues
from monitel.console.values.stored import LIMIT_BYTES, ValuesError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel.console.values.latest import Latest
    from monitel.console.values.run_values import Attempted, Key, Scalar, Value

_log = logging.getLogger("monitel.otlp")

VALUES = "values.json"

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds between two writes


class Files(Protocol):
    """The folder of a run."""

    def read(self, name: str, limit: int) -> bytes:
        """Return the first bytes of a file."""

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file as a whole."""


class ValuesFile:
    """Stores the values of this process, together with those of earlier attempts of the run.

    The pause between two writes doubles from a second to a minute. So a killed process loses at most the values of its
    last minute. Use it in one thread at a time.

    Args:
        run: The run id; empty for a process without one.
        attempt: Unique name of this process.
        attributes: Attributes of the resource.
        latest: Returns the values of this process; None if there are none.
    """

    def __init__(
        self, run: str, attempt: str, attributes: Mapping[str, Any], latest: Callable[[], Latest | None]
    ) -> None:
        self._run, self._attempt, self._latest = run, attempt, latest
        self._attributes = {str(name): _scalar(each) for name, each in attributes.items()}
        self._found: bytes | None = None
        self._earlier = RunValues(run, "")
        self._is_own = False  # the file is from an earlier pipeline of this process
        self._pause, self._due = _FIRST_PAUSE, 0.0
        self._failed = False

    def resume(self, folder: Files, last: Attempted | None) -> None:
        """Read the values of earlier attempts. A file that cannot be used is replaced by the next write.

        Args:
            folder: The folder of the run.
            last: The last attempt by the ledger; None if there is none.
        """
        self._found, self._earlier = None, RunValues(self._run, "")
        with suppress(OSError):
            self._found = folder.read(VALUES, LIMIT_BYTES + 1)
        with suppress(ValuesError):
            earlier = self._earlier if self._found is None else decode(self._found)
            self._earlier = earlier if earlier.run == self._run else self._earlier
        if last is not None:
            self._earlier = self._earlier.until(last)
        self._is_own = self._earlier.attempt == self._attempt

    def store(self, folder: Files, *, status: str, last: bool) -> None:
        """Write the values if that is due.

        Args:
            folder: The folder of the run.
            status: How the process ends; empty while it runs.
            last: The process ends.

        Raises:
            OSError: The write failed.
        """
        now = time.monotonic()
        if self._failed or (now < self._due and not last):
            return
        try:
            latest = self._latest()
            content = None if latest is None else encode(self._combined(latest, status))
        except Exception:  # of an object of the application; the ledger must go on
            self._failed = True
            _log.debug("the values of the run cannot be stored", exc_info=True)
            return
        self._due, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        if content is not None:
            folder.replace(VALUES, content)

    def restore(self, folder: Files) -> None:
        """Write the file back as it was found: another process is rank zero.

        Raises:
            OSError: The write failed.
        """
        if self._found is not None:
            folder.replace(VALUES, self._found)

    def _combined(self, latest: Latest, status: str) -> RunValues:
        """Return the values of this process and of the earlier attempts."""
        earlier = self._earlier
        before, progress = earlier.before, latest.progress
        if self._is_own:  # the steps are those of the process, and their durations those of the pipeline
            same = earlier.progress._replace(steps=0, last_step=None)
            progress = same.plus(progress)
        else:
            before = before.plus(earlier.progress)
        found: dict[Key, Value] = {each.key: each for each in earlier.values}
        own = {each.key: self._added(each, found.pop(each.key, None), latest) for each in latest.values}
        return RunValues(
            run=self._run,
            attempt=self._attempt,
            time_ns=time.time_ns(),
            status=status,
            attributes=self._attributes,
            config={**earlier.config, **latest.config},
            progress=progress,
            before=before,
            values=(*own.values(), *found.values()),
        )

    def _added(self, value: Value, earlier: Value | None, latest: Latest) -> Value:
        """Return a value; of a total, with that of earlier attempts."""
        if not value.total or earlier is None or not earlier.total:
            return value
        is_continued = self._is_own and value.key in latest.counters
        before = earlier.before if is_continued else earlier.value
        return value._replace(value=before + value.value, before=before)


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else str(value)
