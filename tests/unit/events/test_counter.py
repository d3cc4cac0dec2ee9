"""Counter: totals that only rise; identity, amounts, threads and forks."""

from __future__ import annotations

import math
import random
import sys
from decimal import Decimal
from fractions import Fraction
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import monitel
from monitel import CounterReading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.testing import ManualClock

    RunScript = Any

TWO_63 = 2**63


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name that only this test uses: counters are process-wide."""
    return str(request.node.nodeid)


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Return a clock that moves only by advance()."""
    with monitel.testing.ManualClock() as clock:
        yield clock


def readings(name: str) -> list[CounterReading]:
    """Return the readings of the counters with this name."""
    return [reading for reading in monitel.counters() if reading.counter.name == name]


def test_reading_has_total_and_start(name: str, clock: ManualClock) -> None:
    """The start is the time of the creation; later amounts do not move it."""
    created = clock.time_ns()
    samples = monitel.counter(name, unit="{sample}", description="Samples in training", attributes={"split": "train"})
    assert [CounterReading(samples, 0, created)] == readings(name)
    for amount in (32, 0, 28):
        clock.advance(1)
        samples.add(amount)
    samples.add()
    assert [CounterReading(samples, 61, created)] == readings(name)
    assert samples.reading() == readings(name)[0]
    assert (name, "{sample}", "Samples in training", {"split": "train"}, 61) == (
        *(samples.name, samples.unit, samples.description),
        *(samples.attributes, samples.total),
    )
    assert f"<Counter {name!r} split='train': 61>" == repr(samples)


def test_name_and_attributes_identify_a_counter(name: str) -> None:
    """The types of attributes count: True is not 1. The order of attributes does not."""
    every: list[dict[str, Any] | None] = [None, {"a": 1}, {"a": True}, {"a": "1"}, {"a": 1, "b": 2}]
    made = [monitel.counter(name, attributes=each) for each in every]
    assert len(every) == len({id(each) for each in made})
    assert made[4] is monitel.counter(name, attributes={"b": 2, "a": 1})
    assert made[0] is monitel.counter(name, attributes={})
    assert made == [reading.counter for reading in readings(name)]


def test_attributes_cannot_be_changed(name: str) -> None:
    """Neither by the caller's dict nor by the counter's."""
    given = {"split": "train"}
    counter: Any = monitel.counter(name, attributes=given)
    given["split"] = "val"
    assert {"split": "train"} == counter.attributes
    with pytest.raises(TypeError):
        counter.attributes["split"] = "val"


@pytest.mark.parametrize(("key", "other"), [("unit", "description"), ("description", "unit")])
def test_first_call_decides_unit_and_description(name: str, key: str, other: str) -> None:
    """Other attributes share them; None accepts them; another value raises and creates nothing."""
    first: dict[str, Any] = {key: "{token}"}
    tokens = monitel.counter(name, **first)
    assert tokens is monitel.counter(name) is monitel.counter(name, **first)
    validation = monitel.counter(name, attributes={"split": "val"})
    assert ("{token}", "") == (getattr(validation, key), getattr(validation, other))
    for attributes in ({}, {"split": "val"}, {"split": "test"}):
        wrong: dict[str, Any] = {key: "By", "attributes": attributes}
        with pytest.raises(ValueError, match=rf"was created with {key}='{{token}}', got {key}='By'"):
            monitel.counter(name, **wrong)
    assert [tokens, validation] == [reading.counter for reading in readings(name)]


