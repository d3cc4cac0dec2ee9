"""The C window and the Python window are equal: random operations give the same events, readings and errors."""

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.producers import fill

Operation = tuple[Any, ...]


class _Float(float):
    def __float__(self) -> float:
        return 99.0


class _Int(int):
    def __float__(self) -> float:
        return 99.0


class _Number:
    def __init__(self, given: Any) -> None:
        self._given = given

    def __repr__(self) -> str:
        return f"_Number({self._given!r})"

    def __float__(self) -> Any:
        if isinstance(self._given, BaseException):
            raise type(self._given)(*self._given.args)  # its traceback would keep the Stats
        return self._given


class _Index:
    def __index__(self) -> int:
        return 10**400


values = st.one_of(
    st.floats(),
    st.floats(width=16).map(_Float),
    st.integers(-(2**70), 2**70),
    st.sampled_from([10**400, -(10**400), 2**1024 - 2**970, 2**1024 - 2**969, -1, -1.0, _Int(7), True, _Index()]),
    st.fractions(max_denominator=7),
    st.decimals(),
    st.complex_numbers(),
    st.sampled_from([None, "1", b"1", (), object, _Number("1"), _Number(1.5), _Number(_Float(2.5)), _Number(3)]),
    st.sampled_from([_Number(ValueError("why")), _Number(KeyboardInterrupt("why")), Mock(spec=float)]),
)
arguments = st.tuples(
    st.just("add"),
    st.integers(0, 1),
    st.lists(st.just(1.0) | values, max_size=3),
    st.dictionaries(st.sampled_from(["v", "x", "sample", "é"]), st.just(2.0), max_size=2),
)
seconds = st.sampled_from([0, 1e-9, 0.0005, 0.001, 0.25, 59.999999999, 60, 61, 1000]) | st.floats(0, 200)
operations = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 1), st.tuples(st.floats(-5, 5)), st.just({})),
    st.tuples(st.just("add"), st.integers(0, 1), st.tuples(values), st.just({})),
    arguments,
    st.tuples(st.just("advance"), seconds),
    st.tuples(st.just("set_wall_clock"), st.sampled_from([-3600, -1e-9, 1, 3600]) | st.floats(-1e6, 1e6)),
    st.tuples(st.just("flush"), st.integers(0, 1)),
    st.just(("flush_all",)),
    st.just(("expire",)),
    st.tuples(st.just("set_step"), st.sampled_from([0, 1, 2, 2**63 - 1, True, -1, 2**63, 1.5, None])),
    st.tuples(st.just("handler"), st.sampled_from(["raise", "add", "flush", "flush_all", "advance"])),
)
kinds = st.tuples(st.sampled_from([0.001, 0.5, 60.0, math.inf]), st.sampled_from([1, 2, 3, 2**63 - 1]))


