"""The two recorders of ranges, in C and in Python: equal operations have equal results and errors."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitel.profiler.ranges import _ranges_py
from monitel.profiler.ranges.tracks import Track
from monitel.testing import ManualClock

compiled: Any = pytest.importorskip("monitel.profiler.ranges._ranges_c", reason="_ranges_c is not built")

SECOND = 1_000_000_000

#: An action, the context it runs in (of three), and its label (of four).
OPERATIONS = st.tuples(
    st.sampled_from(["begin", "begin", "end", "end", "end as opened", "fail", "past", "advance", "listen", "refuse"]),
    st.integers(0, 2),
    st.integers(0, 3),
)


class Player:
    """Runs operations on one twin, and logs all visible results."""

    def __init__(self, twin: Any) -> None:
        self.twin = twin
        self.log: list[Any] = []
        self.contexts = [contextvars.Context() for _ in range(3)]
        self.labels = [object() for _ in range(4)]
        self.opened: dict[object, Any] = {}
        self.clock = ManualClock()

    def seen(self, event: str, found: Any) -> None:
        """Log a range."""
        if found is None:
            self.log.append((event, None))
            return
        times = (found.monotonic_start_ns, found.monotonic_end_ns, found.start_ns, found.end_ns)
        parent = found.parent and found.parent.name
        where = found.step, str(found.track), repr(found)
        self.log.append((event, found.name, found.args, parent, times, found.error_type, *where))

    def refuse(self, found: Any) -> None:
        """Raise KeyboardInterrupt, as a listener."""
        raise KeyboardInterrupt(found.name)

    def play(self, action: str, where: int, which: int) -> None:
        """Run one operation."""
        label = self.labels[which]
        if action == "begin":
            self.opened[label] = self.twin.begin(label, f"{which} at {len(self.log)}", which)
        elif action.startswith("end"):
            self.twin.end(label, self.opened.get(label) if action == "end as opened" else None)
        elif action == "fail":
            self.twin.end(label, self.opened.get(label), f"Error{which}")
        elif action == "past":
            now_ns, track = self.twin.now(), Track(which, "past") if where else None
            self.twin.record_past(f"past at {len(self.log)}", which, now_ns - which * SECOND, now_ns, track)
        elif action == "advance":
            self.clock.advance(which)
            self.twin.set_clock(self.clock, self.clock.time_ns() - self.clock.monotonic_ns() + where)
        else:
            listener = self.refuse if action == "refuse" and which else lambda found: self.seen("received", found)
            self.twin.set_listeners((listener,) * where, (listener,) * which)
        self.seen("current", self.twin.current())


def played(twin: Any, operations: list[tuple[str, int, int]]) -> list[Any]:
    """Run operations and return the log; reset the twin afterwards."""
    player = Player(twin)
    twin.set_clock(player.clock, 5)
    try:
        for action, where, which in operations:
            try:
                player.contexts[where].run(player.play, action, where, which)
            except BaseException as error:
                player.log.append((type(error), str(error)))
                player.contexts[where].run(lambda: player.seen("after", twin.current()))
    finally:
        twin.set_listeners((), ())
        twin.set_clock(None, 0)
    return player.log


@settings(max_examples=200)
@given(st.lists(OPERATIONS, max_size=60))
def test_twins_are_equal(operations: list[tuple[str, int, int]]) -> None:
    """Ranges, parents, times, calls of listeners and exceptions are equal."""
    assert played(_ranges_py, operations) == played(compiled, operations)


def test_twins_have_equal_names() -> None:
    """Both modules have the same functions and docstrings, both types the same attributes."""

    def public(found: Any) -> dict[str, str | None]:
        return {name: getattr(found, name).__doc__ for name in dir(found) if not name.startswith("_")}

    functions = public(compiled)
    assert set(functions) <= set(public(_ranges_py))
    for name in set(functions) - {"Range"}:
        assert functions[name] == getattr(_ranges_py, name).__doc__, name
    assert set(public(compiled.Range)) == set(public(_ranges_py.Range))
