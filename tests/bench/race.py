"""Races: contenders take turns, round by round, so that the machine's noise hits all of them."""

from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import count
from time import perf_counter
from timeit import Timer
from types import ModuleType
from typing import Any

import monitel

Contender = Callable[[], float]  # runs one round; gives the cost of one call, in ns

_ROUND_SECONDS = 0.001  # short: what disturbs one contender is likely to disturb its neighbours


def timed(
    code: str,
    prepare: Callable[[], dict[str, Any]],
    calls: int | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Contender:
    """Make a contender of some code: one call, which is repeated, or with ``calls`` so many, once a round.

    ``prepare`` returns its local names anew for each round, and is not measured; ``clock`` returns seconds.
    """
    setup = "names = prepare()\n" + "\n".join(f"{name} = names[{name!r}]" for name in prepare())
    timer = Timer(code, setup, clock, {"prepare": prepare})
    number = 1 if calls else _loops_for(timer)
    return lambda: timer.timeit(number) * 1e9 / (number * (calls or 1))


def _loops_for(timer: Timer) -> int:
    return next(1 << power for power in count() if timer.timeit(1 << power) >= _ROUND_SECONDS)


def race(contenders: Mapping[str, Contender], rounds: int = 41) -> dict[str, list[float]]:
    """Run each contender once a round, in alternating order; return the ns of a call by contender and round."""
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender()
    for turn in range(rounds):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            costs[name].append(contenders[name]())
    return costs


def optional(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def twin() -> str:
    return "C" if monitel.Stat.__mro__[1].__module__ == "monitel.stats._window_c" else "Python twin"
