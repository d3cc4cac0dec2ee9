"""The operations of a job, written by the job into a mapped file before and after each one; the file survives SIGKILL.

An operation has begun before it is called, and is done after it returned. Each source is a sequence of operations
1, 2, 3 ... of one thread, so that two numbers describe it.
"""

import json
import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

LATE_NS = 10_000_000
SLEEP_NS = 50_000_000  # between two notes of the waits
_EXIT_NS, _EXIT_WAITED_NS = 2_000_000_000, 500_000_000
_CAPACITY = 16_384  # operations of a source, or times and waits; the file is sparse
_HEADER = 1024  # words: the facts, and the names of the sources as JSON
_FACTS = ("configured_ns", "exiting_ns", "stopped_ns", "ended_ns", "step", "names")
_NAMES_AT = 16  # word


class HistoryWriter:
    def __init__(self, path: Path, sources: Sequence[str]) -> None:
        names = json.dumps(sources).encode()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        size = 8 * (_HEADER + (len(sources) + 1) * (2 + _CAPACITY))
        os.ftruncate(file, size)
        content = mmap.mmap(file, size)
        os.close(file)
        content[8 * _NAMES_AT : 8 * _NAMES_AT + len(names)] = names
        self._words = memoryview(content).cast("q")
        self.set(names=len(names))
        self._at = {name: _HEADER + number * (2 + _CAPACITY) for number, name in enumerate(sources)}
        self._waits_at = _HEADER + len(sources) * (2 + _CAPACITY)

    def set(self, **facts: int) -> None:
        """Write facts, see :class:`History`."""
        for name, value in facts.items():
            self._words[_FACTS.index(name)] = value

    def note_wait(self, at_ns: int, total_ns: int) -> None:
        """Write for how long this process had waited for a processor at a time."""
        count, at = self._words[self._waits_at], self._waits_at + 1
        if count + 2 <= _CAPACITY:
            self._words[at + count], self._words[at + count + 1] = at_ns, total_ns
            self._words[self._waits_at] = count + 2

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
    configured_ns: int  # time at which ``configure()`` had returned; 0 before. Monotonic ns, as all times here
    exiting_ns: int  # time at which the exit of the pipeline began; 0 if it did not
    stopped_ns: int  # time just before the process ended itself; 0 if it did not
    ended_ns: int  # time at which the shutdown of the pipeline had returned; 0 before
    step: int  # the latest step
    begun: dict[str, int]  # number of operations that have begun, by source
    done_ns: dict[str, list[int]]  # times at which the operations were done, by source
    awake_ns: list[int]  # times at which the process noted its waits, from its configuration on
    waited_ns: list[int]  # for how long it had waited for a processor then

    def lateness(self, begin_ns: int, died_ns: int) -> int:
        """Return the time in ns that the process has waited for a processor from some time to its death.

        It also waited at the end if its last note is old. A forked child takes one note only: it works without a pause
        for some milliseconds, so that nearly all of a longer life is a wait.
        """
        if not self.awake_ns:
            return 0
        first = max(0, bisect_left(self.awake_ns, begin_ns) - 1)
        asleep_ns = died_ns - self.awake_ns[-1]
        return self.waited_ns[-1] - self.waited_ns[first] + (asleep_ns if asleep_ns > SLEEP_NS + LATE_NS else 0)

    def exit_had_no_time(self, ended_ns: int) -> bool:
        """Return True if the 2 s of the exit were over, and the process waited for a processor for much of them.

        Then monitel drops what it can neither deliver nor store, and counts it: no fault, but a documented limit.
        """
        lasted_ns = ended_ns - self.exiting_ns if self.exiting_ns else 0
        return lasted_ns >= _EXIT_NS and self.lateness(self.exiting_ns, ended_ns) > _EXIT_WAITED_NS


def read_history(path: Path) -> History:
    words = memoryview(path.read_bytes()).cast("q")
    facts = {**dict.fromkeys(_FACTS, 0), **dict(zip(_FACTS, words, strict=False))}  # killed before it had a size: empty
    length = facts.pop("names")
    names: list[str] = json.loads(words[_NAMES_AT:_HEADER].tobytes()[:length]) if length else []
    begun, done = {}, {}
    for number, name in enumerate(names):
        at = _HEADER + number * (2 + _CAPACITY)
        begun[name] = words[at]
        done[name] = words[at + 2 : at + 2 + words[at + 1]].tolist()
    at = _HEADER + len(names) * (2 + _CAPACITY)
    waits = words[at + 1 : at + 1 + words[at]].tolist() if names else []
    return History(**facts, begun=begun, done_ns=done, awake_ns=waits[::2], waited_ns=waits[1::2])