class Side:
    """One twin, with two Stats, a clock, and a handler that records events and runs planned operations."""

    def __init__(self, package: ModuleType, kinds: list[tuple[float, int]]) -> None:
        self.package, self.kinds = package, kinds
        self.log: list[str] = []
        self.windows: list[Any] = []
        self.accepted = 0
        self.planned = ""

    def run(self, operations: list[Operation]) -> None:
        self.package.flush()  # left by other tests
        self.package.stats._window.set_step(None)
        with ExitStack() as stack:
            stack.enter_context(
                patch.object(sys, "unraisablehook", lambda report: self.log.append(repr(report.exc_value)))
            )
            clock = stack.enter_context(self.package.testing.ManualClock())
            self.calls: dict[str, Callable[..., object]] = {
                "add": self.add,
                "advance": clock.advance,
                "set_wall_clock": clock.set_wall_clock,
                "flush": lambda which: self.stats[which].flush(),
                "flush_all": self.package.flush,
                "expire": self.package.close_expired_windows,
                "set_step": self.set_step,
                "handler": lambda planned: setattr(self, "planned", planned),
            }
            self.stats = [
                self.package.Stat(name, list(self.package.Aggregation)[:number], *kind)
                for name, number, kind in zip("xy", (8, 6), self.kinds, strict=True)  # torch's six have a short path
            ]
            stack.enter_context(self.package.register_event_handler(self.handle))
            for operation, *arguments in operations:
                self.note(operation, *arguments)
            self.planned = ""
            self.note("flush_all")

    def note(self, operation: str, *arguments: Any) -> None:
        try:
            outcome = repr(self.calls[operation](*arguments))
        except BaseException as error:
            outcome = f"{error!r} from {error.__cause__!r}"
        self.log.append(f"{operation} {arguments} -> {outcome}")
        for stat in self.stats:
            got = {aggregation.name: value for aggregation, value in stat.get().items()}
            self.log.append(f"{stat!r} {stat.count} {stat.discarded} {got}")

    def handle(self, event: Any) -> None:
        self.log.append(f"{event!r} {event.window[1:]}")  # without the definition
        self.windows.append(event.window)
        planned, self.planned = self.planned, ""
        if planned == "raise":
            raise LookupError(event.window.name)
        which = "xy".index(event.window.name)
        arguments: dict[str, tuple[Any, ...]] = {"add": (which, [1.0], {}), "flush": (which,), "advance": (60,)}
        if planned:
            self.calls[planned](*arguments.get(planned, ()))

    def add(self, which: int, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Add to one of the Stats; a handler fails after the sample was added."""
        stat = self.stats[which]
        try:
            stat.add(*args, **kwargs)
        except LookupError:
            self.accepted += 1
            raise
        self.accepted += 1

    def set_step(self, step: Any) -> int | None:
        self.package.set_step(step)
        return self.package.get_step()  # type: ignore[no-any-return]


@settings(max_examples=250, deadline=None)
@given(st.lists(kinds, min_size=2, max_size=2), st.lists(operations, max_size=40))
def test_twins_agree(
    both_twins: dict[str, ModuleType], kinds: list[tuple[float, int]], operations: list[Operation]
) -> None:
    """Any operations give equal events and readings, and no sample is lost unless max_samples discards it."""
    sides = [Side(package, kinds) for package in both_twins.values()]
    for side in sides:
        side.run(operations)
        assert side.accepted == sum(window.count for window in side.windows) + sum(
            stat.discarded for stat in side.stats
        )
        for stat, (_, max_samples) in zip(side.stats, kinds, strict=True):
            windows = [window for window in side.windows if window.name == stat.name]
            windows.sort(key=lambda window: int(window.end_ns))
            times = [time for window in windows for time in (window.start_ns, window.end_ns)]
            assert sorted(times) == times
            assert len({window.end_ns for window in windows}) == len(windows)
            assert {True} >= {1 <= window.count <= max_samples for window in windows}
    assert sides[0].log == sides[1].log


def windows_of(package: ModuleType, stat: Any, samples: list[float]) -> list[Any]:
    """Add samples to a Stat, flush it, and return its windows."""
    with package.testing.capture_events() as events:
        fill(stat, *samples)
    return [event.window for event in events]


@settings(deadline=None)
@given(st.lists(st.floats() | st.sampled_from([math.nan, 0.0, -0.0]), max_size=8), st.integers(1, 6))
def test_twins_agree_on_the_systems_clock(
    both_twins: dict[str, ModuleType], samples: list[float], max_samples: int
) -> None:
    """Plain floats with the system's clock, the short path in C, fill equal windows."""
    seen = []
    for package in both_twins.values():
        stat = package.Stat("x", list(package.Aggregation)[:6], math.inf, max_samples)
        windows = [window[3:] for window in windows_of(package, stat, samples)]  # without definition and times
        assert max(0, len(samples) - max_samples) == stat.discarded
        seen.append(f"{stat!r} {windows} {list(stat.get().values())}")
    assert seen[0] == seen[1]


def test_twins_have_one_interface(both_twins: dict[str, ModuleType]) -> None:
    """Both twins have the same attributes, and the public ones the same documentation."""
    c, py = (package.Stat for package in both_twins.values())
    names = {name for name in vars(c.__mro__[1]) if not name.startswith("__")} | {"add"}
    assert names == {name for name in names if hasattr(py, name)}
    for name in (name for name in names if not name.startswith("_")):
        assert getattr(c, name).__doc__.split() == getattr(py, name).__doc__.split()


@pytest.mark.parametrize("scale", [3, 12, 20])
def test_twins_agree_at_the_ends_of_buckets(both_twins: dict[str, ModuleType], scale: int) -> None:
    """Numbers at the bounds of buckets, and one ulp beside, are in the same buckets."""
    per_octave = 2**scale
    at_once = min(per_octave, 100)  # that many buckets have their own scale
    for first in range(0, per_octave, at_once if scale < 13 else per_octave // 40):
        ends = [2.0 ** (index / per_octave) for index in range(first, first + at_once)]
        samples = [near for end in ends for near in (math.nextafter(end, 0), end, math.nextafter(end, math.inf))]
        histograms = []
        for package in both_twins.values():
            stat = package.Stat("x", [package.HISTOGRAM], math.inf)
            histograms += [repr(each.histogram) for each in windows_of(package, stat, samples)]
        assert histograms[0] == histograms[1]
