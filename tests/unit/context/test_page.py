"""The page with step, waits and heartbeat: limits, races, and the times of steps."""

import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from threading import get_ident
from types import FrameType

import pytest
from tests.support.producers import run_together

import monitel
from monitel.blackbox import context_page
from monitel.blackbox.context_page import COUNTERS, Context, counter_of, quantile, read_page
from monitel.blackbox.folder import Folder


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Callable[[], Context]]:
    with closing(Folder.open(tmp_path)) as folder:
        context_page.open_page(folder)
        yield lambda: read_page(folder.read("page"))
        context_page.close_page(folder)


def test_waits_without_a_slot_are_not_shown(read: Callable[[], Context]) -> None:
    """48 waits have a slot, which the next one gets when it is free."""
    guards = [monitel.WaitCounter(f"wait {number}").guard() for number in range(51)]
    for guard in guards[:50]:
        guard.__enter__()
    assert [f"wait {number}" for number in range(48)] == [wait.key for wait in read().waits]
    guards[49].__exit__(None, None, None)
    guards[3].__exit__(None, None, None)
    guards[50].__enter__()
    assert (48, "wait 50") == (len(read().waits), read().waits[-1].key)
    for number in {*range(51)} - {3, 49}:
        guards[number].__exit__(None, None, None)
    assert () == read().waits


def test_interrupted_wait_leaves_nothing(read: Callable[[], Context]) -> None:
    """Ctrl-C at any call, where CPython runs signal handlers: a wait that has begun has ended, and its slot is free."""
    folder, begun = str(Path(monitel.__file__).parent), 0
    for place in count():
        calls = iter(range(place))

        def interrupt(frame: FrameType, event: str, _argument: object, calls: Iterator[int] = calls) -> None:
            is_call = event in {"call", "c_return"} and frame.f_code.co_filename.startswith(folder)
            if is_call and next(calls, None) is None:
                sys.setprofile(None)
                raise KeyboardInterrupt

        guard = monitel.WaitCounter("interrupted").guard()
        sys.setprofile(interrupt)
        try:
            with guard:
                begun += 1
        except KeyboardInterrupt:
            del guard
        else:
            break
        finally:
            sys.setprofile(None)
        assert ((), 0) == (read().waits, monitel.wait_counters()["interrupted"].active), place
    reading = monitel.wait_counters()["interrupted"]
    assert (True, 0, True) == (begun <= reading.count, reading.active, place > 15)
    test_waits_without_a_slot_are_not_shown(read)


def test_key_is_cut_off_between_characters(read: Callable[[], Context]) -> None:
    """A key has at most 47 bytes of UTF-8, without half a character."""
    for key, shown in (("x" * 48, "x" * 47), ("x" * 46 + "é", "x" * 46)):
        with monitel.WaitCounter(key).guard():
            assert [shown] == [wait.key for wait in read().waits]


@pytest.mark.parametrize("threads", [3, 60])
def test_threads_leave_no_wait_behind(read: Callable[[], Context], threads: int) -> None:
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
            assert all(f"of {wait.thread}" == wait.key for wait in read().waits)

    run_together(look, *[work] * threads)
    assert ((), monitel.get_step()) == (read().waits, read().step)


def test_only_a_step_that_follows_the_last_one_has_a_time(read: Callable[[], Context]) -> None:
    """The time of a step is not known after a jump or a return; a step that is set again does not begin again."""
    for step, total in ((4, 0), (5, 1), (6, 2), (6, 2), (7, 3), (17, 3), (3, 3), (4, 4), (0, 4), (2**63 - 1, 4)):
        monitel.set_step(step)
        assert total == sum(read().step_times), step


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
    assert (0, 0, 15, 16, COUNTERS - 1) == tuple(map(counter_of, (0, 1024, 2047, 2048, 2**50)))
