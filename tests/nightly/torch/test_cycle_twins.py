"""The partition of time into cycles: C and Python agree after any order of boundaries, and nothing is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly.leaks.cases import extension

if TYPE_CHECKING:
    from collections.abc import Callable

TWINS = [extension(f"torch.stages._cycle_{each}").Cycle for each in ("py", "c")]

_KINDS = ("optimizer_began", "optimizer_ended", "batch_began", "backward_began", "backward_ended")


class Asked:
    """An iterator, which is only asked."""


class Boundary(NamedTuple):
    """A call of the Cycle: what happened, and when.

    Attributes:
        waited: What the thread had waited for other ranks until then.
        iterator: Of the end of a request: the iterator, what was received, and whether gradients were enabled.
    """

    kind: str
    ns: int
    waited: int
    iterator: tuple[object, int | None, bool] | None = None


class Loop:
    """Runs a program of a training loop on a Cycle, and remembers all boundaries."""

    def __init__(self, twin: Any) -> None:
        self.cycles: list[list[int]] = []
        self.cycle = twin(lambda stages: None if stages is None else self.cycles.append(stages))
        self.boundaries: list[Boundary] = []
        self.ns = 1000
        self.iterators = [Asked() for _ in range(4)]

    def call(self, kind: str, *iterator: Any) -> None:
        """Pass a boundary."""
        self.boundaries.append(Boundary(kind, self.ns, self.cycle.waited_ns, iterator or None))
        if iterator:
            self.cycle.batch_ended(self.ns, *iterator)
        else:
            getattr(self.cycle, kind)(*(() if kind.endswith("in_backward") else (self.ns,)))

    def run(self, program: list[Any]) -> None:
        """Run statements, each a name with arguments."""
        for name, *arguments in program:
            getattr(self, name)(*arguments)

    def work(self, ns: int) -> None:
        """Let time pass."""
        self.ns += ns

    def wait(self, ns: int) -> None:
        """Wait for other ranks."""
        self.ns += ns
        self.cycle.waited_ns += ns

    def replace(self, index: int) -> None:
        """Forget an iterator; the next one may have its id."""
        self.iterators[index] = Asked()

    def batch(self, index: int, received: int | None, training: bool, inside: list[Any]) -> None:
        """Ask an iterator."""
        self.call("batch_began")
        self.run(inside)
        self.call("batch_ended", self.iterators[index], received, training)
        if received is None:
            self.iterators[index] = Asked()

    def backward(self, inside: list[Any], steps: bool) -> None:
        """Run backward, in which an optimizer may step."""
        self.call("backward_began")
        self.run(inside)
        if steps:
            self.call("optimizer_began_in_backward")
        self.call("backward_ended")

    def optimizer(self, inside: list[Any], raises: bool) -> None:
        """Make a step of an optimizer, which may raise, or call a closure."""
        self.call("optimizer_began")
        self.run(inside)
        if not raises:
            self.call("optimizer_ended")


_TIME = st.one_of(st.tuples(st.just("work"), st.integers(1, 10**9)), st.tuples(st.just("wait"), st.integers(1, 10**9)))
_TIMES = st.lists(_TIME, max_size=2)
_BATCH = st.tuples(
    *(st.just("batch"), st.integers(0, 3), st.sampled_from([1, 1, 1, 0, None])),
    *(st.sampled_from([True, True, False]), _TIMES),
)
_BACKWARD = st.tuples(st.just("backward"), _TIMES, st.sampled_from([False, False, True]))
_REPLACE = st.tuples(st.just("replace"), st.integers(0, 3))
_CLOSURE = st.lists(st.one_of(_TIME, _BACKWARD, _BACKWARD), max_size=4)
_STEP = st.tuples(st.just("optimizer"), st.one_of(_TIMES, _CLOSURE), st.sampled_from([False, False, False, True]))
_PROGRAM = st.lists(st.one_of(_TIME, _BATCH, _BATCH, _BACKWARD, _STEP, _REPLACE), min_size=1, max_size=40)


@settings(max_examples=200)
@pytest.mark.parametrize("twin", TWINS, ids=["py", "c"])
@given(calls=st.lists(st.tuples(st.sampled_from([*_KINDS, "batch_ended", "in_backward"]), _TIMES, st.integers(0, 3))))
def test_stages_add_up_after_any_order_of_calls(twin: Any, calls: list[Any]) -> None:
    """Nothing is lost or counted twice, even if exceptions and interrupts have left boundaries out."""
    loop = Loop(twin)
    ends: list[int] = []
    done: Callable[[list[int] | None], None] = loop.cycle._ended

    def ended(stages: list[int] | None) -> None:
        ends.append(next(each.ns for each in reversed(loop.boundaries) if each.kind == "backward_ended"))
        done(stages)

    loop.cycle._ended = ended
    for kind, times, index in calls:
        loop.run(times)
        if kind == "batch_ended":
            loop.call(kind, loop.iterators[index], [1, 0, None, 1][index], index < 3)
        else:
            loop.call("optimizer_began_in_backward" if kind == "in_backward" else kind)
    assert [end - begin for begin, end in pairwise(ends)] == [sum(stages) for stages in loop.cycles]
    assert all(ns >= 0 for stages in loop.cycles for ns in stages)


class Observed(Loop):
    """A loop whose stage in flight is noted after each call."""

    def __init__(self, twin: Any) -> None:
        super().__init__(twin)
        self.found: list[Any] = []

    def call(self, kind: str, *iterator: Any) -> None:
        """Pass a boundary."""
        super().call(kind, *iterator)
        self.found.append(self.cycle.in_flight())


@settings(max_examples=300)
@given(st.lists(_PROGRAM, max_size=3))
def test_both_twins_agree(programs: list[Any]) -> None:
    """On the cycles and on the stage in flight, in any order of boundaries."""
    both = [Observed(twin) for twin in TWINS]
    for each in both:
        for program in programs:
            each.work(1)
            each.run(program)
    assert both[0].found == both[1].found
    assert both[0].cycles == both[1].cycles