def test_unit_can_be_left_out_only_at_first(name: str) -> None:
    """A counter without a unit does not get one later."""
    monitel.counter(name)
    with pytest.raises(ValueError, match="was created with unit='', got unit='s'"):
        monitel.counter(name, unit="s")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": ""}, ValueError, "a counter's name must not be empty"),
        ({"name": 3}, TypeError, "counter name"),
        ({"unit": 3}, TypeError, "unit"),
        ({"description": []}, TypeError, "description"),
        ({"attributes": {"a": None}}, TypeError, "attribute"),
        ({"attributes": 3}, TypeError, "attributes"),
    ],
)
def test_wrong_arguments_raise(name: str, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """Each error names the argument, and no counter is created."""
    before = len(monitel.counters())
    with pytest.raises(error, match=message):
        monitel.counter(**{"name": name, **arguments})
    assert before == len(monitel.counters())


@pytest.mark.parametrize(
    ("amount", "total", "kind"),
    [
        (3, 3, int),
        (True, 1, int),
        (2.5, 2.5, float),
        (np.int64(7), 7, int),
        (np.uint8(255), 255, int),
        (np.float32(0.5), 0.5, float),
        (np.float64(1.25), 1.25, float),
        (Fraction(1, 4), 0.25, float),
        (-0.0, 0.0, float),
    ],
)
def test_numbers_are_added(name: str, amount: Any, total: float, kind: type) -> None:
    """Ints stay ints, and the total has an exact built-in type."""
    counter = monitel.counter(f"{name}")
    before = counter.total
    counter.add(amount)
    assert (before + total, kind) == (counter.total, type(counter.total))


class Tensor:
    """An object like a tensor on a device: its value, and its text, may have to be waited for."""

    def _wait(self) -> Any:
        pytest.fail("a tensor must not be waited for")

    __float__ = __int__ = __index__ = __repr__ = _wait


@pytest.mark.parametrize(
    ("amount", "error", "message"),
    [
        (-1, ValueError, "takes an amount of at least 0, got -1"),
        (-0.5, ValueError, "takes an amount of at least 0, got -0.5"),
        (np.int64(-2), ValueError, "takes an amount of at least 0, got -2"),
        (math.nan, ValueError, "takes a finite number, got nan"),
        (math.inf, ValueError, "takes a finite number, got inf"),
        (np.float32("inf"), ValueError, "takes a finite number, got"),
        (10**400, ValueError, "too large for a float"),
        (Fraction(10**400), ValueError, "too large for a float"),
        ("3", TypeError, "takes a number, got str"),
        (None, TypeError, "takes a number, got NoneType"),
        (Decimal(3), TypeError, "takes a number, got Decimal"),
        (1j, TypeError, "takes a number, got complex"),
        (np.array([3]), TypeError, "takes a number, got ndarray"),
        (Tensor(), TypeError, "takes a number, got Tensor"),
    ],
)
def test_wrong_amounts_raise(name: str, amount: Any, error: type[Exception], message: str) -> None:
    """The total stays as it was."""
    counter = monitel.counter(name)
    counter.add(5)
    with pytest.raises(error, match=message):
        counter.add(amount)
    assert 5 == counter.total


def test_total_beyond_64_bits_is_a_float(name: str) -> None:
    """Up to the limit it is an exact int, because exporters send signed 64-bit ints."""
    counter = monitel.counter(name)
    counter.add(TWO_63 - 1)
    assert (TWO_63 - 1, int) == (counter.total, type(counter.total))
    counter.add(1)
    assert (float(TWO_63), float) == (counter.total, type(counter.total))
    assert float is type(readings(name)[0].total)


def test_amount_beyond_64_bits_is_a_float(name: str) -> None:
    """The largest float is the limit of a total."""
    counter = monitel.counter(name)
    counter.add(2**70)
    assert (float(2**70), float) == (counter.total, type(counter.total))
    for _ in range(3):
        counter.add(sys.float_info.max)
    assert sys.float_info.max == counter.total


def test_sum_of_floats_is_that_of_the_amounts(name: str) -> None:
    """Compared with a sum that has no rounding errors."""
    choose = random.Random(7)
    amounts = [choose.uniform(0, 10) for _ in range(1000)]
    counter = monitel.counter(name)
    for amount in amounts:
        counter.add(amount)
    assert math.fsum(amounts) == pytest.approx(counter.total, rel=1e-13)


def test_threads_lose_nothing(name: str) -> None:
    """The total is exact although threads switch as often as they can, and it never falls for a reader."""
    interval = sys.getswitchinterval()
    counter = monitel.counter(name)
    barrier = Barrier(9)

    def add(amount: int) -> None:
        barrier.wait(30)
        for _ in range(5_000):
            counter.add(amount)

    threads = [Thread(target=add, args=(amount,)) for amount in range(1, 9)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        barrier.wait(30)
        seen = [counter.total]
        while any(thread.is_alive() for thread in threads):
            seen.append(counter.total)
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(seen) == seen
    assert sum(range(1, 9)) * 5_000 == counter.total


def test_threads_get_the_same_counter(name: str) -> None:
    """Threads that create it at the same time share it."""
    barrier = Barrier(8)
    found = []

    def create() -> None:
        barrier.wait(30)
        found.append(monitel.counter(name, unit="{token}"))

    threads = [Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (8, 1) == (len(found), len(set(map(id, found))))


SIGNAL = """
import signal
import monitel
counter = monitel.counter("steps")
handled = 0
def handle(*_):
    global handled
    handled += 1
    counter.add()  # at any place inside the loop's own add()
    monitel.counters()
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
added = 0
while handled < 300:
    counter.add(1000)
    added += 1000
signal.setitimer(signal.ITIMER_REAL, 0)
print(counter.total - added - handled)
"""


def test_signal_handlers_can_count(run_script: RunScript) -> None:
    """A handler that interrupts add() does not wait for a lock, and both amounts are in the total."""
    assert ["0"] == run_script(SIGNAL).lines


FORK = """
import os, sys, threading
import monitel

counter = monitel.counter("samples", unit="{sample}", attributes={"split": "train"})
other = monitel.counter("tokens")
counter.add(100)
other.add(5)
before = counter.reading().start_ns
counter._lock.acquire()  # as if another thread added while the process forks
if (pid := os.fork()) == 0:
    start = {each.counter.name: each.total for each in monitel.counters()}
    added = threading.Thread(target=counter.add, args=(3,))
    added.start()
    added.join(10)
    print(start, counter.total, counter.reading().start_ns > before,
          counter is monitel.counter("samples", attributes={"split": "train"}), flush=True)
    os._exit(0)
counter._lock.release()
os.waitpid(pid, 0)
counter.add(1)
print(counter.total, counter.reading().start_ns == before, flush=True)
"""


def test_forked_child_starts_at_zero(run_script: RunScript) -> None:
    """With a later start, the same objects, and new locks; the parent's totals are untouched."""
    child, parent = run_script(FORK).lines
    assert "{'samples': 0, 'tokens': 0} 3 True True" == child
    assert "101 True" == parent


def test_readings_are_in_the_order_of_creation(name: str) -> None:
    """A changed list has no effect."""
    for layer in range(50):
        monitel.counter(name, attributes={"layer": layer}).add(10 * layer + 1)
    monitel.counters().clear()
    assert [10 * layer + 1 for layer in range(50)] == [reading.total for reading in readings(name)]
