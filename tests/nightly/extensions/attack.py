"""Call everything that the C extension has with wrong numbers and types of arguments: ``attack.py SEED``.

The process must live to print ``done``. The file ``last-call`` has the last call.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

ROUNDS = 400
MOST_OBJECTS = 120
OF_OBJECTS = {"__class__", "__dir__", "__doc__", "__init_subclass__", "__reduce__", "__subclasshook__"}  # not called


def fail(*_arguments: object) -> Any:
    raise ValueError("fails")


class Odd:
    """Raises wherever C asks something of it."""

    __bool__ = __hash__ = __index__ = __iter__ = __len__ = __repr__ = __str__ = fail
    monotonic_ns = time_ns = fail


class Text(str):
    __slots__ = ()


class WrongClock:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def monotonic_ns(self) -> Any:
        return self._rng.choice([-5, 1, (1 << 63) - 1, 1 << 70, None])

    time_ns = monotonic_ns


class Attack:
    """Calls the extension.

    Args:
        rng: Chooses what is called, and with which arguments.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        module = import_module("monitel.stats._window_c")
        self._functions = {
            name: each for name, each in vars(module).items() if callable(each) and not isinstance(each, type)
        }
        self._types: list[Any] = [each for each in vars(module).values() if isinstance(each, type)]
        self._log = os.open("last-call", os.O_RDWR | os.O_CREAT, 0o600)
        self._objects: list[Any] = [
            *(None, True, 0, 1, -1, 5, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, 1.5, float("nan")),
            *("", "x", "\ud800", Text("x"), b"", b"x\0", (), (1,), (fail,), [], {}),
            *(object(), Odd(), WrongClock(rng), fail, len, int, lambda *_: None, lambda *given: given),
        ]

    def make_instances(self) -> list[Any]:
        """Return instances of the module's types, some of which were never initialized."""
        made = []
        for each in self._types:
            for arguments in ([], [fail], [5, 500]):
                with suppress(TypeError, ValueError):
                    made.append(each(*arguments))
            with suppress(TypeError):
                made.append(each.__new__(each))
        return made

    def call_with_each_number_of_arguments(self) -> None:
        """Call each function, and each method of each instance, with up to seven arguments."""
        called = {**self._functions}
        for number, each in enumerate(self.make_instances()):
            methods = {f"{number} {name}": getattr(each, name) for name in self._names(each)}
            called |= {name: method for name, method in methods.items() if callable(method)}
        for name, function in called.items():
            for count in range(8):
                self._call(name, function, *[None] * count)
                self._call(name, function, *range(count))

    def call_at_random(self) -> None:
        """Call, read, set and delete, with arguments that earlier calls have returned or damaged."""
        for name, function in self._functions.items():
            self._keep(self._call(name, function, *self._arguments()))
        kept = [each for each in self._objects if type(each) in self._types]
        for each in self.make_instances() + kept:
            name, kind = self._rng.choice(self._names(each)), self._rng.random()
            if kind < 0.1:
                self._call(f"del {name}", delattr, each, name)
            elif kind < 0.2:
                self._call(f"set {name}", setattr, each, name, self._rng.choice(self._objects))
            elif callable(method := getattr(each, name, None)):
                self._keep(self._call(f"{type(each).__name__}.{name}", method, *self._arguments()))
        for each in self._types:
            self._keep(self._call(each.__name__, each, *self._arguments()))
            self._keep(self._call(f"{each.__name__}.__new__", each.__new__, each, *self._arguments()))

    def _arguments(self) -> list[Any]:
        return self._rng.choices(self._objects, k=self._rng.choice([0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6]))

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        plain = [repr(each) if type(each) in {int, float, bytes, tuple} else type(each).__name__ for each in arguments]
        os.pwrite(self._log, f"{name}({', '.join(plain)})"[:500].ljust(500).encode("utf-8", "replace"), 0)
        try:
            return function(*arguments)
        except Exception:
            return None

    def _keep(self, found: Any) -> None:
        if found is not None and found is not NotImplemented and len(self._objects) < MOST_OBJECTS:
            self._objects.append(found)

    @staticmethod
    def _names(each: Any) -> list[str]:
        return [name for name in dir(each) if name not in OF_OBJECTS and hasattr(each, name)]


def main(seed: str) -> None:
    sys.unraisablehook = lambda _report: None
    attack = Attack(random.Random(int(seed)))
    attack.call_with_each_number_of_arguments()
    for number in range(ROUNDS):
        attack.call_at_random()
        if number % 50 == 0:
            gc.collect()
    os.write(1, b"done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
