"""The counters of step times in the context page, and quantiles from them."""

from __future__ import annotations

import math
import random
import struct
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel.context_page import PAGE_BYTES, read_step_times, unpack_step_times
from monitel.step_times import COUNTERS, counter_of, quantile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

SECOND = 10**9


@pytest.fixture
def counts(path: Path) -> Callable[[], dict[int, int]]:
    """Return a function that reads the counters other than zero."""

    def read() -> dict[int, int]:
        counters = unpack_step_times(read_step_times(path.read_bytes()))
        return {counter: count for counter, count in enumerate(counters) if count}

    return read


def test_each_step_counts_its_time(
    monitel: ModuleType, context_page: Any, path: Path, read: Callable[[], Any], counts: Callable[[], dict[int, int]]
) -> None:
    """The time of a step is that from its set_step() to the next one, by the times that the page has."""
    context_page.open_page(path)
    monitel.set_step(0)
    expected: dict[int, int] = {}
    for step, seconds in enumerate((0.0, 0.001, 0.02, 0.02), 1):
        begin_ns = read().step_ns
        Event().wait(seconds)
        monitel.set_step(step)
        counter = counter_of(read().step_ns - begin_ns)
        expected[counter] = expected.get(counter, 0) + 1
        assert expected == counts()


def test_only_a_step_that_follows_the_last_one_counts(
    monitel: ModuleType, context_page: Any, path: Path, counts: Callable[[], dict[int, int]]
) -> None:
    """The time of a step is not known after a jump, after a return, and for several steps at once."""
    monitel.set_step(4)
    context_page.open_page(path)
    for step, total in ((5, 0), (6, 1), (6, 1), (7, 2), (17, 2), (3, 2), (4, 3), (0, 3), (2**63 - 1, 3), (0, 3)):
        monitel.set_step(step)
        assert total == sum(counts().values()), step


def test_repeated_step_does_not_begin_again(
    monitel: ModuleType, context_page: Any, path: Path, read: Callable[[], Any], counts: Callable[[], dict[int, int]]
) -> None:
    """A loop may set the step that a source has counted already: its time is from the first call to the next step."""
    context_page.open_page(path)
    monitel.set_step(1)
    begin_ns = read().step_ns
    Event().wait(0.03)
    monitel.set_step(1)
    monitel.step.advance(2)
    assert {counter_of(read().step_ns - begin_ns): 1} == counts()


def test_new_page_begins_at_zero(
    monitel: ModuleType, context_page: Any, path: Path, counts: Callable[[], dict[int, int]]
) -> None:
    """The time while no page was open is missing."""
    context_page.open_page(path.with_name("first"))
    monitel.set_step(1)
    monitel.set_step(2)
    context_page.open_page(path)
    monitel.set_step(3)
    assert {} == counts()
    monitel.set_step(4)
    assert 1 == sum(counts().values())


def test_page_of_an_earlier_version_has_no_counters(context_page: Any, path: Path) -> None:
    """Such a page has 4096 bytes; its step and its waits are read."""
    context_page.open_page(path)
    content = path.read_bytes()
    assert PAGE_BYTES == len(content)
    assert (b"", ()) == (read_step_times(content[:4096]), unpack_step_times(b""))
    assert context_page.read_page(content) == context_page.read_page(content[:4096])


@given(st.integers(min_value=0, max_value=2**62))
def test_times_of_a_counter_are_close(time_ns: int) -> None:
    """The middle of a counter is within 3.2 % of each time in it, from a microsecond to an hour."""
    counts = [0] * COUNTERS
    counts[counter_of(time_ns)] = 1
    found = quantile(counts, 0.5)
    assert found is not None
    if 1024 <= time_ns < 2**42:
        assert found * SECOND == pytest.approx(time_ns, rel=0.032)


@pytest.mark.parametrize("q", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_quantiles_are_those_of_the_sorted_times(q: float) -> None:
    """As NumPy's method ``inverted_cdf``."""
    rng = random.Random(7)
    times = sorted(rng.lognormvariate(-2, 1) for _ in range(1000))
    counts = [0] * COUNTERS
    for seconds in times:
        counts[counter_of(round(seconds * SECOND))] += 1
    expected = times[max(math.ceil(q * 1000) - 1, 0)]
    assert quantile(counts, q) == pytest.approx(expected, rel=0.032)


def test_nothing_has_no_quantile() -> None:
    """No counters, or no steps."""
    assert (None, None) == (quantile((), 0.5), quantile([0] * COUNTERS, 0.5))


def test_largest_counts_are_read() -> None:
    """A damaged page may have any numbers."""
    counts = struct.unpack("=512Q", b"\xff" * 4096)
    assert (quantile(counts, 0.99) or 0) > 3600
