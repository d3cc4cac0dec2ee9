"""The page with step, waits and heartbeat: limits, files, damage, races, and the times of steps."""

import math
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from tests.support.twins import RunThreads

import monitel
from monitel.blackbox import context_page
from monitel.blackbox.context_page import COUNTERS, counter_of, quantile, read_page, read_step_times, unpack_step_times


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "context"
    context_page.open_page(path)
    yield path
    context_page.close_page()


def test_waits_without_a_slot_are_counted(path: Path) -> None:
    """48 waits have a slot. A further one gets a free slot at the next beat, with its own start."""

    def shown() -> tuple[int, int]:
        found = read_page(path.read_bytes())
        return len(found.waits), found.waits_left_out

    guards = [monitel.WaitCounter(f"wait {number}").guard() for number in range(51)]
    for guard in guards:
        guard.__enter__()
    start_ns = time.monotonic_ns()
    assert (48, 3) == shown()
    guards[50].__exit__(None, None, None)
    guards[3].__exit__(None, None, None)
    assert (47, 2) == shown()
    context_page.beat()
    assert (48, 1) == shown()
    last = read_page(path.read_bytes()).waits[-1]
    assert ("wait 48", True) == (last.key, last.start_ns <= start_ns)
    for guard in guards:
        guard.__exit__(None, None, None)
    assert (0, 0) == shown()


@pytest.mark.parametrize(("key", "shown"), [("x" * 48, "x" * 47), ("x" * 46 + "é", "x" * 46)])
def test_key_is_cut_off_between_characters(path: Path, key: str, shown: str) -> None:
    """A key has at most 47 bytes of UTF-8, without half a character."""
    with monitel.WaitCounter(key).guard():
        assert [shown] == [wait.key for wait in read_page(path.read_bytes()).waits]


def begin(guards: list[Any], key: str) -> None:
    guards.append(monitel.WaitCounter(key).guard())
    guards[-1].__enter__()


@pytest.mark.parametrize("threads", [3, 60])
def test_threads_leave_no_wait_behind(path: Path, run_threads: RunThreads, threads: int) -> None:
    """Waits of many threads, of which some have no slot, while another thread beats and reads."""

    def work() -> None:
        for number in range(3000 // threads):
            with ExitStack() as stack:
                for _ in range(number % 3):
                    stack.enter_context(monitel.WaitCounter(f"of {get_ident()}").guard())
                monitel.set_step(number)

    def look() -> None:
        for _ in range(50):
            context_page.beat()
            found = read_page(path.read_bytes())
            assert [f"of {wait.thread}" for wait in found.waits] == [wait.key for wait in found.waits]

    run_threads(look, *[work] * threads)
    context_page.beat()
    found = read_page(path.read_bytes())
    assert ((), 0, monitel.get_step()) == (found.waits, found.waits_left_out, found.step)


def test_only_a_step_that_follows_the_last_one_has_a_time(path: Path) -> None:
    """The time of a step is not known after a jump or a return; a step that is set again does not begin again."""
    for step, total in ((4, 0), (5, 1), (6, 2), (6, 2), (7, 3), (17, 3), (3, 3), (4, 4), (0, 4), (2**63 - 1, 4)):
        monitel.set_step(step)
        assert total == sum(unpack_step_times(read_step_times(path.read_bytes()))), step


def test_quantiles_are_those_of_the_sorted_times() -> None:
    """Within 3.2 %, as NumPy's method ``inverted_cdf``; without steps there is none."""
    rng = random.Random(7)
    times = sorted(rng.lognormvariate(-2, 1) for _ in range(1000))
    counts = [0] * COUNTERS
    for seconds in times:
        counts[counter_of(round(seconds * 10**9))] += 1
    for q in (0.0, 0.5, 0.99, 1.0):
        assert quantile(counts, q) == pytest.approx(times[max(math.ceil(q * 1000) - 1, 0)], rel=0.032)
    assert (None, None) == (quantile((), 0.5), quantile([0] * COUNTERS, 0.5))
