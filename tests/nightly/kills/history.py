"""The operations of a job, written by the job into a mapped file before and after each one; the file survives SIGKILL.

An operation has begun before it is called, and is done after it returned. Each source is a sequence of operations
1, 2, 3 ... of one thread, so that two numbers describe it.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LATE_NS = 10_000_000
_CAPACITY = 16_384  # operations of a source; the file is sparse
_HEADER = 1024  # words: the facts, and the names of the sources as JSON
_FACTS = ("configured_ns", "lateness_ns", "awake_ns", "stopped_ns", "ended_ns", "step", "names")
_NAMES_AT = 16  # word


class HistoryWriter:
    """The file of one process, which this process writes."""

    def __init__(self, path: Path, sources: Sequence[str]) -> None:
        names = json.dumps(sources).encode()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        size = 8 * (_HEADER + len(sources) * (2 + _CAPACITY))
        os.ftruncate(file, size)
        content = mmap.mmap(file, size)
        os.close(file)
        content[8 * _NAMES_AT : 8 * _NAMES_AT + len(names)] = names
        self._words = memoryview(content).cast("q")
        self.set(names=len(names))
        self._at = {name: _HEADER + number * (2 + _CAPACITY) for number, name in enumerate(sources)}

    def set(self, **facts: int) -> None:
        """Write facts, see :class:`History`."""
        for name, value in facts.items():
            self._words[_FACTS.index(name)] = value

    def do(self, source: str, operation: Callable[[int], object], times: int = 1) -> None:
        """Call an operation of a source with its number, from 1 on, several times.

        A word is written by one 8-byte store, so that SIGKILL leaves the old or the new value.
        """
        words, at = self._words, self._at[source]
        for number in range(words[at + 1] + 1, min(words[at + 1] + times, _CAPACITY) + 1):
            words[at] = number
            operation(number)
            words[at + 1 + number] = time.monotonic_ns()
            words[at + 1] = number


class History(NamedTuple):
    """The content of a file.

    Attributes:
        configured_ns: Time at which ``configure()`` had returned; 0 before. Monotonic ns, as all times here.
        lateness_ns: The time that a thread has overslept, over all sleeps that were late by more than 10 ms.
        awake_ns: Time at which that thread was last awake; 0 if there was none.
        stopped_ns: Time just before the process ended itself; 0 if it did not.
        ended_ns: Time at which the shutdown of the pipeline had returned; 0 before.
        step: The latest step.
        begun: Number of operations that have begun, by source.
        done_ns: Times at which the operations were done, by source.
    """

    configured_ns: int
    lateness_ns: int
    awake_ns: int
    stopped_ns: int
    ended_ns: int
    step: int
    begun: dict[str, int]
    done_ns: dict[str, list[int]]

    def lateness_at(self, died_ns: int) -> int:
        """Return the time in ns that the process has waited for a processor: also at its death, if it slept then."""
        asleep_ns = died_ns - self.awake_ns
        return self.lateness_ns + (asleep_ns if self.awake_ns and asleep_ns > LATE_NS else 0)


def read_history(path: Path) -> History:
    """Return the content of the file of an ended process."""
    words = memoryview(path.read_bytes()).cast("q")
    facts = dict(zip(_FACTS, words, strict=False))
    length = facts.pop("names")
    names: list[str] = json.loads(words[_NAMES_AT:_HEADER].tobytes()[:length]) if length else []
    begun, done = {}, {}
    for number, name in enumerate(names):
        at = _HEADER + number * (2 + _CAPACITY)
        begun[name] = words[at]
        done[name] = words[at + 2 : at + 2 + words[at + 1]].tolist()
    return History(**facts, begun=begun, done_ns=done)
